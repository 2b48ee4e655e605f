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
from tidegate.ports import ControlPort, CrashPoints, SnapshotStorage
from tidegate.shown import shown_error
from tidegate.state.backend import Section
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


@dataclass(slots=True, eq=False)
class Upload:
    """A snapshot on its way to storage."""

    checkpoint: CheckpointId
    operators: list[OperatorSnapshot]
    timings: SnapshotTimings
    in_flight: Iterable[Frame] = ()
    order: SavepointOrder | None = None  #: it is part of a savepoint
    wanted: bool = True  #: False: the coordinator has given it up, and it is not worth storing
    over: bool = False


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

    def store_and_acknowledge(self, upload: Upload) -> None:
        checkpoint, operators, started = upload.checkpoint, upload.operators, self.clock()
        try:
            if not upload.wanted:
                return
            self.crash_points.reach("slot.before-store", self.slot, checkpoint)
            snapshot = self._store(checkpoint, operators, upload.in_flight, upload.order)
        except Exception as error:  # the job continues; the coordinator decides what a failed snapshot means
            self.control.send(Decline(checkpoint, shown_error(error)))
            return
        finally:
            upload.over = True
            self.let_go(operators)
        self.crash_points.reach("slot.before-ack", self.slot, checkpoint)
        timings = msgspec.structs.replace(
            upload.timings,
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

    def let_go(self, operators: Iterable[OperatorSnapshot]) -> None:
        """They were stored, or will not be. Any thread."""
        for operator in operators:
            if operator.keyed is not None and operator.uid in self.files:
                self.files[operator.uid].let_go(operator.keyed)
            elif operator.keyed is not None:
                operator.keyed.release()

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
