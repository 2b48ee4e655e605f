"""Types of keys: what routing, both backends and savepoints ask about a key. Pure; executor, one instance per operator.

A key in the hand of the runtime is in one of three forms:

    raw         what the user's function or column gave
    normalised  a hashable: Python's dictionary equality is equality of keys. The heap's dictionaries use it
    bytes       canonical (state/key_codec.py): files, RocksDB

`normalise` checks the type. Of a declared int, str, bytes, bool, date or UUID the normalised form is the key itself.
Without a declared type 1, True, 1.0 and Decimal(1) can meet, which Python takes for equal; all but the int are set
apart by a wrapper, and `denormalise` takes it off.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Union
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidegate.errors import KeyTypeError
from tidegate.state.key_codec import NAN, TUPLE_END, TUPLE_START, WAYS_OUT, Kind, canonical_decimal, plain, text, texts
from tidegate.state.key_hash import Hashes, fold, hash_array, hash_each, hash_key, kind_of
from tidegate.state.key_scalars import SCALAR_KEYS, KeyType, PresentKey, ScalarKey, canonical_datetime
from tidegate.types import DataType, Naive, NaiveDatetime

__all__ = ["Apart", "KeyType", "common_key_type", "hash_columns", "holds_keys_of", "key_type"]


class OptionalKey(KeyType):
    """None, or a key of `inner`."""

    def __init__(self, inner: PresentKey) -> None:
        self.inner = inner
        self.name = f"optional[{inner.name}]"

    def normalise(self, key: Any) -> Any:
        return None if key is None else self.inner.normalise(key)

    def denormalise(self, key: Any) -> Any:
        return None if key is None else self.inner.denormalise(key)

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        some_are_none = type(None) in set(map(type, keys))
        return list(map(self.normalise, keys)) if some_are_none else self.inner.normalise_many(keys)

    def hash_many(self, keys: list[Any]) -> Hashes:
        present = [key for key in keys if key is not None]
        if len(present) == len(keys):
            return self.inner.hash_many(keys)
        hashes = np.full(len(keys), hash_key(None), np.uint64)
        hashes[[key is not None for key in keys]] = self.inner.hash_many(present)
        return hashes

    def hash_column(self, column: pa.Array | pa.ChunkedArray) -> Hashes:
        return self.inner.hash_nullable(column)


class TupleKey(PresentKey):
    """A fixed number of parts, each of its own type."""

    def __init__(self, parts: Sequence[KeyType]) -> None:
        self.parts = list(parts)
        self.name = f"tuple[{', '.join(part.name for part in parts)}]"

    def normalise(self, key: Any) -> Any:
        if type(key) is not tuple or len(key) != len(self.parts):
            raise self._misfit(key)
        return tuple([part.normalise(value) for part, value in zip(self.parts, key, strict=True)])

    def denormalise(self, key: Any) -> Any:
        return tuple([part.denormalise(value) for part, value in zip(self.parts, key, strict=True)])

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        """Part by part."""
        self._check_shapes(keys)
        columns = zip(*keys, strict=True)
        parts = [part.normalise_many(list(c)) for part, c in zip(self.parts, columns, strict=False)]
        return list(zip(*parts, strict=True))

    def encode_many(self, keys: list[Any]) -> list[bytes]:
        """Part by part: three times as fast as key by key."""
        parts = [part.encode_many(list(c)) for part, c in zip(self.parts, zip(*keys, strict=True), strict=False)]
        return [b"".join((TUPLE_START, *row, TUPLE_END)) for row in zip(*parts, strict=True)]

    def _check_shapes(self, keys: list[Any]) -> None:
        for key in keys:
            if type(key) is not tuple or len(key) != len(self.parts):
                raise self._misfit(key)

    def hash_many(self, keys: list[Any]) -> Hashes:
        self._check_shapes(keys)
        if not keys:
            return np.empty(0, np.uint64)
        columns = zip(*keys, strict=True)
        return fold([part.hash_many(list(c)) for part, c in zip(self.parts, columns, strict=True)], len(keys))

    def _hash_array(self, array: pa.Array) -> Hashes:
        if pat.is_null(array.type):
            return hash_array(array)
        if not pat.is_struct(array.type) or array.type.num_fields != len(self.parts):
            raise self._wrong_column(array.type)
        if not array.null_count:
            return self.hash_columns([array.field(at) for at in range(len(self.parts))])
        # What lies under a null struct is arbitrary, so only the others are looked at.
        hashes = np.full(len(array), hash_key(None), np.uint64)
        hashes[array.is_valid().to_numpy(zero_copy_only=False)] = self._hash_array(array.drop_null())
        return hashes

    def hash_columns(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
        if len(columns) != len(self.parts):
            raise KeyTypeError(f"{len(columns)} columns make no key of the declared type {self.name}.")
        return fold([part.hash_column(c) for part, c in zip(self.parts, columns, strict=True)], len(columns[0]))


class Apart:
    """A normalised key of undeclared type that Python would take for an equal one of another type."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if type(other) is not Apart:
            return False
        mine, its = self.value, other.value
        return mine is its or (type(mine) is type(its) and mine == its)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def __repr__(self) -> str:
        return f"Apart({self.value!r})"


_AS_IT_IS = frozenset({int, bytes, type(None), date, UUID})


class AnyKey(KeyType):
    """Keys of every type that can be one, mixed."""

    name = "any"

    def normalise(self, key: Any) -> Any:
        kind = type(key)
        if kind in _AS_IT_IS:
            return key
        if kind is str:
            return text(key)
        if kind is tuple:
            return tuple([self.normalise(part) for part in key])
        if kind is bool:
            return Apart(key)
        if kind is float:
            return Apart(key + 0.0 if key == key else NAN)
        if kind is Decimal:
            return Apart(canonical_decimal(key))
        if kind is datetime:
            return canonical_datetime(key)
        if kind is Apart:
            return self.normalise(key.value)
        return self.normalise(plain(key))

    def normalise_many(self, keys: list[Any]) -> list[Any]:
        kinds = set(map(type, keys))
        if kinds <= _AS_IT_IS:
            return keys
        return texts(keys) if kinds == {str} else list(map(self.normalise, keys))

    def denormalise(self, key: Any) -> Any:
        if type(key) is Apart:
            return key.value
        return tuple([self.denormalise(part) for part in key]) if type(key) is tuple else key

    def hash_many(self, keys: list[Any]) -> Hashes:
        kinds = set(map(type, keys))
        if len(kinds) == 1:
            kind = kinds.pop()
            if kind in _DECLARED_ALONE:
                return _DECLARED_ALONE[kind].hash_many(keys)
            if kind is Apart:
                return self.hash_many([key.value for key in keys])
            if kind is tuple and len(set(map(len, keys))) == 1 and keys[0]:
                return fold([self.hash_many(list(column)) for column in zip(*keys, strict=True)], len(keys))
        return hash_each(keys, self.hash, len(keys))

    def hash_column(self, column: pa.Array | pa.ChunkedArray) -> Hashes:
        return hash_array(column)

    def hash_columns(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
        return fold(list(map(hash_array, columns)), len(columns[0]))


_DECLARED_ALONE: dict[type, ScalarKey] = {
    kind: SCALAR_KEYS[kind] for kind in (bool, int, float, Decimal, str, bytes, date, UUID)
}
_BY_KIND: dict[Kind, ScalarKey] = {scalar.kind: scalar for scalar in SCALAR_KEYS.values()}
_ANY = AnyKey()
_UNIONS = (Union, types.UnionType)


def key_type(annotation: Any) -> KeyType:
    """The KeyType of an annotation, a DataType, a pyarrow type or a tuple of these; None and Any: every type, mixed.

    :raises KeyTypeError: when values of that type cannot be keys.
    """
    if isinstance(annotation, KeyType):
        return annotation
    if annotation is None or annotation is Any:
        return _ANY
    if isinstance(annotation, DataType):
        return key_type(annotation.annotation)
    if isinstance(annotation, pa.DataType):
        return _of_arrow(annotation)
    if isinstance(annotation, tuple) and annotation:
        return TupleKey(list(map(key_type, annotation)))
    if isinstance(annotation, typing.NewType):
        return key_type(annotation.__supertype__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        naive = arguments[0] is datetime and any(isinstance(mark, Naive) or mark is Naive for mark in arguments[1:])
        return SCALAR_KEYS[NaiveDatetime] if naive else key_type(arguments[0])
    if origin in _UNIONS:
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:
            return _optional(key_type(others[0]))
        for other in others:
            key_type(other)  # refuses what cannot be a key
        return _ANY
    if origin is tuple and arguments and Ellipsis not in arguments:
        return TupleKey(list(map(key_type, arguments)))
    if isinstance(annotation, type) and annotation in SCALAR_KEYS:
        return SCALAR_KEYS[annotation]
    if annotation is type(None):
        return _ANY
    raise KeyTypeError(f"values of type {annotation} cannot be keys. {WAYS_OUT}", annotation=str(annotation))


def common_key_type(one: KeyType, other: KeyType) -> KeyType | None:
    """The type of the keys that two streams share: of an undeclared and a declared one, the declared. None when no key of
    the one is a key of the other."""
    if one == other or isinstance(other, AnyKey):
        return one
    if isinstance(one, AnyKey):
        return other
    if isinstance(one, OptionalKey) or isinstance(other, OptionalKey):
        inner = common_key_type(_present(one), _present(other))
        return None if inner is None else _optional(inner)
    if isinstance(one, TupleKey) and isinstance(other, TupleKey) and len(one.parts) == len(other.parts):
        parts = [common_key_type(*pair) for pair in zip(one.parts, other.parts, strict=True)]
        return None if None in parts else TupleKey([part for part in parts if part is not None])
    return None


def holds_keys_of(wide: KeyType, narrow: KeyType) -> bool:
    """Whether every key of `narrow` is one of `wide`, with the same bytes: state that was stored under the one can be read
    under the other."""
    if wide == narrow or isinstance(wide, AnyKey):
        return True
    if isinstance(wide, OptionalKey):
        return holds_keys_of(wide.inner, _present(narrow))
    if isinstance(wide, TupleKey) and isinstance(narrow, TupleKey) and len(wide.parts) == len(narrow.parts):
        return all(holds_keys_of(*pair) for pair in zip(wide.parts, narrow.parts, strict=True))
    return False


def _present(keys: KeyType) -> KeyType:
    return keys.inner if isinstance(keys, OptionalKey) else keys


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """The hashes of the tuples that the columns make, by their Arrow types."""
    return _ANY.hash_columns(columns)


def _optional(inner: KeyType) -> KeyType:
    return OptionalKey(inner) if isinstance(inner, PresentKey) else inner


def _of_arrow(arrow: pa.DataType) -> KeyType:
    """Every Arrow column can have nulls."""
    kind = kind_of(arrow)
    if kind is Kind.NONE:
        return _ANY
    if kind is Kind.TUPLE:
        return OptionalKey(TupleKey([_of_arrow(arrow.field(at).type) for at in range(arrow.num_fields)]))
    return OptionalKey(_BY_KIND[kind])
