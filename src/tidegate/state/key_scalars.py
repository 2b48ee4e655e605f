"""The contract of key types, and those of one Python type. Neighbour of state/keys.py. Pure; executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidegate.errors import KeyTypeError
from tidegate.state.key_codec import (
    ENCODERS,
    NAN,
    Kind,
    canonical_decimal,
    decode_key,
    encode_int64s,
    encode_key,
    is_naive,
    plain,
    refused,
    text,
    texts,
)
from tidegate.state.key_hash import (
    HASHERS,
    Hashes,
    hash_array,
    hash_bools,
    hash_contents,
    hash_decimal,
    hash_distinct,
    hash_each,
    hash_float64s,
    hash_int64s,
    hash_key,
    hash_strs,
    hash_values,
    kind_of,
    taken,
)
from tidegate.types import NaiveDatetime


class KeyType(ABC):
    """The declared type of a stream's keys, or "any". Picklable, compared by name."""

    name: str

    @abstractmethod
    def normalise(self, key: Any) -> Any:
        """A hashable that is equal for equal keys only. Of a normalised key: the same.

        :raises KeyTypeError: when the key is not of this type.
        """

    def denormalise(self, key: Any) -> Any:
        """The key as the user may see it."""
        return key

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        return list(map(self.normalise, keys))

    def encode(self, key: Any) -> bytes:
        return encode_key(self.denormalise(self.normalise(key)))

    def decode(self, data: bytes) -> Any:
        """:raises KeyTypeError: when the bytes are not a key, or one of another type."""
        return self.denormalise(self.normalise(decode_key(data)))

    def encode_many(self, keys: list[Any]) -> list[bytes]:
        """Of normalised keys."""
        return [encode_key(self.denormalise(key)) for key in keys]

    def encode_column(self, keys: list[Any]) -> pa.Array:
        """The same, as a column."""
        return pa.array(self.encode_many(keys), pa.binary())

    def decode_many(self, array: pa.Array | pa.ChunkedArray) -> list[Any]:
        """To normalised keys."""
        return [self.normalise(decode_key(data)) for data in array.to_pylist()]

    def hash(self, key: Any) -> int:
        """Unsigned, 64 bits; the same as that of the key in a column."""
        return hash_key(self.denormalise(self.normalise(key)))

    @abstractmethod
    def hash_many(self, keys: list[Any]) -> Hashes:
        """Of raw or normalised keys."""

    @abstractmethod
    def hash_column(self, column: pa.Array | pa.ChunkedArray) -> Hashes:
        """:raises KeyTypeError: when the column's values are of another type."""

    def hash_columns(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
        """Of the tuples that the columns make."""
        raise KeyTypeError(f"{len(columns)} columns make a tuple, and the declared type of the key is {self.name}.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyType) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<KeyType {self.name}>"

    def _misfit(self, key: Any) -> KeyTypeError:
        return refused(key, f"The key was declared as {self.name}: convert it, or declare the type that it has.")

    def _wrong_column(self, arrow: pa.DataType) -> KeyTypeError:
        return KeyTypeError(
            f"a column of Arrow type {arrow} holds no keys of the declared type {self.name}. "
            "Cast the column, or declare the type that it has.",
            arrow=str(arrow),
        )


class PresentKey(KeyType):
    """Keys that are never None. Those of a column that may have nulls are `OptionalKey`s of them."""

    def hash_column(self, column: pa.Array | pa.ChunkedArray) -> Hashes:
        if column.null_count:
            raise KeyTypeError(
                f"a key column has {column.null_count} nulls, and the key was declared as {self.name}. "
                "Declare it Optional[...] (None is a key then), or filter the nulls out before.",
                declared=self.name,
            )
        return self.hash_nullable(column)

    def hash_nullable(self, column: pa.Array | pa.ChunkedArray) -> Hashes:
        """Nulls are None."""
        if isinstance(column, pa.ChunkedArray):
            parts = [self.hash_nullable(chunk) for chunk in column.chunks]
            return np.concatenate(parts) if parts else np.empty(0, np.uint64)
        return self._hash_array(column)

    @abstractmethod
    def _hash_array(self, array: pa.Array) -> Hashes: ...


class ScalarKey(PresentKey):
    """One Python type, of which the key itself is the normalised form."""

    def __init__(self, name: str, kind: Kind, python: type) -> None:
        self.name = name
        self.kind = kind
        self._python = python

    def normalise(self, key: Any) -> Any:
        return key if type(key) is self._python else self._converted(key)

    def _converted(self, key: Any) -> Any:
        """A key that is not of the Python type."""
        if isinstance(key, np.generic):
            value = plain(key)
            if type(value) is self._python:
                return value
        raise self._misfit(key)

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        return keys if set(map(type, keys)) <= {self._python} else list(map(self.normalise, keys))

    def encode(self, key: Any) -> bytes:
        return ENCODERS[self._python](self.normalise(key))

    def encode_many(self, keys: list[Any]) -> list[bytes]:
        return list(map(ENCODERS[self._python], keys))

    def decode_many(self, array: pa.Array | pa.ChunkedArray) -> list[Any]:
        return self.normalise_many(list(map(decode_key, array.to_pylist())))

    def hash(self, key: Any) -> int:
        return HASHERS[self._python](self.normalise(key))

    def hash_many(self, keys: list[Any]) -> Hashes:
        return self._hashes(self.normalise_many(keys))

    def _hashes(self, keys: list[Any]) -> Hashes:
        return hash_distinct(keys, HASHERS[self._python])

    def _hash_array(self, array: pa.Array) -> Hashes:
        """Arrays that Tidegate itself wrote for this type (UUID, Decimal) are read as such."""
        if pat.is_dictionary(array.type):
            return taken(self._hash_array(array.dictionary), array.indices)
        if pat.is_null(array.type) or kind_of(array.type) is self.kind:
            return hash_array(array)
        return self._hash_foreign(array)

    def _hash_foreign(self, array: pa.Array) -> Hashes:
        """Of a column whose Arrow type alone says another type of key."""
        raise self._wrong_column(array.type)


class IntKey(ScalarKey):
    def _hashes(self, keys: list[Any]) -> Hashes:
        try:
            return hash_int64s(np.array(keys, np.int64))
        except OverflowError:
            return hash_each(keys, HASHERS[int], len(keys))

    def encode_column(self, keys: list[Any]) -> pa.Array:
        try:
            return encode_int64s(np.array(keys, np.int64))
        except OverflowError:
            return super().encode_column(keys)


class StrKey(ScalarKey):
    """Text: what is not, is refused when the key is used, and not when it is to be stored."""

    def normalise(self, key: Any) -> Any:
        return text(key if type(key) is str else self._converted(key))

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        return texts(super().normalise_many(keys))

    def hash_many(self, keys: list[Any]) -> Hashes:
        return hash_strs(super().normalise_many(keys))  # which looks at the text of each


class BoolKey(ScalarKey):
    def _hashes(self, keys: list[Any]) -> Hashes:
        return hash_bools(np.array(keys, np.bool_))


class FloatKey(ScalarKey):
    """Takes ints that a double holds exactly, as a declared float does everywhere."""

    def normalise(self, key: Any) -> Any:
        if type(key) is not float:
            key = self._converted(key)
        return key + 0.0 if key == key else NAN

    def _converted(self, key: Any) -> Any:
        value = key if type(key) is int else plain(key) if isinstance(key, np.generic) else None
        if type(value) is float:
            return value
        if type(value) is int and -(2**1023) < value < 2**1023 and float(value) == value:
            return float(value)
        raise self._misfit(key)

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        return list(map(self.normalise, keys))

    def hash_many(self, keys: list[Any]) -> Hashes:
        if not set(map(type, keys)) <= {float}:
            keys = self.normalise_many(keys)
        return hash_float64s(np.array(keys, np.float64))

    def _hash_foreign(self, array: pa.Array) -> Hashes:
        if not pat.is_integer(array.type):
            raise self._wrong_column(array.type)
        try:
            return hash_array(array.cast(pa.float64()))
        except pa.ArrowInvalid as error:
            raise KeyTypeError(f"an integer column cannot be a float key: {error}", declared=self.name) from None


class DecimalKey(ScalarKey):
    def normalise(self, key: Any) -> Any:
        return canonical_decimal(key if type(key) is Decimal else self._converted(key))

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        return list(map(self.normalise, keys))

    def _hash_foreign(self, array: pa.Array) -> Hashes:
        if kind_of(array.type) is not Kind.STR:
            raise self._wrong_column(array.type)
        return hash_values(array.cast(pa.large_string()), _hash_decimal_text)


def _hash_decimal_text(text: str) -> int:
    try:
        return hash_decimal(Decimal(text))
    except ArithmeticError:
        raise KeyTypeError(f"{text!r} in a key column declared as Decimal is not a number.", key=text) from None


class DatetimeKey(ScalarKey):
    """Aware: in UTC, as equality of datetimes in two zones has exceptions (PEP 495). Naive: without fold."""

    def normalise(self, key: Any) -> Any:
        if type(key) is not datetime or is_naive(key) is not (self.kind is Kind.NAIVE):
            raise self._misfit(key)
        return canonical_datetime(key)

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        return list(map(self.normalise, keys))


def canonical_datetime(key: datetime) -> datetime:
    if is_naive(key):
        return key.replace(fold=0, tzinfo=None) if key.fold or key.tzinfo is not None else key
    try:
        return key if key.tzinfo is UTC else key.astimezone(UTC)
    except OverflowError:
        raise refused(key, "In UTC it lies outside the years 1 to 9999.") from None


class UuidKey(ScalarKey):
    def _hash_foreign(self, array: pa.Array) -> Hashes:
        if not pat.is_fixed_size_binary(array.type) or array.type.byte_width != 16:
            raise self._wrong_column(array.type)
        return hash_contents(array, Kind.UUID)


SCALAR_KEYS: dict[Any, ScalarKey] = {
    bool: BoolKey("bool", Kind.BOOL, bool),
    int: IntKey("int", Kind.INT, int),
    float: FloatKey("float", Kind.FLOAT, float),
    Decimal: DecimalKey("Decimal", Kind.DECIMAL, Decimal),
    str: StrKey("str", Kind.STR, str),
    bytes: ScalarKey("bytes", Kind.BYTES, bytes),
    date: ScalarKey("date", Kind.DATE, date),
    datetime: DatetimeKey("datetime", Kind.INSTANT, datetime),
    NaiveDatetime: DatetimeKey("naive datetime", Kind.NAIVE, datetime),
    UUID: UuidKey("UUID", Kind.UUID, UUID),
}
