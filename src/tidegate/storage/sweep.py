"""What killed uploads and given-up checkpoints have left behind in a job's folder, and its removal. Driver.

Runs on the thread that writes the job's log, so nothing is logged by this driver meanwhile.

1. List the folders that attempts write to.
2. Only then read the newest record of the log, and the metadata of all checkpoints that it names: whatever was completed
   before the list was made is known to be in use.
3. An orphan is a listed file that is not in use and whose writer is done with it (`OpenWork`, below).
4. Delete the orphans.

Never touched: the log and materialised input; files of a later generation, whose driver took over while we looked; what
the running attempt may still complete; and whatever is not named as an attempt names its files, which belongs to
somebody else. A driver that no longer holds the job deletes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.ids import AttemptId, AttemptNumber, CheckpointId
from tidegate.storage.log import JobLog, LogRecord
from tidegate.storage.paths import JobPaths
from tidegate.storage.retention import files_in_use
from tidegate.storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class OpenWork:
    """What this driver's attempts may still need: checkpoints of `attempt`, all of whose slots run, from `first_open` on.

    Ids only grow, so this stays true for every checkpoint that is triggered after it was noted.
    """

    attempt: AttemptId
    first_open: CheckpointId

    def is_done_with(self, paths: JobPaths, path: str, newest: LogRecord) -> bool:
        """Whether the attempt that wrote a file, which is not in use, can have no use for it any more."""
        attempt = paths.attempt_of(path)
        if attempt is None:
            return False
        if attempt.generation != newest.generation:
            return attempt.generation < newest.generation
        if attempt != self.attempt:
            return attempt.number < self.attempt.number
        owner = paths.checkpoint_of(path)
        return path == paths.probe(attempt) if owner is None else owner[0] < self.first_open


def after_attempt(attempt: AttemptId) -> OpenWork:
    """Nothing of this attempt, nor of those before it, is at work any more."""
    return OpenWork(AttemptId(attempt.generation, AttemptNumber(attempt.number + 1)), CheckpointId(0))


def orphans(store: ObjectStore, paths: JobPaths, log: JobLog, open_work: OpenWork) -> list[str]:
    """The files that nobody needs (steps 1 to 3). For the driver that holds the job.

    :raises Superseded: when another driver holds the job by now.
    :raises CheckpointDamaged: when the metadata of a retained checkpoint cannot be read. Then nobody knows.
    """
    folders = [folder for folder in store.folders(paths.folder) if paths.written_by_attempts(folder)]
    listed = [path for folder in folders for path in store.list(paths.folder + folder)]  # 1
    if not listed:
        return []
    newest = log.reread()  # 2
    used = files_in_use(store, newest)
    return [path for path in listed if path not in used and open_work.is_done_with(paths, path, newest)]  # 3


def half_written_records(store: ObjectStore, paths: JobPaths, newest: LogRecord) -> list[str]:
    """What drivers that were killed while they wrote to the log have left beside it.

    Whoever still writes a record up to the newest one has lost: its number is taken.
    """
    taken = paths.log(newest.sequence).rpartition("/")[2]  # numbers have one length, so names sort as they do
    return [
        path for path in store.temporary_files(paths.log_folder) if path.rpartition("/")[2][1 : 1 + len(taken)] <= taken
    ]


def sweep(store: ObjectStore, paths: JobPaths, log: JobLog, open_work: OpenWork) -> list[str]:
    """Find the orphans and delete them; what was deleted.

    :raises StorageError: :raises Superseded: :raises CheckpointDamaged: as `orphans`; nothing is lost by leaving it at that.
    """
    if log.in_doubt is not None:
        return []  # a record that may be in the log may name files that this driver believes dead
    found = orphans(store, paths, log, open_work)
    if log.last is not None and open_work.attempt.number == 1:  # once for each driver: a log may be long
        found += half_written_records(store, paths, log.last)
    if found:
        store.delete_many(found)  # 4
    return found
