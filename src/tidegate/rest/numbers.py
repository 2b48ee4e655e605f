"""Numbers in Flink's shapes: milliseconds, summaries of a sample, what a vertex has read and written. Driver; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.coordinator.observing import JobSnapshot
from tidegate.ids import SlotId
from tidegate.rest.served import Vertex
from tidegate.wire.control import Heartbeat, OperatorMetrics

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
#: Flink's execution states, in the order of its own answers.
EXECUTION_STATES = (
    "CREATED", "SCHEDULED", "DEPLOYING", "RUNNING", "FINISHED", "CANCELING", "CANCELED", "FAILED", "RECONCILING",
    "INITIALIZING",
)  # fmt: skip


def ms(seconds: float) -> int:
    return int(seconds * 1000)


def summary(sample: Sequence[float]) -> dict[str, float]:
    """Of an empty sample everything is 0: JSON has no word for "not a number"."""
    values = sorted(sample)
    if not values:
        return {"min": 0, "max": 0, "avg": 0} | {name: 0.0 for name, _ in PERCENTILES}
    result: dict[str, float] = {"min": int(values[0]), "max": int(values[-1]), "avg": int(sum(values) / len(values))}
    for name, part in PERCENTILES:
        result[name] = float(values[min(len(values) - 1, int(part * len(values)))])
    return result


def spread(sample: Sequence[int]) -> dict[str, int]:
    """Over the subtasks of a vertex, as Flink tells it. Of an empty sample everything is 0."""
    values = sorted(sample) or [0]

    def part(share: float) -> int:
        return values[min(len(values) - 1, int(share * len(values)))]

    return {
        "min": values[0],
        "max": values[-1],
        "avg": sum(values) // len(values),
        "sum": sum(values),
        "median": part(0.5),
        "p25": part(0.25),
        "p75": part(0.75),
        "p95": part(0.95),
    }


def skew(sample: Sequence[float]) -> float:
    """Percent: the mean distance from the mean, over the mean; at most 100. The same in every subtask: 0."""
    mean = sum(sample) / len(sample)
    if mean == 0:
        return 0.0
    return min(100.0, 100.0 * sum(abs(value - mean) for value in sample) / len(sample) / mean)


AGGREGATES = ("min", "max", "avg", "sum", "skew")


def aggregated(
    samples: Iterable[dict[str, float]], wanted: list[str] | None, aggregates: list[str]
) -> list[dict[str, Any]]:
    """Over subtasks, or over jobs."""
    values: dict[str, list[float]] = {}
    for numbers in samples:
        for name, value in numbers.items():
            values.setdefault(name, []).append(value)
    if wanted is None:
        return [{"id": name} for name in sorted(values)]
    answers = []
    for name in wanted:
        sample = values.get(name)
        if sample:
            all_of_it = {
                "min": min(sample),
                "max": max(sample),
                "avg": sum(sample) / len(sample),
                "sum": sum(sample),
                "skew": skew(sample),
            }
            answers.append({"id": name, **{key: all_of_it[key] for key in aggregates}})
    return answers


def counts_of(heartbeats: dict[SlotId, Heartbeat]) -> dict[tuple[str, int], OperatorMetrics]:
    """By uid and subtask."""
    return {(m.uid, m.subtask): m for heartbeat in heartbeats.values() for m in heartbeat.operators}


def io_metrics(snapshot: JobSnapshot, vertex: Vertex, subtasks: Iterable[int]) -> dict[str, Any]:
    """Flink's IOMetricsInfo. Bytes are those of records between slots."""
    counts = counts_of(snapshot.heartbeats)
    read = written = read_bytes = written_bytes = busy = idle = backpressured = 0
    for subtask in subtasks:
        head = counts.get((vertex.chain.head.uid, subtask))
        if head is not None:
            read += head.records_in
            read_bytes += head.bytes_in
        for uid in vertex.sending_uids():
            sender = counts.get((uid, subtask))
            if sender is not None:
                written += sender.records_out
                written_bytes += sender.bytes_out
        heartbeat = snapshot.heartbeats.get(vertex.slot(subtask))
        if heartbeat is not None:
            busy += heartbeat.busy_ms
            idle += heartbeat.idle_ms
            backpressured += heartbeat.backpressured_ms
    return {
        "read-bytes": read_bytes,
        "read-bytes-complete": True,
        "write-bytes": written_bytes,
        "write-bytes-complete": True,
        "read-records": read,
        "read-records-complete": True,
        "write-records": written,
        "write-records-complete": True,
        "accumulated-backpressured-time": backpressured,
        "accumulated-idle-time": idle,
        "accumulated-busy-time": busy,
    }
