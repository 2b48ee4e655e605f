"""Completing checkpoints in storage: metadata, then the log record, then deleting what is no longer retained. Driver.

Runs on one background thread. The log record is the commit point: before it nothing counts, after it everything does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tidegate.coordinator.driver_commits import commit_on_driver
from tidegate.errors import StorageError, Superseded
from tidegate.graph.plan import JobPlan
from tidegate.graph.specs import keys_of, user_function_of
from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.ports import CrashPoints
from tidegate.protocol.checkpoint_events import Purpose
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.protocol.shared_state import SharedFile
from tidegate.shown import shown_error
from tidegate.state.broadcast import broadcast_states
from tidegate.state.declarations import declared_states
from tidegate.storage.anywhere import folder_of
from tidegate.storage.checkpoints import load_checkpoint, pointer_to, store_checkpoint
from tidegate.storage.log import CheckpointPointer, JobLog, LogRecord
from tidegate.storage.metadata import CheckpointMetadata, OperatorInfo, SlotSnapshot, StateInfo
from tidegate.storage.paths import METADATA_NAME, JobPaths
from tidegate.storage.retention import delete_checkpoint, plan_retention
from tidegate.storage.savepoint_format import store_savepoint
from tidegate.storage.short_log import ShortLog
from tidegate.storage.store import ObjectStore
from tidegate.storage.sweep import OpenWork, sweep
from tidegate.wire.control import SavepointOrder

log = logging.getLogger("tidegate.coordinator")

LOG_TRIES = 5
FIRST_RETRY_S = 0.1


class LogInDoubt(StorageError):
    """Nobody knows whether the record is in the log. Only reading it again, as a new generation, can tell."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    size_bytes: int
    uri: str
    logged: LoggedCheckpoint | None = None  #: None for a plain savepoint: it has no record, and commits nothing
    oldest_retained: CheckpointId | None = None  #: None for a savepoint, after which the same are retained as before


@dataclass(slots=True)
class CheckpointRecorder:
    """The only writer of a job's log in this driver."""

    store: ObjectStore
    paths: JobPaths
    log: JobLog
    plan: JobPlan
    keep: int
    crash_points: CrashPoints
    wall_clock: Callable[[], float]
    sleep: Callable[[float], None]
    why: str = ""  #: the job was told to end; noted with its end
    _dropped: list[CheckpointPointer] = field(default_factory=list)
    _short_log: ShortLog = field(init=False)

    def __post_init__(self) -> None:
        self._short_log = ShortLog(self.store, self.paths, self.log)

    def complete(
        self,
        attempt: AttemptId,
        checkpoint: CheckpointId,
        purpose: Purpose,
        snapshots: Mapping[SlotId, SlotSnapshot],
        triggered_at: float,
        order: SavepointOrder | None = None,
    ) -> StoredCheckpoint:
        """`order`: it is a savepoint, which is in the log only if it is that of a stop. Any other is stored after a
        checkpoint that stands there.

        :raises StorageError: nothing is in the log. :raises LogInDoubt: :raises Superseded:
        """
        self._settle()
        metadata = CheckpointMetadata(
            job=self.plan.job,
            checkpoint=checkpoint,
            generation=attempt.generation,
            attempt=attempt.number,
            triggered_at=triggered_at,
            completed_at=self.wall_clock(),
            operators=operator_infos(self.plan),
            slots=[snapshots[slot] for slot in sorted(snapshots)],
            final=purpose in (Purpose.FINAL, Purpose.DRAIN),
        )
        # 5a. the metadata: nobody looks for it yet
        self.crash_points.reach("driver.before-metadata", None, checkpoint)
        if order is None:
            pointer = store_checkpoint(self.store, self.paths, metadata)
        else:
            if purpose is not Purpose.SAVEPOINT:
                self._note(checkpoint, order)
            pointer = self._store_savepoint(metadata, purpose, order)
        if purpose is Purpose.SAVEPOINT:
            self.crash_points.reach("driver.savepoint-stored", None, checkpoint)
            return StoredCheckpoint(pointer.size_bytes, folder_of(pointer.metadata_path))
        # 5b. the log record: the commit point
        self.crash_points.reach("driver.before-log", None, checkpoint)
        last = self.log.last
        assert last is not None
        stop = purpose in (Purpose.SUSPEND, Purpose.DRAIN)
        dropped: list[CheckpointPointer]
        if stop:
            kept, dropped = [*last.retained, pointer], []  # the user may want to go back to before the savepoint
        else:
            kept, dropped = plan_retention([*last.retained, pointer], self.keep)
        try:
            self._append(self.log.completed(pointer, kept, self.wall_clock(), stop=stop))
        except Superseded:
            newest = self.log.read_newest()
            if order is not None and newest is not None and newest.open_savepoint == order.folder:
                self.discard_savepoint(order.folder)  # the job continued without it
            raise
        self.crash_points.reach("driver.after-log", None, checkpoint)
        self._dropped += dropped
        logged = self.log.latest_logged()
        self._commit_on_driver(logged, metadata)
        # A driver that was stopped here may find that the job was started from an older checkpoint: its slots must not be
        # told to commit what belongs to nobody any more.
        self._check_held()
        place = self.store.uri(pointer.metadata_path)
        oldest = CheckpointId(min(each.id for each in kept))
        return StoredCheckpoint(pointer.size_bytes, folder_of(place) if order is not None else place, logged, oldest)

    def _store_savepoint(
        self, metadata: CheckpointMetadata, purpose: Purpose, order: SavepointOrder
    ) -> CheckpointPointer:
        stopped = {Purpose.SUSPEND: "suspend", Purpose.DRAIN: "drain"}.get(purpose)
        half = partial(self.crash_points.reach, "driver.tables-stored", None, metadata.checkpoint)
        data = store_savepoint(self.store, order.folder, metadata, format=order.format, stopped=stopped, half=half)
        return pointer_to(f"{order.folder}/{METADATA_NAME}", data, metadata, owned=False)

    def _note(self, checkpoint: CheckpointId, order: SavepointOrder) -> None:
        """If this driver dies before the record of the stop stands, the next one discards the savepoint.

        :raises StorageError: the savepoint is not taken, and the job continues: `_settle` sees to the record.
        """
        try:
            self._append(self.log.savepoint(checkpoint, order.folder, self.wall_clock()))
        except LogInDoubt as error:
            raise StorageError(str(error)) from error

    def _settle(self) -> None:
        """A record of `_note` may be in doubt: nothing can follow it until it is not."""
        if self.log.in_doubt is not None:
            self._append(self.log.in_doubt)

    def discard_savepoint(self, folder: str) -> None:
        """One that was given up: nothing of it may look like a savepoint."""
        try:
            self.store.delete(f"{folder}/{METADATA_NAME}")
            self.store.delete_many(self.store.list(f"{folder}/"))
        except Exception as error:  # cleaning up never ends a job
            log.warning("parts of a savepoint that was given up stay in %s: %s", folder, error)

    def finish(self) -> None:
        self._settle()
        self.crash_points.reach("driver.before-finished")
        self._append(self.log.finished(self.wall_clock(), self.why))
        self.crash_points.reach("driver.after-finished")

    def cancel(self, keep: bool = True) -> tuple[int, ...]:
        """Without `keep` the checkpoints go with the job; gives the ids of those."""
        last = self.log.last
        assert last is not None
        self._append(self.log.canceled(self.wall_clock(), keep, self.why))
        if keep:
            return ()
        self._dropped += [pointer for pointer in last.retained if pointer.owned]
        return self.delete_dropped()

    def fail(self, reason: str, never_ran: bool = False) -> None:
        self._append(self.log.failed(self.wall_clock(), reason, never_ran))

    def append(self, record: LogRecord) -> None:
        """A record of another kind. :raises LogInDoubt: :raises Superseded:"""
        self._append(record)

    def delete_dropped(self) -> tuple[int, ...]:
        """After the record that dropped them; gives their ids. Trouble is logged; a later sweep finds the files then."""
        newest = self.log.last
        assert newest is not None
        self._short_log.shorten()
        if not self._dropped or not self._may_delete():
            return ()
        deleted = tuple(pointer.id for pointer in self._dropped)
        while self._dropped:
            pointer = self._dropped.pop(0)
            try:
                metadata = self._readable(pointer)
                for failure in delete_checkpoint(self.store, self.paths, pointer, metadata, newest).failures:
                    log.warning("files of checkpoint %d were not deleted: %s", pointer.id, failure)
            except Exception as error:
                log.warning("files of checkpoint %d were not deleted: %s", pointer.id, shown_error(error))
        return deleted

    def _readable(self, pointer: CheckpointPointer) -> CheckpointMetadata | None:
        try:
            return load_checkpoint(self.store, pointer)
        except StorageError:
            return None

    def delete_files(self, paths: list[str]) -> None:
        """Files of keyed state that no checkpoint needs any more. Trouble as above."""
        if not paths or not self._may_delete():
            return
        try:
            self.store.delete_many(paths)
        except Exception as error:
            log.warning("%d files that no checkpoint needs were not all deleted: %s", len(paths), error)

    def _may_delete(self) -> bool:
        """Not when another driver holds the job: somebody may have named a dropped checkpoint to it, to start from."""
        try:
            self.log.check_held()
        except (StorageError, Superseded) as error:
            log.warning("what no checkpoint of this driver needs is not deleted: %s", error)
            return False
        return True

    def sweep(self, open_work: OpenWork) -> None:
        """Remove what killed uploads and given-up checkpoints have left. Trouble is logged; a later sweep tries again."""
        try:
            swept = sweep(self.store, self.paths, self.log, open_work)
        except Exception as error:
            log.warning("what was left behind in storage was not removed: %s", error)
            return
        if swept:
            log.info("%d files that nobody refers to were removed from storage, %s first", len(swept), swept[0])

    def _commit_on_driver(self, logged: LoggedCheckpoint, metadata: CheckpointMetadata) -> None:
        """Sinks with one log for all subtasks. The checkpoint counts already: if this fails, the next attempt does it.

        :raises Superseded: nothing was committed since another driver holds the job.
        """
        delay = FIRST_RETRY_S
        for tries_left in reversed(range(LOG_TRIES)):
            try:
                commit_on_driver(self.plan, logged, metadata, restored=False, check_held=self.log.check_held)
                return
            except Superseded:
                raise
            except Exception as error:
                if not tries_left:
                    raise LogInDoubt(f"checkpoint {metadata.checkpoint} is complete, but {error}") from error
                self.sleep(delay)
                delay *= 2

    def _check_held(self) -> None:
        """:raises Superseded: Storage that does not answer is not a reason to stop: the record is in the log."""
        try:
            self.log.check_held()
        except StorageError as error:
            log.warning("whether another driver holds the job was not to be seen: %s", error)

    def _append(self, record: LogRecord) -> None:
        delay = FIRST_RETRY_S
        for tries_left in reversed(range(LOG_TRIES)):
            try:
                self.log.append(record)
                return
            except StorageError as error:
                if not tries_left:
                    raise LogInDoubt(
                        f"the job's log could not be written ({error}); whether record {record.sequence} is in it is "
                        "settled by the next attempt"
                    ) from error
                self.sleep(delay)
                delay *= 2


def shared_files(snapshots: Iterable[SlotSnapshot]) -> list[SharedFile]:
    """What the registry of shared state must know of them."""
    return [
        SharedFile(file.path, file.size, CheckpointId(file.checkpoint))
        for snapshot in snapshots
        for state in snapshot.states
        for file in state.files
    ]


def operator_infos(plan: JobPlan) -> list[OperatorInfo]:
    """The operators as the metadata describes them."""
    infos = []
    for planned in plan.operators:
        keys = keys_of(planned.operator.spec)
        function = user_function_of(planned.operator.spec)
        states = [StateInfo(name, d.kind, d.type_name) for name, d in declared_states(function).items()]
        states += [StateInfo(name, "operator-broadcast", d.type_name) for name, d in broadcast_states(function).items()]
        infos.append(
            OperatorInfo(
                uid=planned.uid,
                name=planned.operator.name,
                parallelism=planned.parallelism,
                max_parallelism=planned.max_parallelism,
                key_type=keys[0].key_type().name if keys else None,
                states=states,
            )
        )
    return infos
