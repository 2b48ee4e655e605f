"""Tables of Parquet files, each record in them exactly once, an epoch of all subtasks at once. See docs/files-and-tables.md.

Where it runs: writers on the executors put files where they will stay, under names that nobody knows; the driver appends
them to the table's log when the checkpoint is in the job's log; the subtasks' committers look whether it has.

Evidence: the table's log holds, for each writer (one attempt of one sink of one job), the newest checkpoint whose files are in
it. A commit takes all that the writer has prepared up to a checkpoint n in one step and writes n with them, so whatever a
writer prepared for n or before is in the table exactly when its number is n or more. Each attempt has a number of its own,
because a job may go back to before a checkpoint, on with others, and one day forward to it again.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import xxhash

from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, WriterContext
from tidegate.connectors.database.names import parse_attempt
from tidegate.connectors.formats.parquet import PARQUET
from tidegate.connectors.local_paths import local_path
from tidegate.connectors.part_writer import PartWriter, StagedPart
from tidegate.connectors.partition_names import Partition, store_check
from tidegate.connectors.stored_files import SpooledParts
from tidegate.durations import Duration, seconds
from tidegate.errors import CommitLost, ConfigurationError
from tidegate.ids import AttemptId, CheckpointId
from tidegate.storage.store import ObjectStore, open_store

FORMAT_VERSION = 2


class TableFile(msgspec.Struct, frozen=True, rename={"version": "v", "size_bytes": "bytes"}):
    """A file that is written and not yet part of the table; also how a manifest names it. JSON."""

    path: str  # relative to the table
    size_bytes: int
    rows: int
    checksum: str  # xxh3_128, hex
    partition: list[tuple[str, str | None]]
    schema: bytes  # of the stream, with the columns of the partitions; Arrow IPC
    checkpoint: int
    writer: str = ""  # `writer_id`; always there since version 2
    version: int = FORMAT_VERSION

    def arrow_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


def decode_file(data: bytes) -> TableFile:
    """:raises ConfigurationError: when it is none of ours, or of another version."""
    try:
        file = msgspec.json.decode(data, type=TableFile)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"A committable of a table sink cannot be read ({error}).") from None
    if file.version != FORMAT_VERSION:
        raise ConfigurationError(
            f"A committable of a table sink has version {file.version}, this release reads {FORMAT_VERSION}. Start the job "
            "with the release that wrote it."
        )
    return file


class TableLog(ABC):
    """The log of one table. Opened where it is used."""

    @abstractmethod
    def newest(self, writer: str) -> int:
        """The newest checkpoint of this writer that the table has; 0 for none."""

    @abstractmethod
    def append(self, writer: str, checkpoint: int, files: Sequence[TableFile], partition_by: Sequence[str]) -> None:
        """Add the files and the number in one step. Of two tries at once one fails, or both write the same."""


class TableSink(Sink):
    """What table sinks share. Each needs a folder of its own.

    :param path: a folder, or one in a store that checkpoints can use (s3://bucket/table)
    :param partition_by: fields whose values name folders
    :param max_bytes: a file that has grown to this (before compression) is closed; every checkpoint closes one too
    :param max_age: a file that is older is closed when the next record comes
    """

    guarantee = "exactly-once"
    commits_on_driver = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] = (),
        max_bytes: int = 128 * 1024 * 1024,
        max_age: Duration | None = None,
    ) -> None:
        self.check_installed()
        text = os.fspath(path)
        is_store = "://" in text and not text.lower().startswith("file:")
        self.location = text.rstrip("/") if is_store else local_path(text)
        self.store: ObjectStore = open_store(self.location)
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        if max_bytes < 1:
            raise ConfigurationError(f"max_bytes must be at least 1; got {max_bytes}.")
        self.max_bytes = max_bytes
        self.max_age_s = None if max_age is None else seconds(max_age, "max_age")

    def check_installed(self) -> None:
        """:raises ConfigurationError: when a package that it needs is not installed."""

    @abstractmethod
    def log(self) -> TableLog: ...

    def check_schema(self, schema: pa.Schema) -> None:
        """:raises ConfigurationError: when the table cannot hold such records."""

    def file_path(self, name: str, folder: str) -> str:
        """Where a file of the table lies, relative to it."""
        return f"{folder}/{name}" if folder else name

    def check_partition(self, partition: Partition) -> None:
        """:raises ConfigurationError: when the table cannot hold records of it."""
        store_check(self.store, lambda folder: self.file_path("", folder))(partition)

    def writer(self, context: WriterContext) -> SinkWriter:
        PARQUET.check_writable(context.record_type)
        self.check_schema(context.record_type.schema)
        return _TableWriter(self, context)

    def committer(self, context: WriterContext) -> Committer:
        return TableCommitter(self)

    def commit_on_driver(self, prepared: list[tuple[CheckpointId, bytes]], restored: bool) -> None:
        log = self.log()
        by_writer: dict[str, list[TableFile]] = {}
        for _, data in prepared:
            file = decode_file(data)
            by_writer.setdefault(file.writer, []).append(file)
        for writer, files in by_writer.items():  # more than one only where the older ones are in the table already
            newest = log.newest(writer)
            new = [file for file in files if file.checkpoint > newest]
            if new:
                self._refuse_missing(new)
                log.append(writer, max(file.checkpoint for file in new), new, self.partition_by)

    def _refuse_missing(self, files: Sequence[TableFile]) -> None:
        missing = [file for file in files if not self.store.exists(file.path)]
        if missing:
            rows = sum(file.rows for file in missing)
            raise CommitLost(
                f"{self.store.location}: {len(missing)} files with {rows} rows that were prepared for checkpoint "
                f"{missing[0].checkpoint} are not part of the table and not there any more ({missing[0].path} first). They "
                "were deleted from outside, or the job has started from an older checkpoint since and gone on from there. "
                "Start from the newest checkpoint, or from one before it."
            )


def writer_id(job: str, uid: str, incarnation: str, attempt: str) -> str:
    return f"tidegate:{job}:{uid}:{incarnation}:{attempt}"


class TableCommitter(Committer):
    """The subtask's side of the second phase: it looks whether the driver has done it."""

    version = FORMAT_VERSION

    def __init__(self, sink: TableSink) -> None:
        self._sink = sink

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        log, files = self._sink.log(), [decode_file(data) for data in committables]
        newest = {writer: log.newest(writer) for writer in {file.writer for file in files}}
        return [CommitOutcome.DONE if file.checkpoint <= newest[file.writer] else CommitOutcome.RETRY for file in files]


class _TableWriter(SinkWriter):
    def __init__(self, sink: TableSink, context: WriterContext) -> None:
        self._sink = sink
        self._subtask = context.subtask
        self._prefix = f"{owner_prefix(context.job, context.uid)}-{context.attempt}-{context.subtask}"
        self._writer = writer_id(context.job, context.uid, context.incarnation, context.attempt)
        self._schema = context.record_type.schema.serialize().to_pybytes()
        self._sequence = 0
        self._spool = SpooledParts(sink.store)
        self._parts = PartWriter(
            context.record_type,
            "parquet",
            self._spool.open_file,
            context.clock,
            sink.max_bytes,
            sink.max_age_s,
            sink.partition_by,
            check_partition=sink.check_partition,
        )

    def write(self, batch: Batch) -> None:
        self._parts.write(batch)

    def flush(self) -> None:
        self._parts.flush()

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        return [self._put(checkpoint, part) for part in self._parts.take()]

    def _put(self, checkpoint: CheckpointId, part: StagedPart) -> bytes:
        name = f"{self._prefix}-{self._sequence}-{secrets.token_hex(4)}.parquet"
        self._sequence += 1
        path = self._sink.file_path(name, part.folder)
        self._spool.move(part.path, path)
        return msgspec.json.encode(
            TableFile(
                path=path,
                size_bytes=part.size_bytes,
                rows=part.rows,
                checksum=part.checksum,
                partition=list(part.partition),
                schema=self._schema,
                checkpoint=int(checkpoint),
                writer=self._writer,
            )
        )

    def close(self) -> None:
        self._parts.abandon()
        self._spool.close()


def owner_prefix(job: str, uid: str) -> str:
    """What the files of one sink begin with."""
    return f"part-{xxhash.xxh3_64_hexdigest(f'{job}{chr(0)}{uid}'.encode('utf-8', 'surrogatepass'))}"


def attempt_of_file(name: str, owner: str) -> AttemptId | None:
    """The attempt that wrote a file; None for what is not the sink's."""
    if not name.startswith(f"{owner}-"):
        return None
    generation, _, rest = name[len(owner) + 1 :].partition("-")
    try:
        return parse_attempt(f"{generation}-{rest.partition('-')[0]}")
    except ValueError:
        return None
