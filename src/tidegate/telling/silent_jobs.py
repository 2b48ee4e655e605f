"""A job that has finished and from which nothing came: where its records have stayed. Driver; pure."""

from __future__ import annotations

from tidegate.coordinator.observing import JobSnapshot
from tidegate.graph.plan import JobPlan
from tidegate.graph.specs import SinkSpec


def nothing_came_out(plan: JobPlan, snapshot: JobSnapshot) -> str:
    """A sentence with the operators that took records and gave none; "" where a record has reached a sink, or nobody can say.

    Counts are those of one attempt, so after a restart they tell only a part.
    """
    if snapshot.restarts or snapshot.restored is not None:
        return ""
    taken: dict[str, int] = {}
    given: dict[str, int] = {}
    for heartbeat in snapshot.heartbeats.values():
        for metrics in heartbeat.operators:
            taken[metrics.uid] = taken.get(metrics.uid, 0) + metrics.records_in
            given[metrics.uid] = given.get(metrics.uid, 0) + metrics.records_out
    sinks = [op for op in plan.operators if isinstance(op.operator.spec, SinkSpec)]
    if any(taken.get(sink.uid, 1) for sink in sinks):
        return ""
    swallowed = [op for op in plan.operators if op not in sinks and taken.get(op.uid) and not given[op.uid]]
    if not swallowed:
        return ""
    counts = "; ".join(f"{op.operator}: {taken[op.uid]:,} in, 0 out" for op in swallowed)
    return f"no record has reached a sink. {counts}"
