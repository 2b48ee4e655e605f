"""Texts of at most 16 bytes as two numbers and a length, a whole column at a time: their hash, and their row. Pure; executor.

Most keys that are text are short. Two numbers and a length hold such a text exactly, so numpy can hash and compare a column of
them without an object of Python for any: ten times as fast as a call for each different text.

    first   bytes 0 to 7, little-endian, with zeros after the text's end
    second  bytes 8 to 15, the same

`hashed` is xxh3_64 for contents of this length, with its constants; tests compare it with the library byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

Words = npt.NDArray[np.uint64]

LONGEST = 16
#: Below this a call for each text is as fast.
WORTH_IT = 128
BLOCK = 8_192

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb"
)
_BITS_64 = (1 << 64) - 1
_LOW = np.uint64(0xFFFF_FFFF)
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(8)] + [_BITS_64], np.uint64)  #: of so many bytes


class ShortTexts(NamedTuple):
    """A column's contents. What stands at places where `lengths` is above LONGEST, or which are null, is arbitrary."""

    first: Words
    second: Words
    lengths: Words


def short_texts(array: pa.Array) -> ShortTexts | None:
    """None: of a column that is not of text or bytes, as Arrow lays them out in one buffer."""
    arrow = array.type
    if pat.is_string(arrow) or pat.is_binary(arrow):
        width: np.dtype[Any] = np.dtype(np.int32)
    elif pat.is_large_string(arrow) or pat.is_large_binary(arrow):
        width = np.dtype(np.int64)
    else:
        return None
    _, offsets, data = array.buffers()
    if not len(array):
        empty = np.empty(0, np.uint64)
        return ShortTexts(empty, empty, empty)
    bounds = np.frombuffer(offsets, width, len(array) + 1, array.offset * width.itemsize).astype(np.int64)
    begin, end = int(bounds[0]), int(bounds[-1])
    padded = np.zeros(((end - begin) // 8 + 4) * 8, np.uint8)
    if end > begin:
        padded[: end - begin] = np.frombuffer(data, np.uint8, end - begin, begin)
    words = padded.view("<u8")
    starts = bounds[:-1] - begin
    lengths = np.diff(bounds).astype(np.uint64)
    at = starts >> 3
    shift = ((starts & 7) << 3).astype(np.uint64)
    back = np.uint64(63) - shift
    middle, one = words[at + 1], np.uint64(1)
    first = (words[at] >> shift) | ((middle << one) << back)
    second = (middle >> shift) | ((words[at + 2] << one) << back)
    sizes = np.minimum(lengths, np.uint64(LONGEST)).astype(np.intp)
    first &= _MASKS[np.minimum(sizes, 8)]
    second &= _MASKS[np.maximum(sizes, 8) - 8]
    return ShortTexts(first, second, lengths)


def in_blocks(array: pa.Array) -> Iterator[tuple[int, ShortTexts]]:
    """The same, in pieces that stay in the second-level cache, each with its place. Of a column that `has_short_texts`."""
    for start in range(0, len(array), BLOCK):
        texts = short_texts(array.slice(start, BLOCK))
        assert texts is not None
        yield start, texts


def has_short_texts(arrow: pa.DataType) -> bool:
    return bool(
        pat.is_string(arrow) or pat.is_binary(arrow) or pat.is_large_string(arrow) or pat.is_large_binary(arrow)
    )


def _secret(at: int, size: int = 8) -> int:
    return int.from_bytes(_SECRET[at : at + size], "little")


def hashed(texts: ShortTexts, seed: int) -> Words:
    """xxh3_64 of each, with a seed of 32 bits at the most."""
    first, second, lengths = texts
    result = np.empty(len(first), np.uint64)
    for longest, of_length in ((0, _of_none), (3, _of_1_to_3), (8, _of_4_to_8), (LONGEST, _of_9_to_16)):
        shortest = {0: 0, 3: 1, 8: 4, LONGEST: 9}[longest]
        mine = (lengths >= np.uint64(shortest)) & (lengths <= np.uint64(longest))
        if mine.all():
            return of_length(first, second, lengths, seed)
        if mine.any():
            result[mine] = of_length(first[mine], second[mine], lengths[mine], seed)
    return result


def _of_none(first: Words, second: Words, lengths: Words, seed: int) -> Words:
    return _scrambled(np.full(len(first), seed ^ _secret(56) ^ _secret(64), np.uint64))


def _of_1_to_3(first: Words, second: Words, lengths: Words, seed: int) -> Words:
    eight, byte, one = np.uint64(8), np.uint64(255), np.uint64(1)
    middle = (first >> ((lengths >> one) * eight)) & byte
    last = (first >> ((lengths - one) * eight)) & byte
    mixed = ((first & byte) << np.uint64(16)) | (middle << np.uint64(24)) | last | (lengths << eight)
    return _scrambled(mixed ^ np.uint64((_secret(0, 4) ^ _secret(4, 4)) + seed & _BITS_64))


def _of_4_to_8(first: Words, second: Words, lengths: Words, seed: int) -> Words:
    swapped = int.from_bytes(seed.to_bytes(4, "little"), "big")
    flip = np.uint64((_secret(8) ^ _secret(16)) - (seed ^ swapped << 32) & _BITS_64)
    last = (first >> ((lengths - np.uint64(4)) * np.uint64(8))) & _LOW
    h = (last + ((first & _LOW) << np.uint64(32))) ^ flip
    h ^= _turned(h, 49) ^ _turned(h, 24)
    h *= np.uint64(0x9FB21C651E98DF25)
    h ^= (h >> np.uint64(35)) + lengths
    h *= np.uint64(0x9FB21C651E98DF25)
    return h ^ (h >> np.uint64(28))


def _of_9_to_16(first: Words, second: Words, lengths: Words, seed: int) -> Words:
    eight, full = np.uint64(8), lengths == np.uint64(LONGEST)
    by = np.where(full, eight, lengths)  # of full ones the last eight bytes are `second`; a shift by 64 is none
    last = (first >> ((by - eight) * eight)) | (second << ((np.uint64(LONGEST) - by) * eight % np.uint64(64)))
    last = np.where(full, second, last)
    low = first ^ np.uint64((_secret(24) ^ _secret(32)) + seed & _BITS_64)
    high = last ^ np.uint64((_secret(40) ^ _secret(48)) - seed & _BITS_64)
    h: Words = lengths + low.byteswap() + high + _folded_product(low, high)
    h ^= h >> np.uint64(37)
    h *= np.uint64(0x165667919E3779F9)
    h ^= h >> np.uint64(32)
    return h


def _scrambled(h: Words) -> Words:
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC2B2AE3D27D4EB4F)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0x165667B19E3779F9)
    return h ^ (h >> np.uint64(32))


def _turned(h: Words, bits: int) -> Words:
    return (h << np.uint64(bits)) | (h >> np.uint64(64 - bits))


def _folded_product(a: Words, b: Words) -> Words:
    """The halves of the product of 128 bits, one upon the other."""
    half = np.uint64(32)
    a_low, a_high, b_low, b_high = a & _LOW, a >> half, b & _LOW, b >> half
    low, inner = a_low * b_low, a_high * b_low
    cross = (low >> half) + (inner & _LOW) + a_low * b_high
    folded: Words = (inner >> half) + (cross >> half) + a_high * b_high
    folded ^= (cross << half) | (low & _LOW)
    return folded
