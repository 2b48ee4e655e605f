"""Files, each record in them exactly once: parts are staged under a hidden name and published by one link.

Where it runs: writer and committer on the executors, on one filesystem that all of them see (a local disk with one
machine, else a shared mount), or in a store like S3. See docs/decisions/0006-committables-and-file-sink.md.

    <path>/_staging/<job>-<uid>-<attempt>-<subtask>-<sequence>-<nonce>.<ext>     hidden: readers skip names with "_"
    <path>/part-<checkpoint>-<subtask>-<n>.<ext>                                 committed, whole, never touched again
    <path>/<name>=<value>/.../part-...                                           with partition_by

The writer, at prepare(checkpoint):
  1. finish and fsync every staged file, fsync the staging folder
  2. hand out a committable for each: staged and final name, size, rows, checksum

The committer, for each committable, with nothing but its bytes:
  3. link the staged file to its final name, which fails when that name exists
  4. fsync the output folder
  5. remove the staged name

Crash after 1 or 2: nobody knows the staged file; `sweep_staging` removes it. After 3 or 4: both names are one file, so
the next try continues at 4. After 5: the staged name is gone, and size and checksum of the final file are the evidence.
Stores have no links: stored_files.py says what takes the place of 3 to 5 there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Collection, Sequence
from urllib.parse import quote

import msgspec
import xxhash

from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, WriterContext
from tidegate.connectors.formats.known import format_named
from tidegate.connectors.local_paths import local_path, make_folder, sync_folder
from tidegate.connectors.part_writer import PartWriter, StagedPart
from tidegate.connectors.partition_names import local_check, store_check
from tidegate.connectors.staged_file import StagedFile, file_checksum
from tidegate.connectors.stored_files import SpooledParts, publish
from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError
from tidegate.ids import AttemptId, CheckpointId
from tidegate.storage.store import ObjectStore, open_store

STAGING = "_staging"
FORMAT_VERSION = 1
_ATTEMPT = re.compile(r"g(\d+)-a(\d+)-")  #: str(AttemptId), as it stands in staged names
#: What filesystems without hard links answer to link().
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
#: What no further try can change: the filesystem does not have such names.
_NEVER = (errno.ENAMETOOLONG, errno.EILSEQ)


class FileSink(Sink):
    """Writes a stream into files of a folder. Exactly-once: a file appears, whole, when its checkpoint is complete.

    :param path: a folder (a bare path or a file:// URI; made when it is not there), or one in a store that checkpoints can
        use: s3://bucket/folder, gs://, az://. Each sink needs its own.
    :param format: "jsonl", "csv", "parquet" or "text"; see connectors/formats/ for how values are written.
    :param max_bytes: a part that has grown to this is closed and the next begun; every checkpoint closes one too. A
        part can be larger by one batch. For Parquet the bytes are counted before compression.
    :param max_age: a part that is older is closed when the next record comes ("5min"); for long checkpoint intervals.
    :param partition_by: fields whose values name folders, as in Hive and Spark: day=2026-01-01/country=de/part-...
    """

    guarantee = "exactly-once"

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "jsonl",
        *,
        max_bytes: int = 128 * 1024 * 1024,
        max_age: Duration | None = None,
        partition_by: str | Sequence[str] = (),
    ) -> None:
        format_named(format)  # refuses one that is not there
        if max_bytes < 1:
            raise ConfigurationError(f"max_bytes must be at least 1; got {max_bytes}.")
        self.store = store_behind(path)
        self.path = local_path(path) if self.store is None else ""
        self.format = format
        self.max_bytes = max_bytes
        self.max_age_s = None if max_age is None else seconds(max_age, "max_age")
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)

    def writer(self, context: WriterContext) -> SinkWriter:
        return _FileWriter(self, context)

    def committer(self, context: WriterContext) -> Committer:
        return FileCommitter()

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        keep = {staged_name(committable) for committable in uncommitted}
        if self.store is None:
            sweep_staging(self.path, job, uid, attempt, keep)
            return
        for path in self.store.list(STAGING):
            if is_left_over(os.path.basename(path), job, uid, attempt, keep):
                self.store.delete(path)


def store_behind(path: str | os.PathLike[str]) -> ObjectStore | None:
    """The store that a URI names; None for a folder of a filesystem. :raises ConfigurationError: for any other URI."""
    text = os.fspath(path)
    return open_store(text) if "://" in text and not text.lower().startswith("file:") else None


class FileCommittable(msgspec.Struct, frozen=True, rename={"version": "v", "size_bytes": "bytes"}):
    """All that a commit needs, as JSON. Whole paths: a job that is restarted with another folder still commits here."""

    staged: str
    final: str
    size_bytes: int
    rows: int
    checksum: str  # xxh3_128, hex
    version: int = FORMAT_VERSION
    store: str | msgspec.UnsetType = msgspec.UNSET  # the URI that both names are relative to; else they are paths


def staged_name(committable: bytes) -> str:
    """The name under _staging; what `sweep_staging` must keep."""
    return os.path.basename(msgspec.json.decode(committable, type=FileCommittable).staged)


# -- first phase --------------------------------------------------------------------------------------------------


class _FileWriter(SinkWriter):
    def __init__(self, sink: FileSink, context: WriterContext) -> None:
        format_named(sink.format).check_writable(context.record_type)
        self._store = sink.store
        self._spool = None if sink.store is None else SpooledParts(sink.store)
        self._folder = sink.path
        self._staging = os.path.join(sink.path, STAGING)
        self._extension = format_named(sink.format).extension
        self._subtask = context.subtask
        self._prefix = f"{_owner(context.job, context.uid)}{context.attempt}-{context.subtask}"
        self._sequence = 0  #: of staged files of this writer
        self._parts = PartWriter(
            context.record_type,
            sink.format,
            self._new_file if self._spool is None else self._spool.open_file,
            context.clock,
            sink.max_bytes,
            sink.max_age_s,
            sink.partition_by,
            check_partition=local_check(sink.path) if sink.store is None else store_check(sink.store, str),
        )

    def _new_name(self) -> str:
        # The nonce: a job that is started anew counts its attempts from one again, and its names must not meet those of
        # old.
        name = f"{self._prefix}-{self._sequence}-{secrets.token_hex(4)}.{self._extension}"
        self._sequence += 1
        return name

    def _new_file(self) -> StagedFile:
        make_folder(self._staging)
        return StagedFile(os.path.join(self._staging, self._new_name()))

    def write(self, batch: Batch) -> None:
        self._parts.write(batch)

    def flush(self) -> None:
        self._parts.flush()

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        # 1. Durable under the staged names.
        parts = self._parts.take()
        if not parts:
            return []
        if self._spool is None:
            sync_folder(self._staging)
        # 2. Named for whoever commits.
        return [self._committable(checkpoint, number, part) for number, part in enumerate(parts)]

    def _committable(self, checkpoint: CheckpointId, number: int, part: StagedPart) -> bytes:
        name = part_name(checkpoint, self._subtask, number, self._extension)
        staged, final = part.path, os.path.join(self._folder, part.folder, name)
        if self._spool is not None:
            staged, final = f"{STAGING}/{self._new_name()}", os.path.join(part.folder, name)
            self._spool.move(part.path, staged)
        return msgspec.json.encode(
            FileCommittable(
                staged=staged,
                final=final,
                size_bytes=part.size_bytes,
                rows=part.rows,
                checksum=part.checksum,
                store=msgspec.UNSET if self._store is None else self._store.location,
            )
        )

    def close(self) -> None:
        self._parts.abandon()
        if self._spool is not None:
            self._spool.close()


def part_name(checkpoint: int, subtask: int, number: int, extension: str) -> str:
    """One for each part that is ever committed: a checkpoint id is committed once, by one attempt."""
    return f"part-{checkpoint:08d}-{subtask:05d}-{number}.{extension}"


# -- second phase -------------------------------------------------------------------------------------------------


class FileCommitter(Committer):
    """Publishes staged files. Needs nothing but the committables. OSError (disk full, mount gone) means: ask again."""

    version = FORMAT_VERSION

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        """A part that cannot be published does not keep the others waiting: it is told when they are done."""
        outcomes: list[CommitOutcome] = []
        trouble: Exception | None = None
        for data in committables:
            try:
                outcomes.append(self._commit(data))
            except OSError as error:
                trouble = _impossible(data, error) if error.errno in _NEVER else trouble or error
        if trouble is not None:
            raise trouble
        return outcomes

    def _commit(self, data: bytes) -> CommitOutcome:
        try:
            part = msgspec.json.decode(data, type=FileCommittable)
        except msgspec.MsgspecError as error:
            return self._lost(f"A committable of the file sink cannot be read ({error}).")
        if part.version != FORMAT_VERSION:
            return self._lost(
                f"A committable of the file sink has version {part.version}, this release reads {FORMAT_VERSION}. "
                "Nothing is lost: start the job with the release that wrote it."
            )
        if not _stays_inside(part):
            return self._lost(
                f"A committable of the file sink would move {part.staged!r} to {part.final!r}: no file sink writes that. "
                "Somebody has changed the checkpoint or savepoint that holds it."
            )
        if part.store:
            outcome, reason = publish(open_store(part.store), part)
            return self._lost(reason) if outcome is CommitOutcome.LOST else outcome
        try:
            found = os.stat(part.staged).st_size
        except FileNotFoundError:
            return self._without_staged_file(part)
        if found != part.size_bytes:
            return self._lost(f"{part.staged} has {found} bytes, but {part.size_bytes} were prepared.")
        make_folder(os.path.dirname(part.final))
        try:
            _link(part.staged, part.final)  # 3
        except FileExistsError:
            return self._final_name_taken(part)
        except FileNotFoundError:  # another try of the same commit was quicker
            return self._without_staged_file(part)
        _finish(part)
        return CommitOutcome.DONE

    def _final_name_taken(self, part: FileCommittable) -> CommitOutcome:
        try:
            same = os.path.samefile(part.staged, part.final)
        except FileNotFoundError:
            return self._without_staged_file(part)
        if not same:
            return self._lost(_foreign(part))
        _finish(part)  # an earlier try ended after 3 or 4
        return CommitOutcome.ALREADY_DONE

    def _without_staged_file(self, part: FileCommittable) -> CommitOutcome:
        """An earlier try came as far as 5, or somebody has deleted the file."""
        try:
            same = os.stat(part.final).st_size == part.size_bytes and file_checksum(part.final) == part.checksum
        except FileNotFoundError:
            return self._lost(
                f"Neither {part.staged} nor {part.final} exists: {part.rows} rows that were prepared have been deleted, "
                "from outside or by a start from an older checkpoint. Put one of the two back, start from the newest "
                "checkpoint, or from an older savepoint into an empty folder."
            )
        return CommitOutcome.ALREADY_DONE if same else self._lost(_foreign(part))

    def _lost(self, reason: str) -> CommitOutcome:
        self.lost_reason = reason
        return CommitOutcome.LOST


def _stays_inside(part: FileCommittable) -> bool:
    """Whether it moves a file from the staging folder of a sink into the folder of that sink. It may be of somebody else."""
    staging, _, name = part.staged.rpartition("/")
    root = staging.removesuffix(STAGING)
    if not name or not (staging == STAGING if part.store else staging.endswith(f"/{STAGING}")):
        return False
    inside = part.final.removeprefix(root)
    steps = inside.split("/")
    return part.final.startswith(root) and not {"", ".", ".."}.intersection(steps) and STAGING not in steps


def _impossible(data: bytes, error: OSError) -> ConfigurationError:
    part = msgspec.json.decode(data, type=FileCommittable)
    return ConfigurationError(
        f"{part.staged} can never be published as {part.final} ({error.strerror}): {part.rows} rows that are part of a "
        "checkpoint. Move the file to a place of your choice, and start the job from an older checkpoint, or from this one "
        "with a sink of another uid (allow_dropped_state=True).",
        path=part.final,
    )


def _finish(part: FileCommittable) -> None:
    sync_folder(os.path.dirname(part.final))  # 4
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part.staged)  # 5


def _link(staged: str, final: str) -> None:
    """Give the file its final name, only if that is free."""
    try:
        os.link(staged, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # No hard links here. A look before a rename does not guard against a writer in between, but nobody else gives out
        # this name: one attempt commits a checkpoint, and a second try of it finds no staged file to rename.
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final) from error
        os.rename(staged, final)


def _foreign(part: FileCommittable) -> str:
    return (
        f"{part.final} exists, and is not the file that was prepared as {part.staged} ({part.size_bytes} bytes, "
        f"{part.rows} rows). An earlier run of the job, or another sink, has written to this folder. Give every sink "
        "and every run from the beginning a folder of its own; then move the old file away and resume."
    )


# -- left-overs ---------------------------------------------------------------------------------------------------


def sweep_staging(
    path: str | os.PathLike[str], job: str, uid: str, before: AttemptId, keep_names: Collection[str]
) -> list[str]:
    """Remove what attempts earlier than `before` have staged for one sink and nobody will commit; returns the names. Driver.

    With the `staged_name` of every committable of the checkpoint that `before` starts from. Files of other jobs and sinks
    stay, and files of later attempts: a driver that was stopped and wakes up after a newer one comes by here.
    """
    staging = os.path.join(local_path(path), STAGING)
    removed = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(staging)):
            if is_left_over(name, job, uid, before, keep_names):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(staging, name))
                removed.append(name)
    return removed


def is_left_over(name: str, job: str, uid: str, before: AttemptId, keep_names: Collection[str]) -> bool:
    """Whether a staged file is one of this sink, of an earlier attempt, that nobody will commit."""
    owner = _owner(job, uid)
    if not name.startswith(owner) or name in keep_names:
        return False
    found = _ATTEMPT.match(name[len(owner) :])
    return found is not None and (int(found[1]), int(found[2])) < (before.generation, before.number)


def _owner(job: str, uid: str) -> str:
    """What the staged files of one sink begin with. No job and uid make the same one as another pair."""
    return f"{_word(job)}-{_word(uid)}-"


def _word(name: str) -> str:
    """A name as part of a file name: without "-", which ends it, and not too long for a filesystem."""
    word = quote(name, safe="").replace("-", "%2D")
    if len(word) > 60:
        return f"{word[:40]}~{xxhash.xxh3_64_hexdigest(name.encode())}"
    return word.replace("~", "%7E")
