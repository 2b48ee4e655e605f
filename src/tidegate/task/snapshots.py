"""The asynchronous part of a slot's snapshot: serialise, store, acknowledge. Executor; a background thread.

step 4b  the synchronous part is a set of views on the state, taken in the task's thread (cheap: copy-on-write)
step 4c  here: the views are written to ONE file for the slot (tiny ones travel inline)
step 4d  here, and only after the file is stored: the acknowledgement
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tidegate.graph.plan import JobPlan
from tidegate.ids import CheckpointId, SlotId
from tidegate.storage.metadata import SlotSnapshot, SubtaskSnapshot
from tidegate.storage.snapshot_file import SnapshotFileWriter, store_snapshot
from tidegate.task.in_flight import add_in_flight
from tidegate.task.operators.base import OperatorSnapshot
from tidegate.task.ports import ControlPort, CrashPoints, SnapshotStorage
from tidegate.wire.control import Acknowledge, Decline, SnapshotTimings
from tidegate.wire.frame import Frame


@dataclass(slots=True)
class SnapshotUploader:
    """Turns synchronous snapshots into acknowledgements."""

    slot: SlotId
    plan: JobPlan
    storage: SnapshotStorage
    path_of: Callable[[CheckpointId], str]
    control: ControlPort
    crash_points: CrashPoints
    clock: Callable[[], float]
    inline_limit_bytes: int
    aborted: set[CheckpointId] = field(default_factory=set)  #: given up by the coordinator; not worth storing

    def store_and_acknowledge(
        self,
        checkpoint: CheckpointId,
        operators: list[OperatorSnapshot],
        timings: SnapshotTimings,
        in_flight: list[Frame],
    ) -> None:
        started = self.clock()
        try:
            if checkpoint in self.aborted:
                return
            self.crash_points.reach("slot.before-store", self.slot, checkpoint)
            snapshot = self._store(checkpoint, operators, in_flight)
        except Exception as error:  # the job goes on; the coordinator decides what a failed snapshot means
            self.control.send(Decline(checkpoint, f"{type(error).__name__}: {error}"))
            return
        finally:
            for operator in operators:
                if operator.keyed is not None:
                    operator.keyed.release()
        self.crash_points.reach("slot.before-ack", self.slot, checkpoint)
        self.control.send(
            Acknowledge(
                checkpoint,
                snapshot,
                msgspec.structs.replace(timings, async_s=self.clock() - started, state_bytes=snapshot.file.size),
            )
        )
        self.crash_points.reach("slot.after-ack", self.slot, checkpoint)

    def _store(
        self, checkpoint: CheckpointId, operators: list[OperatorSnapshot], in_flight: list[Frame]
    ) -> SlotSnapshot:
        writer = SnapshotFileWriter()
        add_in_flight(writer, self.plan, in_flight)
        for operator in operators:
            if operator.keyed is not None:
                for state, kind, key_group, batch in operator.keyed.sections():
                    writer.add(operator.uid, state, kind, key_group, batch)
            if operator.operator is not None:
                for state, kind, key_group, batch in operator.operator.sections():
                    writer.add(operator.uid, state, kind, key_group, batch)
        data, sections = writer.finish()
        file = store_snapshot(self.storage, self.path_of(checkpoint), data, sections, self.inline_limit_bytes)
        subtasks = [
            SubtaskSnapshot(
                uid=operator.uid,
                subtask=operator.subtask,
                ended=operator.ended,
                watermark=operator.watermark,
                splits=operator.splits,
                committables=operator.committables,
            )
            for operator in operators
        ]
        return SlotSnapshot(self.slot.layer, self.slot.index, file, subtasks)
