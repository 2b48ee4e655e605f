"""A source that never runs ahead of the checkpoints: on a slow machine as many of them complete as on a fast one.

Without it, a stream that is paced by time alone could end before the crash that a test waits for. How far it has come is
known without looking: at most `ahead` records of each split for each checkpoint, and `SURPLUS` more of each. A reader that
asks how many are `wanted` (the generator) keeps to that in each poll; any other returns few at a time.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle

from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.ids import CheckpointId

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the executors cannot import the tests


SURPLUS = 5  #: records of each split: what the last poll before a checkpoint may bring too many


@dataclasses.dataclass(frozen=True)
class Hold:
    """Until the file `let_go` exists, an attempt reads at most `records` of each split. So a job cannot come to its end
    before a test has done with it what it wants to do."""

    records: int
    let_go: str


class Paced(Source):
    """At most `ahead` records of each split, and as many again for each checkpoint that completes."""

    def __init__(self, source: Source, ahead: int, hold: Hold | None = None) -> None:
        self.source = source
        self.ahead = ahead
        self.hold = hold
        self.bounded = source.bounded
        self.record_type = source.record_type

    def discover_splits(self, parallelism: int) -> list[Split]:
        return self.source.discover_splits(parallelism)

    def reader(self, context: ReaderContext) -> SourceReader:
        return _PacedReader(self.source, self.ahead, self.hold, context)


class _PacedReader(SourceReader):
    def __init__(self, source: Source, ahead: int, hold: Hold | None, context: ReaderContext) -> None:
        # A generator that has fallen behind its rate would make up for it in one poll, and reach the end with it.
        self._reader = source.reader(
            dataclasses.replace(context, wanted=lambda: max(1, min(context.wanted(), self._allowed())))
        )
        self._ahead = ahead
        self._hold = hold
        self._context = context
        self._splits = 0
        self._checkpoints = 0
        self._read = 0

    def _allowed(self) -> int:
        """Records of all splits, now."""
        limit = self._ahead * (1 + self._checkpoints)
        if self._hold is not None and limit > self._hold.records and not os.path.exists(self._hold.let_go):
            limit = self._hold.records
        return limit * self._splits - self._read

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._splits += len(splits)
        self._reader.add_splits(splits)

    def poll(self, deadline: float) -> Any:
        if self._allowed() <= 0 and not all(split.finished for split in self._reader.splits()):
            self._context.sleep(max(0.0, min(deadline - self._context.clock(), 0.02)))
            return None
        records = self._reader.poll(deadline)
        self._read += 0 if records is None else len(records)
        return records

    def splits(self) -> list[Split]:
        return self._reader.splits()

    def notify_complete(self, checkpoint: CheckpointId) -> None:
        self._checkpoints += 1

    def close(self) -> None:
        self._reader.close()
