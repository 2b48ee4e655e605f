"""A source's subtask: polls the reader, keeps the splits' positions. Executor; the task's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.batch import Batch
from tidegate.connectors.contract import ReaderContext, Source, Split
from tidegate.ids import CheckpointId
from tidegate.storage.metadata import SplitState
from tidegate.task.operators.base import OperatorFailed, OperatorSnapshot, RunningOperator
from tidegate.task.operators.checkpointed import keeper_for

if TYPE_CHECKING:
    from tidegate.graph.plan import PlannedOperator
    from tidegate.wire.control import SubtaskRestore


class SourceOperator(RunningOperator):
    """Reads until every split has finished; then it stays, so that no checkpoint ever meets a missing task."""

    def __init__(
        self,
        planned: PlannedOperator,
        subtask: int,
        source: Source,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        super().__init__(planned, subtask)
        self._reader = source.reader(ReaderContext(subtask, planned.parallelism, clock, sleep))
        self.keeper = keeper_for(self._reader)
        self._done: list[SplitState] = []  #: finished before this attempt; kept, so that they are never read again
        self.exhausted = False  #: every split has finished

    def open(self, restore: SubtaskRestore | None) -> None:
        super().open(restore)
        splits = [] if restore is None else restore.splits
        self._done = [split for split in splits if split.finished]
        unfinished = [Split(split.id, split.position) for split in splits if not split.finished]
        if unfinished:
            self._reader.add_splits(unfinished)
        self.exhausted = not unfinished

    def poll(self, deadline: float) -> bool:
        """Emit the next records, if there are any by the deadline."""
        try:
            records = self._reader.poll(deadline)
            if records is None:
                self.exhausted = all(split.finished for split in self._reader.splits())
                return False
            batch = self._batch_of(records)
        except Exception as error:
            raise OperatorFailed(self, error) from error
        if len(batch):
            self.emit(batch)
        return True

    def snapshot_sync(self, checkpoint: CheckpointId) -> OperatorSnapshot:
        # Positions are *after* the last record that poll returned, and every polled record has been emitted.
        splits = [SplitState(split.id, split.position, split.finished) for split in self._reader.snapshot(checkpoint)]
        snapshot = super().snapshot_sync(checkpoint)
        snapshot.splits = [*self._done, *splits]
        return snapshot

    def notify_complete(self, checkpoint: CheckpointId) -> None:
        self._reader.notify_complete(checkpoint)

    def close(self) -> None:
        self._reader.close()

    def _batch_of(self, records: Any) -> Batch:
        assert self.output_type is not None
        if isinstance(records, pa.RecordBatch):
            return Batch(self.output_type, columns=records)
        return Batch(self.output_type, rows=records)
