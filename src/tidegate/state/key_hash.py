"""The 64-bit hash of keys, the same for a Python value and for an Arrow column of such values. Version 1, pinned.

Pure; executor. Routing and key groups come from it, so a change would strand every stored state: golden values in
tests/golden/keys.json. Formulas in docs/decisions/0003-key-codec-and-hash.md.

    salt(kind) = kind * 0x9E3779B97F4A7C15 mod 2**64
    fixed width (None, bool, int of 64 bits, float, date, datetime):  mix64(pattern xor salt(kind))
    variable width (wider int, Decimal, str, bytes, UUID):            xxh3_64(content, seed=kind)
    tuple:  h = mix64(length xor salt(TUPLE)), then for each part  h = mix64(h xor hash(part))

Equal keys have equal hashes. The reverse does not hold: -1 and 2**64 - 1, for one, are different keys of one hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat
import xxhash

from tidegate.errors import KeyTypeError
from tidegate.state.key_codec import (
    Kind,
    days,
    decimal_content,
    encode_int,
    float_bits,
    is_naive,
    micros,
    plain,
    utf8,
)
from tidegate.state.short_texts import LONGEST, WORTH_IT, has_short_texts, hashed, in_blocks

Hashes = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_C1, _C2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MILLIS_A_DAY = 86_400_000
#: Rows at a time in the vectorised mix: the block and its scratch stay in the second-level cache.
_BLOCK = 16_384


#: (content, seed) to an unsigned 64-bit integer
_xxh3: Callable[[bytes, int], int] = xxhash.xxh3_64_intdigest


def _salt(kind: Kind) -> int:
    return (kind * _GAMMA) & _MASK


def mix64(z: int) -> int:
    """The finaliser of splitmix64: a bijection in which every input bit reaches every output bit."""
    z = ((z ^ (z >> 30)) * _C1) & _MASK
    z = ((z ^ (z >> 27)) * _C2) & _MASK
    return z ^ (z >> 31)


SALT = {kind: _salt(kind) for kind in Kind}
NONE_HASH = mix64(SALT[Kind.NONE])
#: Plain integers: an enum's arithmetic and hash are slow.
_DECIMAL_SEED, _STR_SEED, _BYTES_SEED, _UUID_SEED = map(int, (Kind.DECIMAL, Kind.STR, Kind.BYTES, Kind.UUID))
_INT_SALT, _FLOAT_SALT, _DATE_SALT = SALT[Kind.INT], SALT[Kind.FLOAT], SALT[Kind.DATE]
_INSTANT_SALT, _NAIVE_SALT, _TUPLE_SALT = SALT[Kind.INSTANT], SALT[Kind.NAIVE], SALT[Kind.TUPLE]
_FALSE_HASH, _TRUE_HASH = mix64(SALT[Kind.BOOL]), mix64(SALT[Kind.BOOL] ^ 1)


# -- one key ----------------------------------------------------------------------------------------------------------


def hash_none(key: None) -> int:
    return NONE_HASH


def hash_bool(key: bool) -> int:
    return _TRUE_HASH if key else _FALSE_HASH


def hash_int(key: int) -> int:
    if -0x8000000000000000 <= key <= _MASK:
        return mix64((key & _MASK) ^ _INT_SALT)
    return _xxh3(encode_int(key), Kind.INT)


def hash_float(key: float) -> int:
    return mix64(float_bits(key) ^ _FLOAT_SALT)


def hash_decimal(key: Decimal) -> int:
    return _xxh3(decimal_content(key), _DECIMAL_SEED)


def hash_str(key: str) -> int:
    return _xxh3(utf8(key), _STR_SEED)


def hash_bytes(key: bytes) -> int:
    return _xxh3(key, _BYTES_SEED)


def hash_date(key: date) -> int:
    return mix64((days(key) & _MASK) ^ _DATE_SALT)


def hash_datetime(key: datetime) -> int:
    return mix64((micros(key) & _MASK) ^ (_NAIVE_SALT if is_naive(key) else _INSTANT_SALT))


def hash_uuid(key: UUID) -> int:
    return _xxh3(key.bytes, _UUID_SEED)


def hash_tuple(key: tuple[Any, ...]) -> int:
    h = mix64(len(key) ^ _TUPLE_SALT)
    for part in key:
        h = mix64(h ^ hash_key(part))
    return h


HASHERS: dict[type, Callable[[Any], int]] = {
    type(None): hash_none,
    bool: hash_bool,
    int: hash_int,
    float: hash_float,
    Decimal: hash_decimal,
    str: hash_str,
    bytes: hash_bytes,
    date: hash_date,
    datetime: hash_datetime,
    UUID: hash_uuid,
    tuple: hash_tuple,
}


def hash_key(key: Any) -> int:
    """:raises KeyTypeError: when `key` has no canonical form."""
    hasher = HASHERS.get(type(key))
    return hasher(key) if hasher is not None else hash_key(plain(key))


# -- many keys --------------------------------------------------------------------------------------------------------


def _mix_patterns(patterns: npt.NDArray[Any], salt: int, into: Hashes | None = None) -> Hashes:
    """mix64(pattern xor salt) of 64-bit patterns, without a temporary of full length. `into` may be `patterns`."""
    source = patterns.view(np.uint64)
    result = np.empty(len(source), np.uint64) if into is None else into
    scratch = np.empty(min(len(source), _BLOCK), np.uint64)
    salt64, c1, c2 = np.uint64(salt), np.uint64(_C1), np.uint64(_C2)
    s30, s27, s31 = np.uint64(30), np.uint64(27), np.uint64(31)
    for start in range(0, len(source), _BLOCK):
        z = result[start : start + _BLOCK]
        t = scratch[: len(z)]
        np.bitwise_xor(source[start : start + _BLOCK], salt64, out=z)
        np.right_shift(z, s30, out=t)
        np.bitwise_xor(z, t, out=z)
        np.multiply(z, c1, out=z)
        np.right_shift(z, s27, out=t)
        np.bitwise_xor(z, t, out=z)
        np.multiply(z, c2, out=z)
        np.right_shift(z, s31, out=t)
        np.bitwise_xor(z, t, out=z)
    return result


def hash_int64s(values: npt.NDArray[Any]) -> Hashes:
    """Of int64 or uint64 values."""
    return _mix_patterns(values, _INT_SALT)


def hash_float64s(values: npt.NDArray[np.float64]) -> Hashes:
    bits = values + 0.0  # a copy, in which -0.0 has become 0.0
    bits[np.isnan(bits)] = np.nan
    return _mix_patterns(bits, SALT[Kind.FLOAT])


def hash_bools(values: npt.NDArray[np.bool_]) -> Hashes:
    return np.array([_FALSE_HASH, _TRUE_HASH], np.uint64)[values.astype(np.intp)]


def hash_strs(keys: Sequence[str]) -> Hashes:
    xxh3, seed = _xxh3, _STR_SEED
    try:
        return _collected([xxh3(key.encode(), seed) for key in keys], len(keys))
    except UnicodeEncodeError:
        return hash_each(keys, hash_str, len(keys))  # raises, naming the key


def hash_distinct(keys: Sequence[Any], hasher: Callable[[Any], int]) -> Hashes:
    """Each different key hashed once. For types in which Python's equality is that of keys."""
    known = {key: hasher(key) for key in set(keys)}
    return _collected(map(known.__getitem__, keys), len(keys))


def hash_each(keys: Iterable[Any], hasher: Callable[[Any], int], count: int) -> Hashes:
    return _collected(map(hasher, keys), count)


def _collected(hashes: Iterable[int], count: int) -> Hashes:
    return np.fromiter(hashes, np.uint64, count)


def fold(parts: Sequence[Hashes], count: int) -> Hashes:
    """The hashes of `count` tuples from those of their parts."""
    h = np.full(count, mix64(len(parts) ^ SALT[Kind.TUPLE]), np.uint64)
    for part in parts:
        np.bitwise_xor(h, part, out=h)
        _mix_patterns(h, 0, into=h)
    return h


# -- columns ----------------------------------------------------------------------------------------------------------


def kind_of(arrow: pa.DataType) -> Kind:
    """The type of key that a column's values are.

    :raises KeyTypeError: when they cannot be keys.
    """
    if isinstance(arrow, pa.BaseExtensionType):
        return Kind.UUID if arrow.extension_name == "arrow.uuid" else kind_of(arrow.storage_type)
    if pat.is_dictionary(arrow):
        return kind_of(arrow.value_type)
    for applies, kind in _KINDS_OF_ARROW:
        if applies(arrow):
            return kind
    raise KeyTypeError(
        f"a column of Arrow type {arrow} cannot be a key. Use a column of integers, floats, booleans, text, bytes, "
        "dates, timestamps or decimals, a struct of these, or a key function.",
        arrow=str(arrow),
    )


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pat.is_string(arrow) or pat.is_large_string(arrow) or pat.is_string_view(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(
        pat.is_binary(arrow)
        or pat.is_large_binary(arrow)
        or pat.is_binary_view(arrow)
        or pat.is_fixed_size_binary(arrow)
    )


_KINDS_OF_ARROW: list[tuple[Callable[[pa.DataType], bool], Kind]] = [
    (pat.is_null, Kind.NONE),
    (pat.is_boolean, Kind.BOOL),
    (pat.is_integer, Kind.INT),
    (pat.is_floating, Kind.FLOAT),
    (pat.is_decimal128, Kind.DECIMAL),
    (pat.is_decimal256, Kind.DECIMAL),
    (_is_text, Kind.STR),
    (_is_bytes, Kind.BYTES),
    (pat.is_date, Kind.DATE),
    (lambda arrow: pat.is_timestamp(arrow) and arrow.tz is not None, Kind.INSTANT),
    (lambda arrow: pat.is_timestamp(arrow) and arrow.tz is None, Kind.NAIVE),
    (pat.is_struct, Kind.TUPLE),
]


def hash_array(array: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hashes of a column's values; a null is the key None, a struct a tuple.

    :raises KeyTypeError: when the column's values cannot be keys.
    """
    kind = kind_of(array.type)
    if isinstance(array, pa.ChunkedArray):
        return _joined([hash_array(chunk) for chunk in array.chunks])
    if isinstance(array, pa.ExtensionArray):
        return hash_contents(array.storage, kind) if kind is Kind.UUID else hash_array(array.storage)
    if pat.is_dictionary(array.type):
        return taken(hash_array(array.dictionary), array.indices)
    if kind is Kind.NONE:
        return np.full(len(array), NONE_HASH, np.uint64)
    if kind is Kind.TUPLE:
        children = [hash_array(array.field(at)) for at in range(array.type.num_fields)]
        return with_nulls(fold(children, len(array)), array)
    if kind in (Kind.STR, Kind.BYTES):
        return hash_contents(array, kind)
    if kind is Kind.DECIMAL:
        return hash_values(array, hash_decimal)
    return with_nulls(_hash_fixed(array, kind), array)


def hash_contents(array: pa.Array, kind: Kind) -> Hashes:
    """xxh3_64 of the bytes of a text or binary column's values."""
    if len(array) < WORTH_IT or not has_short_texts(array.type):
        return _hash_distinct_contents(array, kind)
    hashes = np.empty(len(array), np.uint64)
    for start, texts in in_blocks(array):
        mine = hashes[start : start + len(texts.lengths)]
        mine[:] = hashed(texts, int(kind))
        is_long = texts.lengths > LONGEST
        if is_long.any():
            block = array.slice(start, len(mine))
            mine[is_long] = _hash_distinct_contents(block.filter(pa.array(is_long)), kind)
    return with_nulls(hashes, array)


def _hash_distinct_contents(array: pa.Array, kind: Kind) -> Hashes:
    """Each different value hashed once."""
    xxh3, seed = _xxh3, int(kind)
    encoded = array.cast(pa.large_binary()).dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    return taken(_collected([xxh3(content, seed) for content in distinct], len(distinct)), encoded.indices)


def hash_values(array: pa.Array, hasher: Callable[[Any], int]) -> Hashes:
    """Each different value hashed once, in Python."""
    encoded = array.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    return taken(_collected(map(hasher, distinct), len(distinct)), encoded.indices)


def taken(hashes: Hashes, indices: pa.Array) -> Hashes:
    """The hash at each index; a null index is the key None."""
    if not indices.null_count:
        found: Hashes = np.take(hashes, indices.to_numpy())
        return found
    if not len(hashes):
        return np.full(len(indices), NONE_HASH, np.uint64)
    return with_nulls(np.take(hashes, indices.fill_null(0).to_numpy()), indices)


def with_nulls(hashes: Hashes, array: pa.Array) -> Hashes:
    """In place: the hash of None wherever `array` is null."""
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = NONE_HASH
    return hashes


def _joined(parts: list[Hashes]) -> Hashes:
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _hash_fixed(array: pa.Array, kind: Kind) -> Hashes:
    """What stands at nulls is arbitrary."""
    arrow = array.type
    if kind in (Kind.DATE, Kind.INSTANT, Kind.NAIVE):
        numbers = array.view(pa.int32() if pat.is_date32(arrow) else pa.int64()).fill_null(0).to_numpy()
        if kind is Kind.DATE:
            patterns = numbers.astype(np.int64) if pat.is_date32(arrow) else numbers // _MILLIS_A_DAY
        else:
            patterns = _microseconds(numbers, arrow)
        return _mix_patterns(patterns, SALT[kind])
    if array.null_count:  # the same values without the null bitmap; fill_null would copy, and lacks half floats
        array = pa.Array.from_buffers(arrow, len(array), [None, *array.buffers()[1:]], offset=array.offset)
    if kind is Kind.BOOL:
        return hash_bools(array.to_numpy(zero_copy_only=False))
    if kind is Kind.FLOAT:
        return hash_float64s(array.to_numpy().astype(np.float64, copy=False))
    values = array.to_numpy()
    return hash_int64s(values if values.dtype.itemsize == 8 else values.astype(np.int64))


def _microseconds(ticks: npt.NDArray[np.int64], arrow: pa.DataType) -> npt.NDArray[np.int64]:
    if arrow.unit == "us":
        return ticks
    if arrow.unit == "ns":
        whole = ticks // 1000
        if not np.array_equal(whole * 1000, ticks):
            raise KeyTypeError(
                "a key column of nanoseconds has values between two microseconds, and keys are kept in microseconds. "
                "Round the column before (timestamp[us]).",
                arrow=str(arrow),
            )
        return whole
    return ticks * (1_000_000 if arrow.unit == "s" else 1_000)
