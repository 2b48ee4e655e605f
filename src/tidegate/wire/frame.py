"""Frames: how elements travel in the rows of Spark's shuffle. Version 2. Pure.

A Spark row is `(dst int, frame binary)`. A frame is an envelope, a header, a payload and a tag (little-endian):

    offset  size  field
    0       1     format version (2)                                                           envelope: always to be read
    2       2     sender: the slot that put the row into this exchange (physical channel)
    8       8     sequence: counts the frames of one physical channel from 0
    16      1     element kind                                                                 header
    18      2     flags: 1 = payload is pickled rows, 2 = timestamps precede the payload
                  on a barrier: 8 = unaligned, 16 = aligned with a timeout
    20      2     origin: the subtask that made the element (logical channel)
    22      2     target: the subtask it is for; 65535 on elements that are for the slot itself
    24      2     edge: index of the logical edge in the plan; 65535 on elements of the physical channel
    28      4     count: records in the payload
    32      8     value: checkpoint id or watermark
    40            payload
    end     16    tag

Bytes between two fields are 0: columns are quicker where their numbers begin at a multiple of 8, also when they were opened.
The tag is made with the key of the physical channel (wire/seal.py), which only the attempt's workers can derive: nothing is
acted upon, and no pickle is read, before the tag was checked. In a job that encrypts, header and payload are encrypted.
Frames of a channel are opened in the order in which they were sealed: one that is missing, came before or comes again ends the
slot, before a barrier can be taken for anything.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from tidegate.errors import ProtocolViolation
from tidegate.ids import SlotId
from tidegate.wire.seal import TAG_BYTES, ChannelSeal, FrameSeal

VERSION = 2
NONE_16 = 0xFFFF
FLAG_PICKLED = 1
FLAG_TIMESTAMPS = 2
#: 4 was for columns that hold pickles. It may stand on records that an old checkpoint holds, and means nothing any more.
FLAG_UNALIGNED = 8  #: on a barrier: act when it arrives, not when it is read in its turn
FLAG_TIMEOUTABLE = 16  #: on a barrier: aligned, but may turn unaligned

_ENVELOPE = struct.Struct("<BxH4xQ")
_HEADER = struct.Struct("<BxHHHHxxIq")
PAYLOAD_OFFSET = _ENVELOPE.size + _HEADER.size
OVERHEAD_BYTES = PAYLOAD_OFFSET + TAG_BYTES


class Kind(enum.IntEnum):
    """What a frame carries."""

    RECORDS = 1
    WATERMARK = 2
    CHECKPOINT_BARRIER = 3
    END_OF_INPUT = 4
    PULSE = 5  #: nothing; with it Spark tells the sender of a silent channel whether its connection still stands


_KINDS = frozenset(int(kind) for kind in Kind)


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame. `payload` is a view into the row it came in."""

    kind: Kind
    sender: int
    origin: int
    target: int
    edge: int
    sequence: int
    count: int
    value: int
    flags: int
    payload: memoryview

    @property
    def size_bytes(self) -> int:
        return OVERHEAD_BYTES + len(self.payload)


def encode_frame(
    channel: ChannelSeal,
    kind: Kind,
    *,
    sequence: int,
    origin: int = NONE_16,
    target: int = NONE_16,
    edge: int = NONE_16,
    count: int = 0,
    value: int = 0,
    flags: int = 0,
    payload: bytes | memoryview = b"",
) -> bytes:
    header = _HEADER.pack(kind, flags, origin, target, edge, count, value)
    return channel.close(
        sequence, _ENVELOPE.pack(VERSION, channel.sender, sequence), b"".join((header, payload)) if payload else header
    )


def decode_frame(seal: FrameSeal, to: SlotId, data: memoryview) -> Frame:
    """A frame that has come to slot `to`, whatever its turn.

    :raises ProtocolViolation: when it is cut short, of another version, not of this attempt or not for this slot.
    """
    if len(data) < OVERHEAD_BYTES:
        raise ProtocolViolation(f"a frame of {len(data)} bytes came to slot {to}: it is shorter than its header")
    version, sender, sequence = _ENVELOPE.unpack_from(data)
    if version != VERSION:
        raise ProtocolViolation(f"a frame of format version {version} came to slot {to}; this release reads {VERSION}")
    content = seal.channel(to, sender).open(sequence, data, _ENVELOPE.size)
    if content is None:
        raise ProtocolViolation(
            f"frame {sequence} from sender {sender} to slot {to} is not sealed by this attempt for this place, or was damaged "
            "on its way"
        )
    kind, flags, origin, target, edge, count, value = _HEADER.unpack_from(content)
    if kind not in _KINDS:
        raise ProtocolViolation(f"a frame from sender {sender} to slot {to} is of the unknown kind {kind}")
    return Frame(Kind(kind), sender, origin, target, edge, sequence, count, value, flags, content[_HEADER.size :])


class FrameOpener:
    """All frames that come to one slot, opened in the order of each channel."""

    def __init__(self, seal: FrameSeal, to: SlotId) -> None:
        self._seal = seal
        self._to = to
        self._due: dict[int, int] = {}  #: of each sender: the number of its next frame

    def open(self, data: memoryview) -> Frame:
        """:raises ProtocolViolation: as decode_frame, and for a frame whose turn it is not."""
        frame = decode_frame(self._seal, self._to, data)
        due = self._due.get(frame.sender, 0)
        if frame.sequence != due:
            raise ProtocolViolation(
                f"frame {frame.sequence} from sender {frame.sender} came to slot {self._to} where {due} was due: frames were "
                "lost, repeated or put into another order on their way"
            )
        self._due[frame.sender] = due + 1
        return frame


def barrier_flags(unaligned_after_s: float | None) -> int:
    """How a source's barrier begins: aligned to the end, unaligned, or aligned for a while."""
    if unaligned_after_s is None:
        return 0
    return FLAG_UNALIGNED if unaligned_after_s <= 0 else FLAG_TIMEOUTABLE
