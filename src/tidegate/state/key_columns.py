"""Keys that come as a column, one for each row of a batch, in the form that the heap's tables want. Pure; executor."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidegate.errors import KeyTypeError
from tidegate.state.keys import AnyKey, KeyType, OptionalKey, TupleKey
from tidegate.types import DataType, data_type
from tidegate.types.type_names import key_annotation

if TYPE_CHECKING:
    from tidegate.state.handles import Column

_INT64_MAX = 2**63 - 1


def plain_array(column: Column) -> pa.Array:
    """One array, without a dictionary."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    elif not isinstance(column, pa.Array):
        column = pa.array(column)
    return column.dictionary_decode() if pat.is_dictionary(column.type) else column


def python_keys(column: Column) -> list[Any] | None:
    """Keys that come as Python objects, which no conversion may touch; None for a column that has a type."""
    if isinstance(column, np.ndarray) and column.dtype == object:
        return column.tolist()  # type: ignore[no-any-return]
    return None if isinstance(column, (np.ndarray, pa.Array, pa.ChunkedArray)) else list(column)


def int64_column(column: Column) -> np.ndarray[Any, Any] | None:
    """A column of ints as int64, without a copy where it is one; None when it has nulls, wider ints or other types."""
    if isinstance(column, np.ndarray):
        values = column
    elif python_keys(column) is not None:
        return None
    else:
        array = plain_array(column)
        if array.null_count or not pat.is_integer(array.type):
            return None
        values = array.to_numpy(zero_copy_only=False)
    if values.dtype == np.int64:
        return values
    if values.dtype.kind not in "iu" or (values.dtype == np.uint64 and len(values) and values.max() > _INT64_MAX):
        return None
    return values.astype(np.int64)


def canonical_column(key_type: KeyType, column: pa.Array) -> pa.Array:
    """Equal keys as equal values, all that Arrow's grouping knows: one zero, one NaN, Decimals without trailing zeros.

    Of a key of one part; others are taken apart before.
    """
    if isinstance(key_type, OptionalKey):
        key_type = key_type.inner
    if key_type.name == "float":
        return one_zero_one_nan(column)
    if key_type.name == "Decimal":
        encoded = plain_array(column).dictionary_encode()
        different = data_type(Decimal).to_arrow(normalised_keys(key_type, encoded.dictionary))
        return different.take(encoded.indices)
    return column


def one_zero_one_nan(column: pa.Array) -> pa.Array:
    """Of floats: Arrow takes 0.0 and -0.0 for two values."""
    if pat.is_float16(column.type):  # which Arrow does not add
        return one_zero_one_nan(column.cast(pa.float32())).cast(column.type)
    positive = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(positive), pa.scalar(math.nan, column.type), positive)


def normalised_keys(key_type: KeyType, column: Column) -> list[Any]:
    """:raises KeyTypeError: when the column holds other keys than those of `key_type`."""
    given = python_keys(column)
    return key_type.normalise_many(_python_keys(key_type, plain_array(column)) if given is None else given)


def _python_keys(key_type: KeyType, array: pa.Array) -> list[Any]:
    if isinstance(key_type, OptionalKey):
        key_type = key_type.inner
    arrow = array.type
    if pat.is_struct(arrow):
        parts = key_type.parts if isinstance(key_type, TupleKey) else [key_type] * arrow.num_fields
        if not arrow.num_fields and isinstance(key_type, AnyKey):
            return [() if valid else None for valid in array.is_valid().to_pylist()]
        if len(parts) == arrow.num_fields and parts:
            columns = [_python_keys(part, plain_array(array.field(at))) for at, part in enumerate(parts)]
            keys: list[Any] = list(zip(*columns, strict=True))
            return [key if valid else None for key, valid in zip(keys, array.is_valid().to_pylist(), strict=True)]
    if pat.is_timestamp(arrow) and arrow.unit == "ns":
        try:
            array = array.cast(pa.timestamp("us", arrow.tz))
        except pa.ArrowInvalid as error:
            raise KeyTypeError(f"keys are kept in microseconds: {error}. Round the column before.") from None
    # Two types have no Arrow type of their own and come in the form in which Tidegate writes them.
    if key_type.name == "UUID" and pat.is_fixed_size_binary(arrow):
        return [None if key is None else UUID(bytes=key) for key in array.to_pylist()]
    if key_type.name == "Decimal" and (pat.is_string(arrow) or pat.is_large_string(arrow)):
        return data_type(Decimal | None).from_arrow(array)
    if pat.is_string(arrow) or pat.is_large_string(arrow):
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]  # to_pylist takes thrice as long
    return array.to_pylist()  # type: ignore[no-any-return]


def column_type(keys: KeyType) -> DataType | None:
    """The type of a column of such keys; None where keys have no one type."""
    return None if _is_mixed(keys) else data_type(key_annotation(keys.name))


def _is_mixed(keys: KeyType) -> bool:
    if isinstance(keys, OptionalKey):
        return _is_mixed(keys.inner)
    if isinstance(keys, TupleKey):
        return any(map(_is_mixed, keys.parts))
    return isinstance(keys, AnyKey)
