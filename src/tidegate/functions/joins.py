"""Joins of two keyed streams by event time: what each record does to the state of its key. Executor; the task's thread.

A join is told of records and of timers (task/operators/keyed_join.py), keeps state, and gives pairs with the time of each.
Its two sides are 0 (the left) and 1 (the right). A record that is late, at or below the watermark, is not joined: it goes to
the late records of its side.

State is pruned by the watermark: what no record that is still to come can meet is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tidegate.state.declarations import MapState
from tidegate.types import RecordType, stored_annotation

SIDES = ("left", "right")
LATE = ("late left", "late right")  #: the side outputs of late records
LATE_RECORDS = "late_records"  #: the counter of those that nobody reads


class JoinSide(Protocol):
    """What a join may do for the current key."""

    watermark: int

    def pair(self, left: Any, right: Any, timestamp: int) -> None:
        """Let a pair leave. Without a partner the other is None."""

    def set_timer(self, timestamp: int) -> None: ...


class KeyedJoin:
    """State and meaning of a join. One instance for each subtask; declared state is that of the current key."""

    hold_ms: int = 0  #: by so much the watermark that leaves stays below the one that has come
    takes_late_right: bool = False  #: late records of the right side are of use
    has_column_form: bool = False  #: functions/column_joins.py

    def record(self, side: int, row: Any, timestamp: int, join: JoinSide) -> None:
        raise NotImplementedError

    def on_timer(self, timestamp: int, join: JoinSide) -> None:
        """The watermark has come to `timestamp`."""
        raise NotImplementedError


def interval_join(left: RecordType, right: RecordType, lower_ms: int, upper_ms: int, how: str) -> KeyedJoin:
    """Pairs with `lower <= right.time - left.time <= upper`, each with the later of both times.

    A left record waits until the watermark is at its time + upper, a right one until it is at its time - lower. One that has
    met nobody leaves then, where `how` wants it, with its own time; so the watermark that leaves is held back by as much.
    """
    left_type, right_type = stored_annotation(left), stored_annotation(right)
    keeps_left, keeps_right = how in ("left", "full"), how in ("right", "full")

    class IntervalJoin(KeyedJoin):
        left = MapState(int, list[tuple[bool, left_type]])  # type: ignore[valid-type]
        right = MapState(int, list[tuple[bool, right_type]])  # type: ignore[valid-type]
        has_column_form = True
        hold_ms = max(0, upper_ms if keeps_left else 0, -lower_ms if keeps_right else 0)

        def record(self, side: int, row: Any, timestamp: int, join: JoinSide) -> None:
            own, other = (self.right, self.left) if side else (self.left, self.right)
            first, last = (
                (timestamp - upper_ms, timestamp - lower_ms) if side else (timestamp + lower_ms, timestamp + upper_ms)
            )
            marks = keeps_left if side else keeps_right  # whether the other side wants to know that it was met
            met = False
            for at in [at for at in other.keys() if first <= at <= last]:  # noqa: SIM118 - a state, not a dict
                entries = other[at]
                for _, partner in entries:
                    left, right = (partner, row) if side else (row, partner)
                    join.pair(left, right, max(timestamp, at))
                met = True
                if marks and not all(was_met for was_met, _ in entries):
                    other[at] = [(True, partner) for _, partner in entries]
            until = timestamp - lower_ms if side else timestamp + upper_ms
            if until > join.watermark:
                own[timestamp] = [*(own.get(timestamp) or []), (met, row)]
                join.set_timer(until)
            elif not met and (keeps_right if side else keeps_left):
                left, right = (None, row) if side else (row, None)
                join.pair(left, right, timestamp)

        def on_timer(self, timestamp: int, join: JoinSide) -> None:
            at = timestamp - upper_ms
            for was_met, row in self.left.get(at) or []:
                if keeps_left and not was_met:
                    join.pair(row, None, at)
            self.left.remove(at)
            at = timestamp + lower_ms
            for was_met, row in self.right.get(at) or []:
                if keeps_right and not was_met:
                    join.pair(None, row, at)
            self.right.remove(at)

    return IntervalJoin()


def temporal_join(left: RecordType, right: RecordType, how: str, version: Callable[[Any], int] | None) -> KeyedJoin:
    """Each left record with the version of its key that was valid at its time: the newest whose time is not above it.

    A left record waits until the watermark has come to its time, so that all versions up to then are there. Of the versions
    up to the watermark the newest is kept. A late version is of use to those who still wait, and counts.
    """
    left_type, right_type = stored_annotation(left), stored_annotation(right)

    class TemporalJoin(KeyedJoin):
        waiting = MapState(int, list[left_type])  # type: ignore[valid-type]
        versions = MapState(int, right_type)
        takes_late_right = True

        def record(self, side: int, row: Any, timestamp: int, join: JoinSide) -> None:
            if side == 0:
                self.waiting[timestamp] = [*(self.waiting.get(timestamp) or []), row]
                join.set_timer(timestamp)
                return
            at = timestamp if version is None else version(row)
            self.versions[at] = row
            if at > join.watermark:
                join.set_timer(at)
            else:
                self._prune(join.watermark)

        def on_timer(self, timestamp: int, join: JoinSide) -> None:
            newest = self._prune(timestamp)
            partner = None if newest is None else self.versions[newest]
            for row in self.waiting.get(timestamp) or []:
                if newest is not None or how == "left":
                    join.pair(row, partner, timestamp)
            self.waiting.remove(timestamp)

        def _prune(self, up_to: int) -> int | None:
            """Keep the newest version up to then, and give its time."""
            passed = [at for at in self.versions.keys() if at <= up_to]  # noqa: SIM118 - a state, not a dict
            newest = max(passed, default=None)
            for at in passed:
                if at != newest:
                    self.versions.remove(at)
            return newest

    return TemporalJoin()
