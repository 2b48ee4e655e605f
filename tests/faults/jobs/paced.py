"""A source that never runs ahead of the checkpoints: on a slow machine as many of them complete as on a fast one.

Without it, a stream that is paced by time alone could end before the crash that a test waits for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle

from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.ids import CheckpointId

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the executors cannot import the tests


class Paced(Source):
    """At most about `ahead` records of each split for each checkpoint that completes; more if one poll brings more."""

    def __init__(self, source: Source, ahead: int) -> None:
        self.source = source
        self.ahead = ahead
        self.bounded = source.bounded
        self.record_type = source.record_type

    def discover_splits(self, parallelism: int) -> list[Split]:
        return self.source.discover_splits(parallelism)

    def reader(self, context: ReaderContext) -> SourceReader:
        return _PacedReader(self.source.reader(context), self.ahead, context)


class _PacedReader(SourceReader):
    def __init__(self, reader: SourceReader, ahead: int, context: ReaderContext) -> None:
        self._reader = reader
        self._ahead = ahead
        self._context = context
        self._allowed = 0

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._ahead *= len(splits)
        self._allowed = self._ahead
        self._reader.add_splits(splits)

    def poll(self, deadline: float) -> Any:
        if self._allowed <= 0 and not all(split.finished for split in self._reader.splits()):
            self._context.sleep(max(0.0, min(deadline - self._context.clock(), 0.02)))
            return None
        records = self._reader.poll(deadline)
        self._allowed -= 0 if records is None else len(records)
        return records

    def splits(self) -> list[Split]:
        return self._reader.splits()

    def notify_complete(self, checkpoint: CheckpointId) -> None:
        self._allowed += self._ahead

    def close(self) -> None:
        self._reader.close()
