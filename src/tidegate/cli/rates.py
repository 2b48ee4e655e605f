"""Rates and loads of a job's operators, from the differences between heartbeats. Driver; pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tidegate.ids import SlotId
from tidegate.wire.control import Heartbeat

WINDOW = 4  #: heartbeats of a slot that a rate is taken over: about three seconds, so that numbers can be read


@dataclass(frozen=True, slots=True)
class OperatorRates:
    """One operator, summed over its subtasks. Rates are None until two heartbeats have come."""

    records_in: int
    records_out: int
    in_per_s: float | None
    out_per_s: float | None
    busy: float | None  #: parts of the time of the slots that host it; chained operators share slots
    idle: float | None
    backpressured: float | None


@dataclass(slots=True)
class RateMeter:
    """Takes the heartbeats of one attempt."""

    _seen: dict[SlotId, deque[tuple[float, Heartbeat]]] = field(default_factory=dict)

    def clear(self) -> None:
        """A new attempt counts from zero."""
        self._seen.clear()

    def note(self, slot: SlotId, heartbeat: Heartbeat, at: float) -> None:
        self._seen.setdefault(slot, deque(maxlen=WINDOW)).append((at, heartbeat))

    def operators(self) -> dict[str, OperatorRates]:
        """By uid."""
        parts: dict[str, list[tuple[SlotId, int]]] = {}
        for slot, seen in self._seen.items():
            for metrics in seen[-1][1].operators:
                parts.setdefault(metrics.uid, []).append((slot, metrics.subtask))
        return {uid: self._operator(uid, subtasks) for uid, subtasks in parts.items()}

    def _operator(self, uid: str, subtasks: list[tuple[SlotId, int]]) -> OperatorRates:
        total_in = total_out = 0
        in_per_s = out_per_s = 0.0
        loads = []
        for slot, subtask in subtasks:
            (first_at, first), (last_at, last) = self._seen[slot][0], self._seen[slot][-1]
            records_in, records_out = _counts(last, uid, subtask)
            total_in, total_out = total_in + records_in, total_out + records_out
            if last_at > first_at:
                before_in, before_out = _counts(first, uid, subtask)
                in_per_s += (records_in - before_in) / (last_at - first_at)
                out_per_s += (records_out - before_out) / (last_at - first_at)
                loads.append(_load(first, last))
        known = [load for load in loads if load is not None]
        busy, idle, backpressured = (sum(part) / len(known) for part in zip(*known)) if known else (None, None, None)
        return OperatorRates(
            records_in=total_in,
            records_out=total_out,
            in_per_s=in_per_s if loads else None,
            out_per_s=out_per_s if loads else None,
            busy=busy,
            idle=idle,
            backpressured=backpressured,
        )


def _counts(heartbeat: Heartbeat, uid: str, subtask: int) -> tuple[int, int]:
    for metrics in heartbeat.operators:
        if metrics.uid == uid and metrics.subtask == subtask:
            return metrics.records_in, metrics.records_out
    return 0, 0  # the first heartbeat may come before the operators are built


def _load(first: Heartbeat, last: Heartbeat) -> tuple[float, float, float] | None:
    busy, idle = last.busy_ms - first.busy_ms, last.idle_ms - first.idle_ms
    backpressured = last.backpressured_ms - first.backpressured_ms
    whole = busy + idle + backpressured
    return None if whole <= 0 else (busy / whole, idle / whole, backpressured / whole)
