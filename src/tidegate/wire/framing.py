"""Control messages as bytes of a connection: large ones in pieces, so that none is too large and heartbeats pass between them.

    length u32 big-endian; its highest bit: a piece        body
    of a whole message                                     the message
    of a piece                                             number u32 of its message, last u8 (0 or 1), bytes

Pieces of several messages may be mixed, as threads send them; those of one message are in order. A message may have
MAX_MESSAGE_BYTES: what it is made of must be in the receiver's memory at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidegate.errors import ProtocolViolation

HEAD = struct.Struct(">I")
PIECE_BYTES = 8 << 20
MAX_MESSAGE_BYTES = 4 << 30  #: in all its pieces
_IS_PIECE = 1 << 31
_PIECE = struct.Struct(">IB")


def frames_of(message: bytes, number: int) -> Iterator[bytes]:
    """What is written, one after another; between two, frames of other messages may be. `number`: new for each message."""
    if len(message) <= PIECE_BYTES:
        yield HEAD.pack(len(message)) + message
        return
    view = memoryview(message)
    for start in range(0, len(message), PIECE_BYTES):
        part = view[start : start + PIECE_BYTES]
        is_last = start + PIECE_BYTES >= len(message)
        head = HEAD.pack(_IS_PIECE | (_PIECE.size + len(part)))
        yield b"".join((head, _PIECE.pack(number & 0xFFFFFFFF, is_last), part))


@dataclass(slots=True)
class Received:
    """One side of a connection: frames in, messages out."""

    _begun: dict[int, bytearray] = field(default_factory=dict)  #: pieces so far, by the message's number

    def length_of(self, head: bytes) -> int:
        """Of the body that follows. :raises ProtocolViolation: for one that nobody sends."""
        (word,) = HEAD.unpack(head)
        length: int = word & ~_IS_PIECE
        if length > PIECE_BYTES + (_PIECE.size if word & _IS_PIECE else 0):
            raise ProtocolViolation(f"a control frame of {length} bytes was announced; the limit is {PIECE_BYTES}")
        return length

    def message(self, head: bytes, body: bytes) -> bytes | None:
        """The message that is whole with this frame, if one is. :raises ProtocolViolation:"""
        if not HEAD.unpack(head)[0] & _IS_PIECE:
            return body
        if len(body) < _PIECE.size:
            raise ProtocolViolation("a piece of a control message was cut short")
        number, is_last = _PIECE.unpack_from(body)
        begun = self._begun.setdefault(number, bytearray())
        begun += memoryview(body)[_PIECE.size :]
        if sum(map(len, self._begun.values())) > MAX_MESSAGE_BYTES:
            raise ProtocolViolation(f"a control message has more than {MAX_MESSAGE_BYTES} bytes")
        return bytes(self._begun.pop(number)) if is_last else None
