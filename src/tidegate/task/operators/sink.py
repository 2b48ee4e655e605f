"""A sink's subtask: the writer, and what it has prepared but not yet committed. Executor; the task's thread.

A committable is part of every snapshot from the checkpoint that prepared it until its commit has returned; so whatever
dies in between, the next attempt commits it. Commits themselves run elsewhere (task/committing.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.batch import Batch
from tidegate.connectors.contract import Committer, Sink, SinkWriter, WriterContext
from tidegate.errors import ConfigurationError, ConnectorError, ContractError
from tidegate.ids import CheckpointId
from tidegate.storage.metadata import Committable
from tidegate.task.commit_counts import CommitCounts
from tidegate.task.operators.base import OperatorSnapshot, RunningOperator
from tidegate.task.operators.checkpointed import keeper_for

if TYPE_CHECKING:
    from tidegate.graph.plan import PlannedOperator
    from tidegate.wire.control import SubtaskRestore


#: What may wait for its commit in one subtask: all of it is in every acknowledgement and in the memory of the driver.
MAX_UNCOMMITTED_BYTES = 192 << 20


class SinkOperator(RunningOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, sink: Sink, context: WriterContext) -> None:
        super().__init__(planned, subtask)
        self._sink = sink
        self._context = context
        self._writer: SinkWriter | None = None  #: from begin to close
        self.committer: Committer | None = None
        self.commit_counts = CommitCounts()
        self._uncommitted: list[Committable] = []  #: in order of checkpoint

    def begin(self, incarnation: str) -> None:
        context = replace(self._context, incarnation=incarnation)
        self._writer = self._sink.writer(context)
        self.keeper = keeper_for(self._writer)
        self.committer = self._sink.committer(context)

    def open(self, restore: SubtaskRestore | None) -> None:
        super().open(restore)
        self._uncommitted = [] if restore is None else list(restore.committables)
        for committable in self._uncommitted:
            if self.committer is None or committable.version > self.committer.version:
                raise ConfigurationError(
                    f"the checkpoint holds prepared data of version {committable.version} for sink {self.uid!r}, which "
                    "this sink cannot commit. Run the release that wrote it once, until its data is committed."
                )

    def process(self, batch: Batch, input_index: int) -> None:
        assert self._writer is not None
        self._writer.write(batch)

    def end_input(self) -> None:
        assert self._writer is not None
        self._writer.end_input()

    def prepare(self, checkpoint: CheckpointId) -> None:
        assert self._writer is not None
        self._writer.flush()
        version = 0 if self.committer is None else self.committer.version
        prepared = self._writer.prepare(checkpoint)
        if prepared and self.committer is None:
            raise ContractError(f"the writer of sink {self.uid!r} prepared data, but the sink has no committer")
        for payload in prepared:
            if type(payload) is not bytes:
                raise ConfigurationError(
                    f"{type(self._writer).__qualname__}.prepare of sink {self.uid!r} returned "
                    f"{type(payload).__qualname__}: each committable must be bytes, which is what a checkpoint keeps. Encode "
                    "it there, and decode it in the committer."
                )
        self._uncommitted += [Committable(self.uid, checkpoint, version, payload) for payload in prepared]
        self._check_room()

    def _check_room(self) -> None:
        """The next attempt commits what the last checkpoint holds before any input flows: so it cannot become more."""
        waiting = sum(len(committable.payload) for committable in self._uncommitted)
        if waiting > MAX_UNCOMMITTED_BYTES:
            epochs = len({committable.checkpoint for committable in self._uncommitted})
            raise ConnectorError(
                f"sink {self.uid!r}, subtask {self.subtask}, holds {waiting} bytes of {epochs} checkpoints that are not "
                f"committed yet, and may hold {MAX_UNCOMMITTED_BYTES}: its outside does not take them, or too slowly (the log "
                "says why). The job restarts and reads on when they are committed. If this comes again, checkpoint more often "
                "or give the sink a higher parallelism."
            )

    def snapshot_sync(self, checkpoint: CheckpointId) -> OperatorSnapshot:
        snapshot = super().snapshot_sync(checkpoint)
        snapshot.committables = list(self._uncommitted)
        return snapshot

    def uncommitted(self, up_to: CheckpointId) -> list[Committable]:
        return [committable for committable in self._uncommitted if committable.checkpoint <= up_to]

    def own_metrics(self) -> Mapping[str, float]:
        if self.committer is None:
            return {}
        return self.commit_counts.metrics() | {"pendingCommittables": len(self._uncommitted)}

    def forget(self, committed: list[Committable]) -> None:
        """Their commit has returned. These very ones: another with the same bytes may have been told to wait."""
        gone = set(map(id, committed))
        self._uncommitted = [committable for committable in self._uncommitted if id(committable) not in gone]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self.committer is not None:
            self.committer.close()
