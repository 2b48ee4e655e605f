"""The asynchronous part of a slot's snapshot: serialise, store, acknowledge. Executor; a background thread.

step 4b  the synchronous part is a set of views on the state, taken in the task's thread (cheap: copy-on-write)
step 4c  here: the views are written to ONE file for the slot (tiny ones travel inline); with incremental checkpoints keyed
         state goes into files of its own, of which only new ones are stored (task/keyed_files.py)
step 4d  here, and only after the file is stored: the acknowledgement

For a savepoint the files go into its folder, in the canonical format as Parquet tables (task/savepoints.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import msgspec
import pyarrow as pa

from tidegate.graph.plan import JobPlan
from tidegate.ids import CheckpointId, SlotId
from tidegate.ports import Background, ControlPort, CrashPoints, SnapshotStorage
from tidegate.shown import shown_error
from tidegate.state.backend import KeyedSnapshot, Section
from tidegate.storage.metadata import FileRef, SectionRef, SlotSnapshot, SubtaskSnapshot
from tidegate.storage.savepoint_format import CANONICAL, NATIVE
from tidegate.storage.snapshot_file import SnapshotFileWriter, carry_snapshot, store_snapshot
from tidegate.storage.state_files import StateFiles
from tidegate.task.in_flight import in_flight_sections, store_parts
from tidegate.task.keyed_files import SlotFiles
from tidegate.task.operators.base import OperatorSnapshot
from tidegate.task.savepoints import native_path, store_files, store_tables
from tidegate.wire.control import Acknowledge, Decline, SavepointOrder, SnapshotTimings, Unsendable
from tidegate.wire.frame import Frame

MAX_ORDERS = 64  #: far more than can be under way


@dataclass(slots=True)
class SnapshotUploader:
    """Turns synchronous snapshots into acknowledgements."""

    slot: SlotId
    plan: JobPlan
    storage: SnapshotStorage
    path_of: Callable[[CheckpointId], str]
    part_path_of: Callable[[CheckpointId, int], str]  #: of a part of many records in flight
    control: ControlPort
    crash_points: CrashPoints
    clock: Callable[[], float]
    inline_limit_bytes: int
    state_limit_bytes: int | None = None  #: None: there is a storage; else all state travels with the acknowledgement
    files: SlotFiles = field(default_factory=SlotFiles)
    aborted: set[CheckpointId] = field(default_factory=set)  #: given up by the coordinator; not worth storing

    def store_and_acknowledge(
        self,
        checkpoint: CheckpointId,
        operators: list[OperatorSnapshot],
        timings: SnapshotTimings,
        in_flight: Iterable[Frame],
        order: SavepointOrder | None = None,
    ) -> None:
        """`order`: the snapshot is part of a savepoint."""
        started = self.clock()
        try:
            if checkpoint in self.aborted:
                return
            self.crash_points.reach("slot.before-store", self.slot, checkpoint)
            snapshot = self._store(checkpoint, operators, in_flight, order)
        except Exception as error:  # the job continues; the coordinator decides what a failed snapshot means
            self.control.send(Decline(checkpoint, shown_error(error)))
            return
        finally:
            for operator in operators:
                if operator.keyed is not None:
                    self._let_go(operator.uid, operator.keyed)
        self.crash_points.reach("slot.before-ack", self.slot, checkpoint)
        timings = msgspec.structs.replace(
            timings,
            async_s=self.clock() - started,
            state_bytes=snapshot.size_bytes(),
            added_bytes=snapshot.added_bytes(checkpoint),
        )
        try:
            self.control.send(Acknowledge(checkpoint, snapshot, timings))
        except Unsendable as error:
            self.control.send(Decline(checkpoint, _why_unsendable(operators, error)))
            return
        self.crash_points.reach("slot.after-ack", self.slot, checkpoint)

    def _let_go(self, uid: str, keyed: KeyedSnapshot) -> None:
        if uid in self.files:
            self.files[uid].let_go(keyed)
        else:
            keyed.release()

    def _store(
        self,
        checkpoint: CheckpointId,
        operators: list[OperatorSnapshot],
        in_flight: Iterable[Frame],
        order: SavepointOrder | None,
    ) -> SlotSnapshot:
        shared = self.files if order is None else SlotFiles()  # a savepoint owns its files, and has no local copies
        shared.copies.take(checkpoint)
        states = self._store_state_files(checkpoint, operators, order)
        under_way = in_flight_sections(self.plan, in_flight)
        state = _state_sections(operators, {state.uid for state in states})
        tables: list[FileRef] = []
        if order is not None and order.format == CANONICAL:
            half = partial(self.crash_points.reach, "slot.table-stored", self.slot, checkpoint)
            tables = store_tables(self.storage, order, self.slot, self.plan, chain(under_way, state), half)
            file = FileRef(size=0)
        elif order is not None:
            written = _written(SnapshotFileWriter(), chain(under_way, state))
            file = store_snapshot(self.storage, native_path(order, self.slot), *written, self.inline_limit_bytes)
        elif self.state_limit_bytes is not None:
            file = carry_snapshot(*_written(SnapshotFileWriter(), chain(under_way, state)), self.state_limit_bytes)
        else:
            storage = shared.copies.around(self.storage)
            tables, writer = store_parts(storage, lambda part: self.part_path_of(checkpoint, part), under_way)
            file = store_snapshot(storage, self.path_of(checkpoint), *_written(writer, state), self.inline_limit_bytes)
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
        return SlotSnapshot(self.slot.layer, self.slot.index, file, subtasks, tables, states)

    def _store_state_files(
        self, checkpoint: CheckpointId, operators: list[OperatorSnapshot], order: SavepointOrder | None
    ) -> list[StateFiles]:
        """Keyed state that is kept as files, apart from the slot's file."""
        if order is None:
            return [
                self.files[operator.uid].store(checkpoint, operator.keyed)
                for operator in operators
                if operator.keyed is not None and operator.uid in self.files
            ]
        if order.format == NATIVE:
            return store_files(self.storage, order, self.slot, self.plan, checkpoint, operators)
        return []


class SnapshotOrders:
    """Snapshots that wait to hear what they are for. Task's thread.

    The trigger says where a savepoint goes; it comes over the control connection, the barrier with the records. So a
    snapshot may be taken before the slot knows. It is stored as soon as the trigger, or an abort, has come.
    """

    def __init__(self, uploads: Background, uploader: SnapshotUploader) -> None:
        self._uploads = uploads
        self._uploader = uploader
        self._orders: dict[CheckpointId, SavepointOrder | None] = {}
        self._waiting: dict[CheckpointId, tuple[list[OperatorSnapshot], SnapshotTimings, Iterable[Frame]]] = {}

    def heard(self, checkpoint: CheckpointId, order: SavepointOrder | None) -> None:
        """The trigger has come."""
        self._orders.setdefault(checkpoint, order)
        if checkpoint in self._waiting:
            self.store(checkpoint, *self._waiting.pop(checkpoint))
        while len(self._orders) > MAX_ORDERS:  # of checkpoints that were given up before a snapshot was taken
            del self._orders[min(self._orders)]

    def aborted(self, checkpoint: CheckpointId) -> None:
        """It is not worth storing; a snapshot that waits for its trigger is let go."""
        self._uploader.aborted.add(checkpoint)
        self.heard(checkpoint, None)

    def forget_before(self, checkpoint: CheckpointId) -> None:
        """Nobody stores older ones any more."""
        self._uploader.aborted -= {id for id in self._uploader.aborted if id < checkpoint}

    def store(
        self, checkpoint: CheckpointId, parts: list[OperatorSnapshot], timings: SnapshotTimings, frames: Iterable[Frame]
    ) -> None:
        if checkpoint not in self._orders:
            self._waiting[checkpoint] = parts, timings, frames
            return
        order = self._orders.pop(checkpoint)
        self._uploads.submit(lambda: self._uploader.store_and_acknowledge(checkpoint, parts, timings, frames, order))


def _why_unsendable(operators: list[OperatorSnapshot], error: Unsendable) -> str:
    """With what each operator of the slot has given: one of them is why."""
    parts = [
        f"{operator.uid!r}: {len(operator.splits)} splits, "
        f"{sum(len(committable.payload) for committable in operator.committables)} bytes that wait to be committed"
        for operator in operators
    ]
    return (
        f"the slot's part of the checkpoint cannot be sent: {error}. It holds, of {'; '.join(parts)}. Positions of splits must "
        "be values that JSON has; where it is too much, give these operators a higher parallelism"
    )


def _written(writer: SnapshotFileWriter, sections: Iterable[tuple[str, Section]]) -> tuple[pa.Buffer, list[SectionRef]]:
    for uid, section in sections:
        writer.add(uid, *section)
    return writer.finish()


def _state_sections(operators: list[OperatorSnapshot], shared: Collection[str]) -> Iterator[tuple[str, Section]]:
    """The state of the slot's operators, each section with the uid that it belongs to; not what `shared` keeps as files."""
    for operator in operators:
        for part in (None if operator.uid in shared else operator.keyed, operator.operator):
            if part is not None:
                for section in part.sections():
                    yield operator.uid, section
