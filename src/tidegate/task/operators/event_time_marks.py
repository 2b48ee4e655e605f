"""How far event time had come for each key group: what operators that drop state by event time must know after a restore.

A restored operator continues from the slowest of the old subtasks (coordinator/restoring.py), though the others had gone
further: unaligned checkpoints are taken while records are in flight. For keys of those what the watermark has passed is dropped
already. A record that comes below their mark is late, whatever the restored watermark says: taken, it would meet a part of its
partners, or make a window anew that has fired. Executor; the task's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.functions.checkpointed import CheckpointedFunction, InitializationContext, SnapshotContext
from tidegate.ids import EVENT_TIME_MARKS
from tidegate.protocol.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tidegate.state.key_groups import key_groups

if TYPE_CHECKING:
    from tidegate.state.keys import KeyType

Moments = np.ndarray[Any, Any]


class EventTimeMarks(CheckpointedFunction):
    """Of one operator. `watermark` is what its subtask has come to; the operator keeps it up to date."""

    def __init__(self, key_groups: range, max_parallelism: int) -> None:
        self._own = key_groups
        self._restored = np.full(max_parallelism, MIN_WATERMARK, np.int64)
        self.highest_restored = MIN_WATERMARK  #: of our own key groups
        self.watermark = MIN_WATERMARK

    @property
    def latest(self) -> int:
        """Time has come no further for any of our keys."""
        return max(self.highest_restored, self.watermark)

    @property
    def are_ahead(self) -> bool:
        """Whether some of our keys have come further than event time is now: only for a while after a restore."""
        return self.highest_restored > self.watermark

    def initialize_state(self, ctx: InitializationContext, /) -> None:
        self._stored = ctx.operator_state.union_list_state(EVENT_TIME_MARKS, tuple[int, int, int])
        for start, stop, mark in self._stored.get():
            self._restored[start:stop] = np.maximum(self._restored[start:stop], mark)
        self.highest_restored = int(self._restored[self._own.start : self._own.stop].max())

    def snapshot_state(self, ctx: SnapshotContext, /) -> None:
        """The last watermark says that nothing more comes. Where something does after all, it must not count as late."""
        own = np.maximum(self._restored[self._own.start : self._own.stop], self.watermark)
        starts = np.flatnonzero(np.diff(own, prepend=own[0] - 1 if own[0] > MIN_WATERMARK else own[0] + 1))
        stops = [*starts[1:].tolist(), len(own)]
        runs = [(start, stop, int(own[start])) for start, stop in zip(starts.tolist(), stops, strict=True)]
        offset = self._own.start
        self._stored.set(
            [(offset + a, offset + b, mark) for a, b, mark in runs if MIN_WATERMARK < mark < MAX_WATERMARK]
        )

    def restored(self, groups: Moments) -> Moments:
        """How far time had come for each of these key groups before the restore."""
        return self._restored[groups]

    def of(self, groups: Moments) -> Moments:
        return np.maximum(self._restored[groups], self.watermark)

    def of_keys(self, key_type: KeyType, keys: Sequence[Any]) -> list[int]:
        """Up to which moment records of each of these keys, normalised, are late."""
        if not self.are_ahead:
            return [self.watermark] * len(keys)
        hashes = np.fromiter(map(key_type.hash, keys), np.uint64, len(keys))
        marks: list[int] = self.of(key_groups(hashes, len(self._restored))).tolist()
        return marks
