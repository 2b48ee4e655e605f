"""Rates and loads of a job's operators, from the differences between heartbeats. Driver; pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tidegate.ids import SlotId
from tidegate.wire.control import Heartbeat, OperatorMetrics

WINDOW = 4  #: heartbeats of a slot that a rate is taken over: about three seconds, so that numbers can be read


@dataclass(frozen=True, slots=True)
class Load:
    """Parts of a slot's time."""

    busy: float
    idle: float
    backpressured: float


@dataclass(frozen=True, slots=True)
class SubtaskRates:
    """One subtask of one operator. Rates are None until two heartbeats have come."""

    slot: SlotId
    records_in: int
    records_out: int
    in_per_s: float | None
    out_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    load: Load | None  #: of the slot that hosts it; chained operators share it


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
        parts: dict[str, list[SubtaskRates]] = {}
        for (uid, _), rates in self.subtasks().items():
            parts.setdefault(uid, []).append(rates)
        return {uid: _sum(subtasks) for uid, subtasks in parts.items()}

    def subtasks(self) -> dict[tuple[str, int], SubtaskRates]:
        """By uid and subtask."""
        return {
            (metrics.uid, metrics.subtask): self._subtask(slot, metrics)
            for slot, seen in self._seen.items()
            for metrics in seen[-1][1].operators
        }

    def loads(self) -> dict[SlotId, Load]:
        """Of the slots that have been heard twice."""
        loads = {slot: _load(seen[0][1], seen[-1][1]) for slot, seen in self._seen.items()}
        return {slot: load for slot, load in loads.items() if load is not None}

    def cores(self) -> dict[SlotId, float]:
        """How many cores the process of each slot keeps busy, of those that have been heard twice."""
        found = {}
        for slot, seen in self._seen.items():
            (first_at, first), (last_at, last) = seen[0], seen[-1]
            if last_at > first_at and first.process is not None and last.process is not None:
                found[slot] = (last.process.cpu_ms - first.process.cpu_ms) / 1000 / (last_at - first_at)
        return found

    def _subtask(self, slot: SlotId, newest: OperatorMetrics) -> SubtaskRates:
        (first_at, first), (last_at, last) = self._seen[slot][0], self._seen[slot][-1]
        counts = newest.records_in, newest.records_out
        span_s = last_at - first_at
        if span_s <= 0:
            return SubtaskRates(slot, *counts, None, None, None, None, None)
        before = _counts(first, newest.uid, newest.subtask)
        return SubtaskRates(
            slot,
            *counts,
            in_per_s=(newest.records_in - before.records_in) / span_s,
            out_per_s=(newest.records_out - before.records_out) / span_s,
            bytes_in_per_s=(newest.bytes_in - before.bytes_in) / span_s,
            bytes_out_per_s=(newest.bytes_out - before.bytes_out) / span_s,
            load=_load(first, last),
        )


def _sum(subtasks: list[SubtaskRates]) -> OperatorRates:
    ins = [rates.in_per_s for rates in subtasks if rates.in_per_s is not None]
    outs = [rates.out_per_s for rates in subtasks if rates.out_per_s is not None]
    loads = [rates.load for rates in subtasks if rates.load is not None]
    return OperatorRates(
        records_in=sum(rates.records_in for rates in subtasks),
        records_out=sum(rates.records_out for rates in subtasks),
        in_per_s=sum(ins) if ins else None,
        out_per_s=sum(outs) if outs else None,
        busy=sum(load.busy for load in loads) / len(loads) if loads else None,
        idle=sum(load.idle for load in loads) / len(loads) if loads else None,
        backpressured=sum(load.backpressured for load in loads) / len(loads) if loads else None,
    )


def _counts(heartbeat: Heartbeat, uid: str, subtask: int) -> OperatorMetrics:
    for metrics in heartbeat.operators:
        if metrics.uid == uid and metrics.subtask == subtask:
            return metrics
    return OperatorMetrics(uid, subtask, 0, 0)  # the first heartbeat may come before the operators are built


def _load(first: Heartbeat, last: Heartbeat) -> Load | None:
    busy, idle = last.busy_ms - first.busy_ms, last.idle_ms - first.idle_ms
    backpressured = last.backpressured_ms - first.backpressured_ms
    whole = busy + idle + backpressured
    return None if whole <= 0 else Load(busy / whole, idle / whole, backpressured / whole)
