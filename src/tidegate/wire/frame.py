"""Frames: how elements travel in the rows of Spark's shuffle. Version 1. Executor only.

A Spark row is `(dst int, frame binary)`. A frame is a fixed header, a seal and a payload (little-endian):

    offset  size  field
    0       1     format version (1)
    1       1     element kind
    2       2     flags: 1 = payload is pickled rows, 2 = timestamps precede the payload, 4 = columns hold pickles
                  on a barrier: 8 = unaligned, 16 = aligned with a timeout
    4       2     sender: the slot that put the row into this exchange (physical channel)
    6       2     origin: the subtask that made the element (logical channel)
    8       2     target: the subtask it is for; 65535 on elements that are for the slot itself
    10      2     edge: index of the logical edge in the plan; 65535 on elements of the physical channel
    12      4     sequence: counts the frames of one physical channel from 0, modulo 2**32
    16      4     count: records in the payload
    20      8     value: checkpoint id or watermark
    28      16    seal
    44            payload

The seal is made with the attempt's key, so a frame of another attempt or of a stranger is refused. Frames whose payload
is or holds pickles carry an HMAC-SHA256, and are unpickled only after it was checked; the others (typed columns, no
payload) carry a keyed xxh3, which is forty times as fast and keeps out mistakes, not attackers. Spark's channels are not
encrypted either way (docs/decisions/0009).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from dataclasses import dataclass

import xxhash

from tidegate.errors import ProtocolViolation

VERSION = 1
NONE_16 = 0xFFFF
FLAG_PICKLED = 1
FLAG_TIMESTAMPS = 2
FLAG_HOLDS_PICKLES = 4
STRONGLY_SEALED = FLAG_PICKLED | FLAG_HOLDS_PICKLES
FLAG_UNALIGNED = 8  #: on a barrier: act when it arrives, not when it is read in its turn
FLAG_TIMEOUTABLE = 16  #: on a barrier: aligned, but may turn unaligned

_HEADER = struct.Struct("<BBHHHHHIIq")
HEADER_BYTES = _HEADER.size
SEAL_BYTES = 16
PAYLOAD_OFFSET = HEADER_BYTES + SEAL_BYTES
_QQ = struct.Struct("<QQ")


class Kind(enum.IntEnum):
    """What a frame carries."""

    RECORDS = 1
    WATERMARK = 2
    CHECKPOINT_BARRIER = 3
    END_OF_INPUT = 4
    FLUSH = 5  #: nothing; pushes the frame before it out of Spark's look-ahead


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
        return PAYLOAD_OFFSET + len(self.payload)


class FrameSeal:
    """Seals and checks frames of one attempt."""

    __slots__ = ("_key", "_seed")

    def __init__(self, attempt_key: bytes) -> None:
        self._key = hashlib.sha256(b"tidegate frame seal" + attempt_key).digest()
        self._seed = int.from_bytes(self._key[:8], "little")

    def make(self, header: bytes, flags: int, payload: bytes | memoryview) -> bytes:
        if flags & STRONGLY_SEALED:
            mac = hmac.new(self._key, header, "sha256")
            mac.update(payload)
            return mac.digest()[:SEAL_BYTES]
        body = xxhash.xxh3_64_intdigest(payload, self._seed)
        return _QQ.pack(xxhash.xxh3_64_intdigest(header, self._seed ^ body), body)

    def check(self, header: bytes, flags: int, payload: bytes | memoryview, seal: bytes) -> bool:
        return hmac.compare_digest(self.make(header, flags, payload), seal)


def encode_frame(
    seal: FrameSeal,
    kind: Kind,
    *,
    sender: int,
    sequence: int,
    origin: int = NONE_16,
    target: int = NONE_16,
    edge: int = NONE_16,
    count: int = 0,
    value: int = 0,
    flags: int = 0,
    payload: bytes | memoryview = b"",
) -> bytes:
    header = _HEADER.pack(VERSION, kind, flags, sender, origin, target, edge, sequence & 0xFFFFFFFF, count, value)
    return b"".join((header, seal.make(header, flags, payload), payload))


def decode_frame(seal: FrameSeal, data: memoryview) -> Frame:
    """:raises ProtocolViolation: when the frame is cut short, of another version, or not of this attempt."""
    if len(data) < PAYLOAD_OFFSET:
        raise ProtocolViolation(f"a frame of {len(data)} bytes is shorter than its header")
    header = bytes(data[:HEADER_BYTES])
    version, kind, flags, sender, origin, target, edge, sequence, count, value = _HEADER.unpack(header)
    if version != VERSION:
        raise ProtocolViolation(f"a frame of format version {version}; this release reads {VERSION}")
    payload = data[PAYLOAD_OFFSET:]
    if not seal.check(header, flags, payload, bytes(data[HEADER_BYTES:PAYLOAD_OFFSET])):
        raise ProtocolViolation(f"a frame from sender {sender} is not sealed by this attempt, or was damaged")
    if kind not in _KINDS:
        raise ProtocolViolation(f"a frame from sender {sender} is of the unknown kind {kind}")
    return Frame(Kind(kind), sender, origin, target, edge, sequence, count, value, flags, payload)


def barrier_flags(unaligned_after_s: float | None) -> int:
    """How a source's barrier begins: aligned to the end, unaligned, or aligned for a while."""
    if unaligned_after_s is None:
        return 0
    return FLAG_UNALIGNED if unaligned_after_s <= 0 else FLAG_TIMEOUTABLE
