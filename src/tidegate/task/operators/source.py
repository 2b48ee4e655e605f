"""A source's subtask: polls the reader, keeps the splits' positions. Executor; the task's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.batch import Batch, Origins
from tidegate.connectors.contract import Polled, ReaderContext, Source, SourceReader, Split
from tidegate.connectors.split_check import kept_splits
from tidegate.errors import ConfigurationError
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.ids import CheckpointId
from tidegate.storage.metadata import SplitState
from tidegate.task.operators.base import OperatorFailed, OperatorSnapshot, RunningOperator
from tidegate.task.operators.checkpointed import keeper_for

if TYPE_CHECKING:
    from tidegate.graph.plan import PlannedOperator
    from tidegate.wire.control import SubtaskRestore


class SourceOperator(RunningOperator):
    """Reads until every split has finished; then it stays, so that no checkpoint ever meets a missing task."""

    def __init__(self, planned: PlannedOperator, subtask: int, source: Source, context: ReaderContext) -> None:
        super().__init__(planned, subtask)
        self._source = source
        self._context = context
        self._reader: SourceReader | None = None  #: from begin to close
        self._done: list[SplitState] = []  #: finished before this attempt; kept, so that they are never read again
        self.exhausted = False  #: every split has finished

    def begin(self, incarnation: str) -> None:
        self._reader = self._source.reader(self._context)
        self.keeper = keeper_for(self._reader)

    def open(self, restore: SubtaskRestore | None) -> None:
        super().open(restore)
        assert self._reader is not None
        splits = [] if restore is None else restore.splits
        self._done = [split for split in splits if split.finished]
        unfinished = [Split(split.id, split.position) for split in splits if not split.finished]
        if unfinished:
            self._reader.add_splits(unfinished)
        self.exhausted = not unfinished and not self._reader.finds_splits

    def poll(self, deadline: float) -> bool:
        """Emit the next records, if there are any by the deadline."""
        reader = self._reader
        assert reader is not None
        side: dict[str, list[Any]] = {}
        origins: Origins | None = None
        try:
            polled = reader.poll(deadline)
            if polled is None:
                self.exhausted = not reader.finds_splits and all(split.finished for split in reader.splits())
                return False
            if isinstance(polled, Polled):
                if polled.origins is not None:
                    open_splits = frozenset(split.id for split in reader.splits() if not split.finished)
                    origins = Origins(open_splits, polled.origins)
                side = polled.side
            batch = self._batch_of(polled.records if isinstance(polled, Polled) else polled)
            batch.origins = origins
        except Exception as error:
            raise OperatorFailed(self, error) from error
        if len(batch):
            self.emit(batch)
        for tag, rows in side.items():
            if tag in self.planned.operator.outputs and rows:
                self.emit_to(tag, Batch(self.planned.operator.outputs[tag], rows=self._own(tag, rows)))
        return True

    def snapshot_sync(self, checkpoint: CheckpointId) -> OperatorSnapshot:
        assert self._reader is not None
        # Positions are *after* the last record that poll returned, and every polled record has been emitted.
        try:
            splits = kept_splits(self._reader.snapshot(checkpoint), self._reader)
        except ConfigurationError as error:  # no checkpoint of this job would ever be complete
            raise OperatorFailed(self, error, checkpoint) from error
        snapshot = super().snapshot_sync(checkpoint)
        snapshot.splits = [*self._done, *splits]
        return snapshot

    def notify_complete(self, checkpoint: CheckpointId) -> None:
        assert self._reader is not None
        self._reader.notify_complete(checkpoint)

    def own_metrics(self) -> Mapping[str, float]:
        return {} if self._reader is None else self._reader.metrics()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _batch_of(self, records: Any) -> Batch:
        if isinstance(records, pa.RecordBatch):
            return Batch(self.output_type, columns=self.output_type.conformed(records))
        return Batch(self.output_type, rows=self._own(MAIN_OUTPUT, records))

    def _own(self, tag: str, rows: list[Any]) -> list[Any]:
        """The reader may still hold what it has returned, and change it."""
        copy = None if self._source.makes_new_records else self.copiers.get(tag)
        return rows if copy is None else list(map(copy, rows))
