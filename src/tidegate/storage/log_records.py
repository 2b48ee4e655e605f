"""The records of a job's log, and how each stands in its file. Used by storage/log.py, which says what they mean together.

Driver only. A field that is added has a default: logs that an older release wrote are read as they are.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime

import msgspec
import xxhash

from tidegate.errors import CheckpointDamaged
from tidegate.ids import AttemptId, AttemptNumber, Generation
from tidegate.storage.versioned import decode_versioned

LOG_FORMAT_VERSION = 1


class LogKind(enum.StrEnum):
    GENERATION = "generation"  #: a driver has taken the job over
    CHECKPOINT = "checkpoint"  #: a checkpoint is complete: its sinks may commit
    SAVEPOINT = "savepoint"  #: that of a stop is about to stand; it changes nothing for a resume
    INPUT = "input"  #: a DataFrame was written to files, which the job reads from now on
    SAVEPOINT_STOP = "savepoint_stop"  #: the savepoint of a stop: restored only to commit, then the job ends
    FINISHED = "finished"  #: all input has ended (or the stop is done), and all is committed
    CANCELED = "canceled"
    FAILED = "failed"  #: the driver gave up; for people, it changes nothing for a resume


ENDS = frozenset(
    {LogKind.FINISHED, LogKind.CANCELED, LogKind.FAILED}
)  #: after them no driver has the job, as far as it says


class CheckpointPointer(msgspec.Struct, frozen=True):
    """A completed checkpoint, as the log names it."""

    id: int
    metadata_path: str  # relative to the store
    checksum: str  # of the metadata file, xxh3_128, hex
    size_bytes: int  # of its state
    generation: int
    attempt: int
    completed_at: float  # epoch seconds
    owned: bool = True  # ours to delete when it is no longer retained; a savepoint is the user's, unless claimed

    @property
    def attempt_id(self) -> AttemptId:
        return AttemptId(Generation(self.generation), AttemptNumber(self.attempt))


class LogRecord(msgspec.Struct, frozen=True):
    """One step of the job. Everything that a driver must know to continue from here."""

    sequence: int
    kind: LogKind
    generation: int
    driver: str  # for people: host:pid
    writer: str  # random, one for each JobLog: tells "mine, after a lost answer" from "another's with the same words"
    written_at: float  # epoch seconds
    incarnation: str  # random, made with record 0: a job of the same name in a new folder has another one
    next_checkpoint_id: int  # above every id that was ever logged
    latest: CheckpointPointer | None = None  # where a restart continues; None: at the beginning
    retained: list[CheckpointPointer] = []  # the latest last; whatever is not here may be deleted
    stopping: bool = False  # `latest` is the savepoint of a stop; stays over take-overs until FINISHED
    finished: bool = False
    reason: str = ""  # of FAILED, and where there is one of CANCELED and FINISHED; for people
    savepoint_ids_below: int = 0  # a stop's savepoint may have used ids below this: a new generation begins here
    inputs: dict[
        str, str
    ] = {}  # by uid: where a DataFrame was written to, below the job's folder; for the job's whole life
    never_ran: bool = False  # of FAILED: the job began at its beginning, and ended before its first attempt
    open_savepoint: str = ""  # the folder of a stop's savepoint whose SAVEPOINT_STOP does not stand: to be discarded


# -- the format ----------------------------------------------------------------------------------------------------


class _Envelope(msgspec.Struct, frozen=True):
    format_version: int
    checksum: str  # xxh3_128 of the record's bytes as they stand in the file
    record: msgspec.Raw


def encode_record(record: LogRecord) -> bytes:
    """JSON for people to read; the checksum is over the bytes of `record`, so fields added later are covered as
    well."""
    body = msgspec.json.format(msgspec.json.encode(record), indent=1)
    return msgspec.json.encode(
        _Envelope(LOG_FORMAT_VERSION, xxhash.xxh3_128_hexdigest(body), msgspec.Raw(body)),
    )


def decode_record(data: bytes, uri: str) -> LogRecord:
    """:raises CheckpointDamaged: when the bytes are not a record, were changed, or are of a version that we cannot
    read."""
    try:
        envelope = decode_versioned(data, _Envelope, "format_version", (LOG_FORMAT_VERSION,), uri)
        body = bytes(envelope.record)
        if xxhash.xxh3_128_hexdigest(body) == envelope.checksum:
            return msgspec.json.decode(body, type=LogRecord)
        what = "its checksum does not match"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        what = str(error)
    raise CheckpointDamaged(
        f"the record {uri} of the job's log is damaged: {what}. It says which checkpoint counts, so the job does not "
        "start from a guess. Restore the file from a backup; or start a job of another name from one checkpoint: "
        "resume=<path of its _metadata.json>.",
        uri=uri,
    )


def when(epoch_s: float) -> str:
    """As people read it."""
    return datetime.fromtimestamp(epoch_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
