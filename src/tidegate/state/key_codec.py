"""Canonical bytes of keys. Version 1, pinned by tests/golden/keys.json; a change would strand every stored state.

Pure; executor, and wherever state files are read. The exact layout is in docs/decisions/0003-key-codec-and-hash.md.

Invariant 1. Equal keys have equal bytes, and only they. Keys of different types are never equal.
Invariant 2. The bytes of keys of one type sort as the keys do (NaN last, naive and aware datetimes apart).
Invariant 3. No key's bytes are a prefix of another's, so bytes can be joined, followed by anything, and
scanned by prefix.
"""

from __future__ import annotations

import enum
import math
import reprlib
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from tidegate.errors import KeyTypeError


class Kind(enum.IntEnum):
    """The types of keys. The value is the first byte of the encoding (an int's is 0x37 to 0x49) and the hash's seed."""

    NONE = 0x08
    BOOL = 0x10
    INT = 0x40
    FLOAT = 0x50
    DECIMAL = 0x58
    STR = 0x60
    BYTES = 0x68
    DATE = 0x70
    INSTANT = 0x78  #: an aware datetime
    NAIVE = 0x80  #: a datetime without a zone
    UUID = 0x88
    TUPLE = 0x90


#: The one NaN. Python compares dictionary keys by identity first, so one object makes all NaN one key.
NAN = math.nan
_NAN_BITS = 0x7FF8000000000000
_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_INT = int(Kind.INT)
_WIDE = 9  #: in place of a byte count: the count itself follows, in 4 bytes
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_FIRST_MICROS = (datetime.min - _EPOCH) // _MICROSECOND
_LAST_MICROS = (datetime.max - _EPOCH) // _MICROSECOND
TUPLE_START, TUPLE_END = b"\x90", b"\x00"
_END_OF_TEXT = b"\x00\x01"
_COMPLEMENT = bytes(range(255, -1, -1))
_TAGS = [bytes([tag]) for tag in range(256)]
_BYTE_LIMITS = np.array([1 << (8 * size) for size in range(8)], np.uint64)  #: from here on a number needs one byte more
WAYS_OUT = (
    "Use None, bool, int, float, str, bytes, Decimal, date, datetime, UUID, or a tuple of these "
    "(of a dataclass: a tuple of its fields; of an Enum: its name)."
)


def refused(key: Any, reason: str = "") -> KeyTypeError:
    kind = type(key)
    return KeyTypeError(
        f"{reprlib.repr(key)} of type {kind.__module__}.{kind.__qualname__} cannot be a key. {reason or WAYS_OUT}",
        key=reprlib.repr(key),
    )


def plain(key: Any) -> Any:
    """A numpy scalar as the Python value that it is; everything else that has no canonical form is refused."""
    if isinstance(key, np.bool_):
        return bool(key)
    if isinstance(key, np.integer) and not isinstance(key, np.timedelta64):
        return int(key)
    if isinstance(key, np.floating):
        return float(key)
    if isinstance(key, np.str_):
        return str(key)
    if isinstance(key, np.bytes_):
        return bytes(key)
    raise refused(key)


# -- content: what both the encoding and the hash are made of ---------------------------------------------------------


def float_bits(key: float) -> int:
    """IEEE 754 bits; -0.0 as 0.0, every NaN as the one quiet NaN."""
    if key != key:
        return _NAN_BITS
    bits: int = struct.unpack(">Q", struct.pack(">d", key + 0.0))[0]
    return bits


def utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise refused(key, "It has a lone surrogate, which is not text: use bytes.") from None


def text(key: str) -> str:
    """The key, which is text. :raises KeyTypeError: when it has a lone surrogate."""
    if not key.isascii():
        utf8(key)
    return key


def texts(keys: list[str]) -> list[str]:
    """All of them. One look at what they make together: a third of the time of one look at each."""
    try:
        joined = "".join(keys)
        if not joined.isascii():
            joined.encode()
    except UnicodeEncodeError:
        list(map(utf8, keys))  # raises, naming the key
    return keys


def is_naive(key: datetime) -> bool:
    return key.tzinfo is None or key.utcoffset() is None


def micros(key: datetime) -> int:
    """Microseconds since 1970-01-01, in UTC when aware, on the wall clock when naive."""
    if is_naive(key):
        return (key.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    since = (key - _EPOCH_UTC) // _MICROSECOND
    if not _FIRST_MICROS <= since <= _LAST_MICROS:
        raise refused(key, "In UTC it lies outside the years 1 to 9999.")
    return since


def days(key: date) -> int:
    return key.toordinal() - _EPOCH_DAY


def canonical_decimal(key: Decimal) -> Decimal:
    """The numerically equal Decimal without trailing zeros; whole numbers of up to 28 digits without exponent."""
    sign, digits, exponent = _decimal_parts(key)
    if not digits:
        return Decimal(0)
    if exponent > 0 and len(digits) + exponent <= 28:
        digits, exponent = digits + (0,) * exponent, 0
    return Decimal((sign, digits, exponent))


def _decimal_parts(key: Decimal) -> tuple[int, tuple[int, ...], int]:
    """Sign, digits without trailing zeros, exponent. Not by normalize(): it rounds to the context's precision."""
    if not key.is_finite():
        raise refused(key, "A Decimal key must be a finite number.")
    sign, digits, exponent = key.as_tuple()
    assert isinstance(exponent, int)
    size = len(digits)
    while size and digits[size - 1] == 0:
        size -= 1
    return sign, digits[:size], exponent + len(digits) - size


def decimal_content(key: Decimal) -> bytes:
    """Sign; then, unless zero, the first digit's exponent, pairs of digits plus one, 0; inverted when negative."""
    sign, digits, exponent = _decimal_parts(key)
    if not digits:
        return b"\x02"
    padded = digits if len(digits) % 2 == 0 else (*digits, 0)
    pairs = bytes([10 * padded[at] + padded[at + 1] + 1 for at in range(0, len(padded), 2)])
    body = (exponent + len(digits) - 1 + _SIGN).to_bytes(8, "big") + pairs + b"\x00"
    return b"\x01" + body.translate(_COMPLEMENT) if sign else b"\x03" + body


# -- encoding ---------------------------------------------------------------------------------------------------------


def encode_int(key: int) -> bytes:
    if key >= 0:
        size = (key.bit_length() + 7) >> 3
        if size <= 8:
            return _TAGS[_INT + size] + key.to_bytes(size, "big")
        return _TAGS[_INT + _WIDE] + _wide_size(size) + key.to_bytes(size, "big")
    size = ((-key).bit_length() + 7) >> 3
    body = ((1 << (8 * size)) - 1 + key).to_bytes(size, "big")
    if size <= 8:
        return _TAGS[_INT - size] + body
    return _TAGS[_INT - _WIDE] + _wide_size(size).translate(_COMPLEMENT) + body


def encode_int64s(keys: np.ndarray[Any, Any]) -> pa.Array:
    """What `encode_int` gives for each, as one column: a tenth of the time."""
    negative = keys < 0
    bits = keys.view(np.uint64)
    size = np.where(negative, ~bits + np.uint64(1), bits)  # magnitudes first, then their lengths in bytes
    size = np.searchsorted(_BYTE_LIMITS, size, side="right").astype(np.uint64)
    # Left-aligned, so that the bytes that count come first. Shifts by 64 bits are undefined: a zero stays as it is.
    shift = np.where(size == 0, np.uint64(0), (np.uint64(8) - size) * np.uint64(8))
    body = np.where(negative, bits - np.uint64(1), bits) << shift
    rows = np.empty((len(keys), 9), np.uint8)
    rows[:, 0] = np.where(negative, _INT - size.astype(np.int64), _INT + size.astype(np.int64))
    rows[:, 1:] = body.astype(">u8").view(np.uint8).reshape(-1, 8)
    lengths = size.astype(np.int64) + 1
    offsets = np.zeros(len(keys) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = rows[np.arange(9) < lengths[:, None]]
    return pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def decode_int64s(column: pa.Array) -> np.ndarray[Any, Any] | None:
    """The way back; None when some are not ints of 64 bits."""
    if column.type != pa.binary() or column.null_count:
        return None
    count = len(column)
    _, offsets_buffer, data_buffer = column.buffers()
    if not count or data_buffer is None:
        return np.empty(0, np.int64) if not count else None
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if not lengths.all():
        return None
    tags = data[starts].astype(np.int64) - _INT
    sizes = np.abs(tags)
    if int(sizes.max()) > 8 or not np.array_equal(lengths, sizes + 1):
        return None
    bits = np.zeros(count, np.uint64)
    for at in range(1, int(sizes.max()) + 1):
        rows = np.flatnonzero(sizes >= at)
        bits[rows] = (bits[rows] << np.uint64(8)) | data[starts[rows] + at]
    negative = np.flatnonzero(tags < 0)
    if len(negative):
        used = sizes[negative].astype(np.uint64) * np.uint64(
            8
        )  # bits; above them stand ones. Shifts by 64 are undefined.
        above = np.full(len(negative), _MASK, np.uint64) << np.minimum(used, np.uint64(63))
        bits[negative] = np.where(used == 64, bits[negative], bits[negative] | above) + np.uint64(1)
    keys = bits.view(np.int64)
    return keys if np.array_equal(keys < 0, tags < 0) else None  # else some are beyond 64 bits


def _wide_size(size: int) -> bytes:
    return size.to_bytes(4, "big")


def _encode_none(key: None) -> bytes:
    return b"\x08"


def _encode_bool(key: bool) -> bytes:
    return b"\x10\x01" if key else b"\x10\x00"


def _encode_float(key: float) -> bytes:
    bits = float_bits(key)
    return b"\x50" + (bits ^ _MASK if bits & _SIGN else bits | _SIGN).to_bytes(8, "big")


def _encode_decimal(key: Decimal) -> bytes:
    return b"\x58" + decimal_content(key)


def encode_str(key: str) -> bytes:
    data = utf8(key)
    return b"\x60" + (data.replace(b"\x00", b"\x00\xff") if b"\x00" in data else data) + _END_OF_TEXT


def _encode_bytes(key: bytes) -> bytes:
    return b"\x68" + key.replace(b"\x00", b"\x00\xff") + _END_OF_TEXT


def _encode_date(key: date) -> bytes:
    return b"\x70" + (days(key) + (1 << 31)).to_bytes(4, "big")


def _encode_datetime(key: datetime) -> bytes:
    return (b"\x80" if is_naive(key) else b"\x78") + (micros(key) + _SIGN).to_bytes(8, "big")


def _encode_uuid(key: UUID) -> bytes:
    return b"\x88" + key.bytes


def _encode_tuple(key: tuple[Any, ...]) -> bytes:
    return TUPLE_START + b"".join([encode_key(part) for part in key]) + TUPLE_END


ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): _encode_none,
    bool: _encode_bool,
    int: encode_int,
    float: _encode_float,
    Decimal: _encode_decimal,
    str: encode_str,
    bytes: _encode_bytes,
    date: _encode_date,
    datetime: _encode_datetime,
    UUID: _encode_uuid,
    tuple: _encode_tuple,
}


def encode_key(key: Any) -> bytes:
    """:raises KeyTypeError: when `key` has no canonical form."""
    encoder = ENCODERS.get(type(key))
    return encoder(key) if encoder is not None else encode_key(plain(key))


# -- decoding ---------------------------------------------------------------------------------------------------------


def decode_key(data: bytes) -> Any:
    """:raises KeyTypeError: when `data` is not the encoding of one key."""
    try:
        key, end = _DECODERS[data[0]](data, 1)
    except (IndexError, ValueError, OverflowError, struct.error) as error:
        raise _not_a_key(data, str(error)) from None
    if end != len(data):
        raise _not_a_key(data, f"{len(data) - end} bytes follow the key")
    return key


def decode_prefix(data: bytes, start: int = 0) -> tuple[Any, int]:
    """The key that begins at `start`, and where it ends."""
    try:
        return _DECODERS[data[start]](data, start + 1)
    except (IndexError, ValueError, OverflowError, struct.error) as error:
        raise _not_a_key(data, str(error)) from None


def _not_a_key(data: bytes, reason: str) -> KeyTypeError:
    return KeyTypeError(
        f"stored bytes {data[:40].hex()} are not a key ({reason}). The file is damaged, or written by a newer release.",
        data=data[:40].hex(),
    )


def _taken(data: bytes, at: int, size: int) -> bytes:
    part = data[at : at + size]
    if len(part) != size:
        raise ValueError("it ends too early")
    return part


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_taken(data, at, size), "big")


def _decode_nothing(data: bytes, at: int) -> tuple[Any, int]:
    raise ValueError(f"no key begins with the byte {data[at - 1]:#04x}")


def _decode_int(data: bytes, at: int) -> tuple[int, int]:
    size = data[at - 1] - _INT
    negative = size < 0
    if size in (_WIDE, -_WIDE):
        size = _number(data, at, 4) ^ (0xFFFFFFFF if negative else 0)
        at += 4
    elif negative:
        size = -size
    key = _number(data, at, size)
    return (key - (1 << (8 * size)) + 1 if negative else key), at + size


def _decode_none(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _decode_bool(data: bytes, at: int) -> tuple[bool, int]:
    return (False, True)[data[at]], at + 1


def _decode_float(data: bytes, at: int) -> tuple[float, int]:
    bits = _number(data, at, 8)
    key: float = struct.unpack(">d", (bits ^ _SIGN if bits & _SIGN else bits ^ _MASK).to_bytes(8, "big"))[0]
    return (key if key == key else NAN), at + 8


def _decode_decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    sign = data[at]
    if sign == 0x02:
        return Decimal(0), at + 1
    if sign not in (0x01, 0x03):
        raise ValueError(f"no Decimal has the sign byte {sign:#04x}")
    end = data.index(0x00 if sign == 0x03 else 0xFF, at + 9)
    body = data[at + 1 : end] if sign == 0x03 else data[at + 1 : end].translate(_COMPLEMENT)
    digits = tuple([digit for pair in body[8:] for digit in divmod(pair - 1, 10)])
    exponent = int.from_bytes(body[:8], "big") - _SIGN - len(digits) + 1
    return canonical_decimal(Decimal((int(sign == 0x01), digits, exponent))), end + 1


def _decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.index(_END_OF_TEXT, at)
    return data[at:end].replace(b"\x00\xff", b"\x00"), end + 2


def _decode_str(data: bytes, at: int) -> tuple[str, int]:
    content, end = _decode_bytes(data, at)
    return content.decode(), end


def _decode_date(data: bytes, at: int) -> tuple[date, int]:
    return date.fromordinal(_number(data, at, 4) - (1 << 31) + _EPOCH_DAY), at + 4


def _decode_instant(data: bytes, at: int) -> tuple[datetime, int]:
    return _EPOCH_UTC + timedelta(microseconds=_number(data, at, 8) - _SIGN), at + 8


def _decode_naive(data: bytes, at: int) -> tuple[datetime, int]:
    return _EPOCH + timedelta(microseconds=_number(data, at, 8) - _SIGN), at + 8


def _decode_uuid(data: bytes, at: int) -> tuple[UUID, int]:
    return UUID(bytes=_taken(data, at, 16)), at + 16


def _decode_tuple(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    parts = []
    while data[at] != 0:
        part, at = _DECODERS[data[at]](data, at + 1)
        parts.append(part)
    return tuple(parts), at + 1


#: By the first byte; each gets the position after it, and gives the key and where it ends.
_DECODERS: list[Callable[[bytes, int], tuple[Any, int]]] = [_decode_nothing] * 256
_DECODERS[_INT - _WIDE : _INT + _WIDE + 1] = [_decode_int] * (2 * _WIDE + 1)
_DECODERS[Kind.NONE] = _decode_none
_DECODERS[Kind.BOOL] = _decode_bool
_DECODERS[Kind.FLOAT] = _decode_float
_DECODERS[Kind.DECIMAL] = _decode_decimal
_DECODERS[Kind.STR] = _decode_str
_DECODERS[Kind.BYTES] = _decode_bytes
_DECODERS[Kind.DATE] = _decode_date
_DECODERS[Kind.INSTANT] = _decode_instant
_DECODERS[Kind.NAIVE] = _decode_naive
_DECODERS[Kind.UUID] = _decode_uuid
_DECODERS[Kind.TUPLE] = _decode_tuple
