"""The job's log: the one place that decides which checkpoint counts and which driver holds the job. Driver only.

    log/00000000.json   GENERATION 1            every record is created only if absent, and never changed;
    log/00000001.json   CHECKPOINT 1            each has the number after the last one;
    log/00000002.json   GENERATION 2            each record tells all: the newest alone is enough to continue
    log/00000003.json   CHECKPOINT 2            old ones are deleted, those of generations never (storage/short_log.py)

Invariant 1. A driver writes only records of its own generation, and only right after the last record it has seen. So
             after a record of generation g+1 there is never one of generation g. The number after the last record of
             generation g is that of the record by which g+1 was taken. It is never free again, so an old driver can
             never append. A driver that takes the job over looks whether its record is the newest: the number that
             it has created may have been used, and deleted, since it looked for the newest record.
Invariant 2. Checkpoint ids in the log only grow, also over generations and after a rollback to an older checkpoint:
             `next_checkpoint_id` is above every id that was ever logged, and `completed` refuses a smaller one.
Invariant 3. `latest` is the last of `retained`, unless it lies outside the job's folder (a job started from elsewhere).

Which ids a new generation gives out: from `next_checkpoint_id` on, without a gap. An id that an older driver triggered
but never logged may thus be given out again. That is harmless: no slot commits before the id is in the log, the
older driver can no longer put it there (invariant 1), and all that was staged for it has the older attempt in its name.
A savepoint stands only once a checkpoint with a larger id is complete, so no other snapshot gets its id. That of a stop has
none after it: it is noted (SAVEPOINT) before it stands, with its folder, and the id is used up. If the record of the stop
does not follow, the job has gone on without it, and the next attempt discards the folder. Inside a generation the
coordinator counts on in memory and never gives an id out twice.

A record whose `create` fails is *in doubt*: it may be in the log, or arrive there later. Two ways out: `append` the
very same record again until it succeeds, or `take_generation`: its record takes the sequence number, or is put after
the one in doubt, and from then on the question is settled. Nothing else can be appended in between.
"""

from __future__ import annotations

import enum
import secrets
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from tidegate.errors import CheckpointDamaged, JobFolderInUse, ProtocolViolation, StorageError, Superseded
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.storage.anywhere import is_uri
from tidegate.storage.log_records import (
    LOG_FORMAT_VERSION,
    CheckpointPointer,
    LogKind,
    LogRecord,
    decode_record,
    encode_record,
    when,
)
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore, StorageNotFound

_CONTINUE = 'Continue it with resume="latest"'


class Resume(enum.Enum):
    """Where a driver that takes the job over wants to begin, unless it names a checkpoint."""

    FRESH = "fresh"  #: at the beginning; refused where the log has any record
    LATEST = "latest"  #: after the newest record; refused where it says FINISHED


class JobLog:
    """One driver's view of the log. Used by one thread at a time.

    `last` is the newest record that this driver has seen, and (after `take_generation`) it may append after it.
    """

    def __init__(self, store: ObjectStore, paths: JobPaths, writer: str | None = None) -> None:
        self._store = store
        self._paths = paths
        self._writer = secrets.token_hex(8) if writer is None else writer
        self._in_doubt: LogRecord | None = None
        self._driver = ""
        self._generation: int | None = None  # None until taken
        self.taken_at: int | None = None  #: the number of the record by which this driver holds the job
        self.last: LogRecord | None = None

    @property
    def in_doubt(self) -> LogRecord | None:
        """A record that may or may not be in the log, see the module's text."""
        return self._in_doubt

    # -- reading ---------------------------------------------------------------------------------------------------

    def read_newest(self) -> LogRecord | None:
        """The newest record, or None for a job that never ran. A driver that holds the job asks for one number; everybody
        else lists the log, which is short.

        :raises CheckpointDamaged: when it is damaged. An older one is never taken instead.
        """
        held = self.last
        if held is not None and held.generation == self._generation:
            known = held.sequence
            if self._store.exists(self._paths.log(known + 1)):
                known = self.numbers()[-1]
        else:
            known = max(self.numbers(), default=-1)
            while self._store.exists(self._paths.log(known + 1)):  # written since
                known += 1
        if known < 0:
            return None
        self.last = self.read(known)
        return self.last

    def numbers(self) -> list[int]:
        """Of the records that are there, in order."""
        found = (self._paths.log_number(path) for path in self._store.list(self._paths.log_folder))
        return sorted(number for number in found if number is not None)

    def read(self, sequence: int) -> LogRecord:
        """:raises CheckpointDamaged: when the record is missing or damaged."""
        path = self._paths.log(sequence)
        uri = self._store.uri(path)
        try:
            record = decode_record(self._store.get(path), uri)
        except StorageNotFound:
            raise CheckpointDamaged(f"the job's log has no record {uri}, though it was there before", uri=uri) from None
        if record.sequence != sequence:
            raise CheckpointDamaged(
                f"{uri} holds record {record.sequence} of a log, not {sequence}: was a file copied or renamed? "
                "Restore the folder as it was.",
                uri=uri,
            )
        return record

    def first_of(self, generation: int, before: int) -> LogRecord:
        """The record by which the generation was taken; it stands at or before the sequence number `before`, where a record
        of that generation stands. :raises CheckpointDamaged: when a record is missing or damaged."""
        numbers = [number for number in self.numbers() if number <= before]
        # Generations only grow (invariant 1).
        return self.read(numbers[bisect_left(numbers, generation, key=lambda number: self.read(number).generation)])

    def reread(self) -> LogRecord:
        """The newest record, for a driver that holds the job. :raises Superseded: when it is another driver's.

        It may be a GENERATION that this driver has taken without noticing; then `take_generation` takes it again.
        """
        newest = self.read_newest()
        return newest if newest is not None and newest.writer == self._writer else self._held()

    def check_held(self) -> None:
        """Before a driver acts on the outside by what it has seen in the log. One request, as long as nobody took over.

        :raises Superseded: when the job is another driver's by now.
        """
        if self._store.exists(self._paths.log(self._held().sequence + 1)):
            self.reread()

    def latest_logged(self) -> LoggedCheckpoint:
        """The permit to commit what the newest record says counts; only a driver that holds the job has it.

        :raises Superseded: :raises ProtocolViolation: when no checkpoint stands there, or it is in doubt what does.
        """
        held = self._held()
        if held.latest is None or self._in_doubt is not None:
            raise ProtocolViolation(
                f"nobody can say that a checkpoint counts by record {held.sequence} of the job's log"
            )
        return LoggedCheckpoint.in_log(held.latest.id)

    # -- taking the job over ---------------------------------------------------------------------------------------

    def take_generation(self, driver: str, now: float, resume: Resume | CheckpointPointer = Resume.LATEST) -> LogRecord:
        """Become the driver of the job; every older driver's next append fails. May be repeated after a StorageError.

        1. Read the newest record; refuse what `resume` does not allow.
        2. Create the GENERATION record after it.
        3. If the number is taken, begin again: `resume` is judged by what stands there now. (It may be our own record,
           by an earlier try whose answer was lost; then the job is ours.)
        4. If others have written since 1, what stood there may be deleted by now, and the record says nothing: begin
           again. Where the next driver has taken the job over already, this one learns of it as ever, by its first append.

        :raises JobFolderInUse: FRESH on a folder with history, LATEST on a FINISHED job. `last` is the record in the
            way.
        """
        while True:
            newest = self.read_newest()  # 1
            if newest is not None and self._is_mine_unnoticed(newest, resume):
                return self._adopt(newest)
            self._refuse(newest, resume)
            record = self._generation_record(newest, driver, now, resume)
            if self._create(record) and self._holds(record):  # 2, 3, 4
                return self._adopt(record)

    def _holds(self, record: LogRecord) -> bool:
        """Whether the job was taken by it: it is the newest, or the next driver's stands right after it, for ever."""
        try:
            numbers = self.numbers()
            after = record.sequence + 1
            return numbers[-1] == record.sequence or (
                after in numbers and self.read(after).generation == record.generation + 1
            )
        except StorageError:
            self._in_doubt = record  # it stands, but nobody knows for what
            raise

    def check_resume(self, resume: Resume | CheckpointPointer) -> None:
        """What `take_generation` would say now; nothing is taken. :raises JobFolderInUse:"""
        self._refuse(self.read_newest(), resume)

    def _is_mine_unnoticed(self, newest: LogRecord, resume: Resume | CheckpointPointer) -> bool:
        """A try of this driver to take the job over has worked, though the storage did not say so."""
        return (
            newest.writer == self._writer
            and newest.kind is LogKind.GENERATION
            and newest.generation != self._generation
            and (isinstance(resume, Resume) or newest.latest == resume)
        )

    def _refuse(self, newest: LogRecord | None, resume: Resume | CheckpointPointer) -> None:
        if newest is None or isinstance(resume, CheckpointPointer):
            return
        where = self._store.uri(self._paths.folder)
        if resume is Resume.FRESH and not newest.never_ran:
            way = "It is FINISHED: name a checkpoint to start from again" if newest.finished else _CONTINUE
            raise JobFolderInUse(
                f"the job {self._paths.job!r} has already run in {where} (its log was last written "
                f"at {when(newest.written_at)} by {newest.driver}). {way}, or give this run another job name or storage.",
                uri=where,
                job=self._paths.job,
                finished=newest.finished,
            )
        if newest.finished:
            raise JobFolderInUse(
                f"the job {self._paths.job!r} in {where} is FINISHED since {when(newest.written_at)}: there is "
                "nothing to resume. Name a checkpoint to start from again, or give this run another job name or "
                "storage.",
                uri=where,
                job=self._paths.job,
                finished=True,
            )

    def _generation_record(
        self, newest: LogRecord | None, driver: str, now: float, resume: Resume | CheckpointPointer
    ) -> LogRecord:
        if newest is None:
            sequence, generation, incarnation, next_id = 0, 1, secrets.token_hex(8), 1
            latest, retained, stopping, unsettled = None, [], False, ""
            inputs: dict[str, str] = {}
        else:
            sequence, generation, incarnation = newest.sequence + 1, newest.generation + 1, newest.incarnation
            next_id, latest, retained, stopping = (
                max(newest.next_checkpoint_id, newest.savepoint_ids_below),
                newest.latest,
                newest.retained,
                newest.stopping,
            )
            unsettled, inputs = newest.open_savepoint, newest.inputs
        if isinstance(resume, CheckpointPointer):
            next_id = max(next_id, resume.id + 1)
            retained = [pointer for pointer in retained if pointer != resume]
            # What lies outside the folder belongs to somebody else, who alone may delete it, unless it was claimed.
            if resume.owned and (resume.metadata_path.startswith(self._paths.folder) or is_uri(resume.metadata_path)):
                retained = [*retained, resume]
            latest, stopping = resume, False
            if unsettled and f"/{unsettled.rpartition('/')[2]}/" in resume.metadata_path:
                unsettled = ""  # the job continues from it, so it counts
        return LogRecord(
            sequence=sequence,
            kind=LogKind.GENERATION,
            generation=generation,
            driver=driver,
            writer=self._writer,
            written_at=now,
            incarnation=incarnation,
            next_checkpoint_id=next_id,
            latest=latest,
            retained=retained,
            stopping=stopping,
            open_savepoint=unsettled,
            inputs=inputs,
        )

    def _adopt(self, record: LogRecord) -> LogRecord:
        self._in_doubt = None
        self.last = record
        if record.kind is LogKind.GENERATION:
            self._generation = record.generation
            self._driver = record.driver
            self.taken_at = record.sequence
        return record

    # -- appending -------------------------------------------------------------------------------------------------

    def append(self, record: LogRecord) -> LogRecord:
        """From the return on, the record counts. After a StorageError, append the same record again (or take over).

        1. Create the record at its sequence number.
        2. If the number is taken: by this very record (an answer was lost), it counts; else a newer driver holds the
            job. (That has gone far if the record is deleted by now.)

        :raises Superseded: when a newer driver holds the job: end without committing anything.
        """
        if record == self.last:
            return self._adopt(record)  # in doubt until now, and found by `read_newest`
        last = self._held()
        if self._in_doubt is not None and record != self._in_doubt:
            raise ProtocolViolation(
                f"log record {self._in_doubt.sequence} is in doubt: append it again, or take a generation, before "
                "another"
            )
        if record.sequence != last.sequence + 1 or record.generation != self._generation:
            raise ProtocolViolation(
                f"record {record.sequence} of generation {record.generation} does not follow {last.sequence} of "
                f"{self._generation}"
            )
        if self._create(record):  # 1
            return self._adopt(record)
        standing = self._standing(record)  # 2
        if standing == record:
            return self._adopt(record)
        if standing.generation <= record.generation:
            raise ProtocolViolation(
                f"two records {record.sequence} of generation {record.generation}: the job's log has two writers in "
                "one driver"
            )
        self._in_doubt = None  # settled: it can never stand there
        raise self._superseded(standing)

    def _standing(self, record: LogRecord) -> LogRecord:
        """What has taken the number."""
        if self._store.exists(self._paths.log(record.sequence)):
            return self.read(record.sequence)
        return self.read(self.numbers()[-1])

    def completed(
        self,
        pointer: CheckpointPointer,
        retained: Sequence[CheckpointPointer],
        now: float,
        *,
        stop: bool = False,
    ) -> LogRecord:
        """The record that makes `pointer` count. `retained` is what is kept from now on, with `pointer` as the last.

        With `stop` it is the savepoint of a stop, and the job will only be restored to commit it.
        """
        last = self._held()
        if pointer.id < last.next_checkpoint_id:
            raise ProtocolViolation(
                f"checkpoint {pointer.id} cannot be logged: ids below {last.next_checkpoint_id} are used up in this log"
            )
        if not retained or retained[-1] != pointer:
            raise ProtocolViolation(f"checkpoint {pointer.id} must be the last of the retained ones")
        if not set(retained[:-1]) <= set(last.retained):
            raise ProtocolViolation(
                "a checkpoint that the log has dropped cannot be retained again: its files may be gone"
            )
        if last.stopping or last.finished:
            raise ProtocolViolation(f"checkpoint {pointer.id} completed after the job was told to end")
        return self._next(
            LogKind.SAVEPOINT_STOP if stop else LogKind.CHECKPOINT,
            now,
            next_checkpoint_id=pointer.id + 1,
            latest=pointer,
            retained=list(retained),
            stopping=stop,
            open_savepoint="" if stop else last.open_savepoint,
        )

    def savepoint(self, checkpoint: int, folder: str, now: float) -> LogRecord:
        """The savepoint of a stop is about to stand in the folder: its id is used up."""
        used = max(self._held().savepoint_ids_below, checkpoint + 1)
        return self._next(LogKind.SAVEPOINT, now, savepoint_ids_below=used, open_savepoint=folder)

    def input_written(self, uid: str, folder: str, now: float) -> LogRecord:
        """The rows of a DataFrame are whole in the folder: the job reads these very files from now on."""
        return self._next(LogKind.INPUT, now, inputs={**self._held().inputs, uid: folder})

    def finished(self, now: float, reason: str = "") -> LogRecord:
        return self._next(LogKind.FINISHED, now, reason=reason, finished=True, stopping=False)

    def canceled(self, now: float, keep: bool = True, reason: str = "") -> LogRecord:
        """Without `keep` nothing is retained: a next run begins at the beginning."""
        return self._next(LogKind.CANCELED, now, reason=reason, **({} if keep else {"latest": None, "retained": []}))

    def failed(self, now: float, reason: str, never_ran: bool = False) -> LogRecord:
        """`never_ran`: a fresh start may come after it, as if there were no log."""
        return self._next(LogKind.FAILED, now, reason=reason, never_ran=never_ran)

    def _next(self, kind: LogKind, now: float, **changes: object) -> LogRecord:
        last = self._held()
        return msgspec.structs.replace(
            last,
            sequence=last.sequence + 1,
            kind=kind,
            driver=self._driver,
            writer=self._writer,
            written_at=now,
            reason=str(changes.pop("reason", "")),
            never_ran=bool(changes.pop("never_ran", False)),
            **changes,
        )

    def _held(self) -> LogRecord:
        """The record to append after; it must be of this driver's own generation."""
        if self.last is None or self._generation is None:
            raise ProtocolViolation("a driver that has taken no generation appends to the job's log")
        if self.last.generation != self._generation:
            raise self._superseded(self.last)
        return self.last

    def _superseded(self, by: LogRecord) -> Superseded:
        return Superseded(
            f"another driver ({by.driver}) has taken over the job {self._paths.job!r} at {when(by.written_at)}, as "
            f"generation {by.generation}; this one (generation {self._generation}) ends and commits nothing more. If "
            "two drivers were started by mistake, stop the one that is not wanted.",
            driver=by.driver,
            generation=by.generation,
            written_at=by.written_at,
        )

    def _create(self, record: LogRecord) -> bool:
        try:
            return self._store.create(self._paths.log(record.sequence), encode_record(record))
        except StorageError:
            self._in_doubt = record
            raise


__all__ = [
    "LOG_FORMAT_VERSION",
    "CheckpointPointer",
    "JobLog",
    "LogKind",
    "LogRecord",
    "Resume",
    "decode_record",
    "encode_record",
    "when",
]
