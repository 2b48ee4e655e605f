"""Control messages between the coordinator (driver) and the slots (executors). Version 5.

MessagePack by msgspec: typed, bounded, never pickled. How they travel is in wire/framing.py. The first messages of a connection
prove that both sides know the attempt's token, without sending it (see wire/handshake.py).

Some messages are only shown to people (SHOWN): whatever text and numbers a user's code put into them, they are sent, as near to
the truth as 64 bits and UTF-8 can say it. All others arrive as they are, or are refused.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from tidegate.errors import ProtocolViolation
from tidegate.protocol.credit import Grant, Progress
from tidegate.shown import shown_count, shown_text
from tidegate.storage.metadata import Committable, FileRef, SectionRef, SlotSnapshot, SplitState
from tidegate.storage.state_files import StateFiles
from tidegate.wire.framing import MAX_MESSAGE_BYTES

PROTOCOL_VERSION = 5


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all; the class name is the tag on the wire."""


# -- slot to coordinator ------------------------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """State is restored, restored committables are committed, input may flow."""

    restore_s: float
    local_bytes: int = 0  # of state, from intact copies on the executor's disk
    storage_bytes: int = 0
    rejected_copies: int = 0  # that were there, and not what the checkpoint's metadata says


class HotKey(msgspec.Struct, frozen=True):
    """A key that many records had."""

    key: str  # as text, shortened
    records: int  # about so many, estimated from a sample


class HotKeys(msgspec.Struct, frozen=True):
    """The hottest keys of one subtask of a keyed operator, of late."""

    records: int  # of all keys, estimated the same way
    keys: list[HotKey]  # the hottest first


class OperatorMetrics(msgspec.Struct, frozen=True):
    """One subtask of one operator, since the start of the attempt."""

    uid: str
    subtask: int
    records_in: int
    records_out: int
    watermark: int | None = None  # event time in ms; None where there is none yet
    counters: dict[str, int] = {}  # the user's own, ctx.counter(name)
    bytes_in: int = 0  # of records, from other slots; none inside a chain
    bytes_out: int = 0
    hot_keys: HotKeys | None = None  # None where the operator has no keys
    gauges: dict[str, float] = {}  # the user's own, ctx.gauge(name, function)
    histograms: dict[str, dict[str, float]] = {}  # ctx.histogram(name): "count", "min", ... "p999"
    own: dict[str, float] = {}  # of its source, sink or state, by the names in rest/metric_table.py


class LogLine(msgspec.Struct, frozen=True):
    """What the user's code, or ours, has logged in a slot."""

    at: float  # epoch seconds
    level: str
    logger: str
    message: str
    uid: str = ""  # of the operator that logged it; "": the slot itself
    operator: str = ""
    subtask: int = -1


class ProcessUse(msgspec.Struct, frozen=True):
    """What a worker's process takes of its machine."""

    resident_bytes: int  # memory; 0 where it is not known
    cpu_ms: int  # since the process began


class Heartbeat(Message, frozen=True):
    """Once a second, from a thread of its own; silence means a frozen worker."""

    busy_ms: int  # since the start of the attempt
    idle_ms: int
    backpressured_ms: int
    inbox_bytes: int
    held_bytes: int
    operators: list[OperatorMetrics] = []
    logs: list[LogLine] = []  # since the last one
    logs_dropped: int = 0  # lines that were over the bound
    process: ProcessUse | None = None  # None: not known yet


class CodeLine(msgspec.Struct, frozen=True):
    """A line of code that was on a sampled stack."""

    function: str
    file: str
    line: int
    owner: str  # user | tidegate | spark | library


class SampledStack(msgspec.Struct, frozen=True):
    """One way of calls, with how often it was seen."""

    uid: str  # of the innermost operator at work; "": the slot itself
    lines: list[int]  # numbers of `Sampled.lines`, the outermost call first
    samples: int
    on_cpu: int  # of these, those in which the thread was computing and not waiting


class Sampled(Message, frozen=True):
    """Where the task's thread was since the last one. Comes about once a second, and only while somebody looks."""

    lines: list[CodeLine]
    stacks: list[SampledStack]


class LastCounts(Message, frozen=True):
    """All input of the slot has ended: its counts stay as they are. Comes right before `Ended`."""

    operators: list[OperatorMetrics]


class SnapshotTimings(msgspec.Struct, frozen=True):
    start_delay_s: float = 0.0  # trigger's arrival at the slot to the first barrier
    alignment_s: float = 0.0  # first to last barrier
    sync_s: float = 0.0
    pause_s: float = 0.0  # since the snapshot before, the longest time in which the slot heard nothing
    async_s: float = 0.0
    alignment_bytes: int = 0  # held back during alignment
    in_flight_bytes: int = 0  # stored with an unaligned snapshot
    unaligned: bool = False
    state_bytes: int = 0  # of the slot's whole state
    added_bytes: int = 0  # that were stored for this checkpoint; less than all when it is incremental


class Acknowledge(Message, frozen=True):
    """The slot's snapshot is stored."""

    checkpoint: int
    snapshot: SlotSnapshot
    timings: SnapshotTimings


class Decline(Message, frozen=True):
    """The slot could not take part; the job continues. `overtaken`: by a newer checkpoint, which is not a failure."""

    checkpoint: int
    reason: str
    overtaken: bool = False


class InboxOverBound(Message, frozen=True):
    """An unaligned checkpoint has opened the inbox, and it holds more than its bound now."""


class InboxWithinBound(Message, frozen=True):
    """What was over the bound has been processed."""


class WatermarkReached(Message, frozen=True):
    """A source that is aligned with others says how far it is in event time; IDLE and MAX_WATERMARK as watermarks have them."""

    group: str
    uid: str
    subtask: int
    watermark: int


class Progressed(Message, frozen=True):
    """A slot that cannot keep up says what it has processed and what its senders may have under way (protocol/credit.py)."""

    progress: Progress


class Ended(Message, frozen=True):
    """Every chain of the slot has had its end of input."""


class Committed(Message, frozen=True):
    """Everything this slot prepared up to `checkpoint` is committed."""

    checkpoint: int


class SlotFailed(Message, frozen=True):
    """An exception ends the slot. Text only: the driver never unpickles what an executor says."""

    kind: str  # user | connector | commit_lost | permanent | internal
    message: str
    traceback: str
    operator: str = ""
    uid: str = ""
    subtask: int = -1
    checkpoint: int | None = None
    user_line: str = ""
    may_pass: bool = True  # the same call may succeed later; False: the same record will fail again


class ToDriver(Message, frozen=True):
    """Payload for the driver's side of a sink: printed lines, collected records."""

    uid: str
    subtask: int
    topic: str
    payload: bytes


# -- coordinator to slot ------------------------------------------------------------------------------------------


class StateShare(msgspec.Struct, frozen=True):
    """Rows `start` to `stop` of one section of operator state; `file.sections` is that section and its schema."""

    file: FileRef
    start: int
    stop: int


class SubtaskRestore(msgspec.Struct, frozen=True):
    """What one subtask continues from."""

    uid: str
    subtask: int
    ended: bool = False
    watermark: int | None = None
    splits: list[SplitState] = []
    committables: list[Committable] = []
    old_parallelism: int = 0  # of the operator when the checkpoint was taken; 0 when it is new


class Start(Message, frozen=True):
    """Answer to the slot's hello: where to continue."""

    restored_from: int | None  # checkpoint id, None for a fresh start
    subtasks: list[SubtaskRestore]
    files: list[FileRef]
    operator_state: list[StateShare] = []  # in the order of the old subtasks
    in_flight: list[FileRef] = []  # records that were under way to this slot's operators; the oldest file first
    incarnation: str = ""  # of the job's log
    dropped_states: list[tuple[str, str]] = []  # (uid, state) that nobody declares any more, and may be forgotten
    changed: list[str] = []  # uids whose state is not restored as it is stored: converted, renamed or dropped
    commit_only: bool = False  # the savepoint of a stop stands: commit what it holds, process nothing
    states: list[StateFiles] = []  # keyed state kept as files, of every old subtask with key groups of ours
    owned: bool = True  # the checkpoint is this job's own: the next one may refer to its files


class SavepointOrder(msgspec.Struct, frozen=True):
    """Where a slot stores its part of a savepoint."""

    folder: str  # a URI, without a slash at the end
    format: str  # canonical | native


class Trigger(Message, frozen=True):
    """Checkpoint `checkpoint` begins. Sources act on it; the others note the time and open their inboxes.

    `unaligned_after_s`: None: aligned to the end; 0: unaligned from the start; else aligned until so long after the
    trigger's arrival.
    """

    checkpoint: int
    unaligned_after_s: float | None = None
    savepoint: SavepointOrder | None = None
    halt: bool = False  # process nothing after the barrier, until it is aborted or the job ends


class Drain(Message, frozen=True):
    """Sources end as if there were nothing more to read; their splits stay unfinished."""


class PauseSources(Message, frozen=True):
    """An inbox is over its bound: read nothing more. Barriers are sent all the same."""


class GroupAt(Message, frozen=True):
    """The lowest of a group of aligned sources has come to `watermark`; MAX_WATERMARK: nobody holds anybody back."""

    group: str
    watermark: int


class ResumeSources(Message, frozen=True):
    """All inboxes are within their bounds."""


class Credits(Message, frozen=True):
    """How many records the slot may have under way to slots of the next layer; the newest word of each counts."""

    grants: list[Grant]


class SampleStacks(Message, frozen=True):
    """Somebody looks: sample the task's thread so many times a second, for so long from now on. The newest order counts."""

    seconds: float
    per_s: float


class Complete(Message, frozen=True):
    """The checkpoint stands in the job's log: commit everything prepared up to it."""

    checkpoint: int


class Abort(Message, frozen=True):
    """As if it had never been triggered. Carries the latest completed one, which repairs a lost `Complete`."""

    checkpoint: int
    latest_completed: int


class Finish(Message, frozen=True):
    """FINISHED is in the log: end. `goes_on`: this attempt ends, and the job continues from it with another plan."""

    goes_on: bool = False


class Cancel(Message, frozen=True):
    """End now, without another word to the outside."""


FromSlot = Union[
    Ready,
    Heartbeat,
    Sampled,
    LastCounts,
    Acknowledge,
    Decline,
    InboxOverBound,
    InboxWithinBound,
    WatermarkReached,
    Progressed,
    Ended,
    Committed,
    SlotFailed,
    ToDriver,
]
ToSlot = Union[
    Start, Trigger, Drain, PauseSources, ResumeSources, GroupAt, Credits, SampleStacks, Complete, Abort, Finish, Cancel
]

_encoder = msgspec.msgpack.Encoder()
_from_slot = msgspec.msgpack.Decoder(FromSlot)
_to_slot = msgspec.msgpack.Decoder(ToSlot)


#: Nobody acts on their text and numbers: a healthy job never ends because one of them cannot be encoded.
SHOWN = (Heartbeat, Sampled, LastCounts, SlotFailed, Decline)


class Unsendable(ProtocolViolation):
    """A message that cannot be encoded: too large, or with text or numbers that no encoding takes."""


def encode(message: FromSlot | ToSlot) -> bytes:
    """:raises Unsendable:"""
    try:
        data = _encoder.encode(message)
    except (ValueError, OverflowError, TypeError) as error:  # UnicodeEncodeError is a ValueError
        if not isinstance(message, SHOWN):
            raise Unsendable(f"a control message ({type(message).__name__}) cannot be encoded: {error}") from error
        data = _encoder.encode(_fit(message))
    if len(data) > MAX_MESSAGE_BYTES:
        raise Unsendable(
            f"a control message ({type(message).__name__}) of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}"
        )
    return data


def _fit(value: Any) -> Any:
    """The same, with text and numbers that can be encoded."""
    match value:
        case str():
            return shown_text(value)
        case bool() | float() | bytes() | None:
            return value
        case int():
            return shown_count(value)
        case list():
            return [_fit(part) for part in value]
        case dict():
            return {_fit(name): _fit(part) for name, part in value.items()}
        case msgspec.Struct():
            return type(value)(*(_fit(getattr(value, name)) for name in value.__struct_fields__))
        case _:
            raise Unsendable(f"{type(value).__name__} is not a part of any control message")


def decode_from_slot(data: bytes) -> FromSlot:
    try:
        message: FromSlot = _from_slot.decode(data)
        return message
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"not a message from a slot: {error}") from error


def decode_to_slot(data: bytes) -> ToSlot:
    try:
        message: ToSlot = _to_slot.decode(data)
        return message
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"not a message to a slot: {error}") from error


__all__ = ["Committable", "FileRef", "SectionRef", "SlotSnapshot", "SplitState"]
