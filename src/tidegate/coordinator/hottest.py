"""The hottest keys of a job's operators, put together from what their subtasks have sampled. Driver; pure.

A key is in one subtask of an operator, so its records are compared with those of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.wire.control import Heartbeat

LEAST_SHARE = 0.001  #: of an operator's records; below, a key is only one that happened to be seen


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """One hot key of one operator."""

    uid: str
    subtask: int
    key: str
    share: float  #: of the operator's records of late, about
    records: int  #: of late, about


def hottest(heartbeats: Iterable[Heartbeat], number: int) -> tuple[OperatorKey, ...]:
    """Over all operators, the largest share first."""
    sampled = [m for heartbeat in heartbeats for m in heartbeat.operators if m.hot_keys is not None]
    totals: dict[str, int] = {}
    for metrics in sampled:
        assert metrics.hot_keys is not None
        totals[metrics.uid] = totals.get(metrics.uid, 0) + metrics.hot_keys.records
    found = [
        OperatorKey(metrics.uid, metrics.subtask, hot.key, hot.records / totals[metrics.uid], hot.records)
        for metrics in sampled
        if metrics.hot_keys is not None
        for hot in metrics.hot_keys.keys
        if hot.records >= LEAST_SHARE * totals[metrics.uid] > 0
    ]
    return tuple(sorted(found, key=lambda hot: -hot.share)[:number])
