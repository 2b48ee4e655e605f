"""An Arrow type as a declared type: its values are what pyarrow gives, and None is always one of them. Pure.

pyarrow converts loosely (1.5 becomes the integer 1, text becomes bytes, a second unit cuts microseconds off). What
would not come back equal is refused here; float32 and float16 are the exception: who declares them wants the rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidegate.errors import TypeDeclarationError
from tidegate.types.base import DataType, misfit
from tidegate.types.copying import copy_record
from tidegate.types.dictionaries import plain_type
from tidegate.types.scalars import is_bytes, is_text

_NONE = type(None)


class ArrowType(DataType):
    nullable = True

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow
        self.name = f"arrow:{arrow}"
        self.immutable = not pat.is_nested(arrow)
        self.annotation = arrow
        self.comes_back = bool(pat.is_integer(arrow) or pat.is_boolean(arrow) or is_text(arrow) or is_bytes(arrow))
        if pat.is_integer(arrow) or pat.is_floating(arrow):
            self.number = np.dtype(arrow.to_pandas_dtype())

    def _encode(self, values: Sequence[Any]) -> pa.Array:
        _check(values, self.arrow, self.name)
        return _array(values, self.arrow, self.name)

    def _decode(self, array: pa.Array) -> list[Any]:
        if not array.type.equals(self.arrow) and not array.type.equals(plain_type(self.arrow)):
            array = array.cast(plain_type(self.arrow))
        values: list[Any]
        if is_text(array.type) or (self.number is not None and not array.null_count):
            values = array.to_numpy(zero_copy_only=False).tolist()  # to_pylist takes thrice as long
        else:
            values = array.to_pylist()
        return values

    def _copied(self, value: Any) -> Any:
        return copy_record(value)

    def _settled(self, value: Any) -> Any:
        try:
            (settled,) = self.from_arrow(self.to_arrow([value]))
        except TypeDeclarationError:
            return value
        return settled


def _array(values: Sequence[Any], arrow: pa.DataType, declared: str) -> pa.Array:
    try:
        return pa.array(values, arrow, from_pandas=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        for value in values:
            try:
                pa.array([value], arrow, from_pandas=False)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as reason:
                raise misfit(value, declared, f"pyarrow says: {reason}.") from None
        raise misfit(values, declared, f"pyarrow says: {error}.") from None


def _check(values: Sequence[Any], arrow: pa.DataType, declared: str) -> None:
    if pat.is_dictionary(arrow):
        _check(values, arrow.value_type, declared)
    elif pat.is_boolean(arrow):
        _only(values, declared, {bool}, (np.bool_,))
    elif pat.is_integer(arrow):
        _only(values, declared, {int}, (np.integer,))
    elif pat.is_floating(arrow):
        _only(values, declared, {float, int}, (np.floating, np.integer))
    elif is_text(arrow):
        _only(values, declared, {str}, (np.str_,))
    elif is_bytes(arrow):
        _only(values, declared, {bytes}, (np.bytes_,))
    elif pat.is_temporal(arrow) or pat.is_decimal(arrow):
        _comes_back(values, arrow, declared)
    elif pat.is_list(arrow) or pat.is_large_list(arrow) or pat.is_fixed_size_list(arrow):
        lists = [value for value in values if value is not None]
        _only(lists, declared, {list}, (np.ndarray,))
        _check(list(chain.from_iterable(lists)), arrow.value_type, declared)
    elif pat.is_struct(arrow):
        dicts = [value for value in values if value is not None]
        _only(dicts, declared, {dict}, ())
        names = {arrow.field(at).name for at in range(arrow.num_fields)}
        for value in dicts:
            if not value.keys() <= names:
                raise misfit(value, declared, f"It has keys that the struct lacks: {sorted(value.keys() - names)}.")
        for at in range(arrow.num_fields):
            field = arrow.field(at)
            _check([value.get(field.name) for value in dicts], field.type, f"{declared}, field {field.name!r}")


def _only(values: Sequence[Any], declared: str, kinds: set[type], numpy_kinds: tuple[type, ...]) -> None:
    for odd in set(map(type, values)) - kinds - {_NONE}:
        if not issubclass(odd, numpy_kinds):
            raise misfit(
                next(value for value in values if type(value) is odd),
                declared,
                "Convert it before, or declare the type that it has.",
            )


def _comes_back(values: Sequence[Any], arrow: pa.DataType, declared: str) -> None:
    back = _array(values, arrow, declared).to_pylist()
    for value, again in zip(values, back, strict=True):
        if value != again:
            raise misfit(value, declared, f"It would come back as {again!r}: round it before, or declare a finer type.")


def taken_as_it_is(arrow: pa.DataType) -> Callable[[Any], bool]:
    """Whether a value goes through a column of this type and comes back equal, seen without making the column.

    False says nothing: the column has to be made.
    """
    if pat.is_signed_integer(arrow) or pat.is_unsigned_integer(arrow):
        bounds = np.iinfo(arrow.to_pandas_dtype())
        low, high = int(bounds.min), int(bounds.max)
        return lambda value: value is None or (type(value) is int and low <= value <= high)
    if pat.is_float64(arrow):
        return lambda value: value is None or type(value) is float
    if is_text(arrow):
        return lambda value: value is None or (type(value) is str and value.isascii())
    if pat.is_boolean(arrow):
        return lambda value: value is None or type(value) is bool
    if pat.is_struct(arrow):
        return _struct_as_it_is(arrow)
    return lambda value: value is None


def _struct_as_it_is(arrow: pa.DataType) -> Callable[[Any], bool]:
    parts = {arrow.field(at).name: taken_as_it_is(arrow.field(at).type) for at in range(arrow.num_fields)}
    names = list(parts)
    checks = list(parts.values())

    def as_it_is(value: Any) -> bool:
        if value is None:
            return True
        if type(value) is not dict or list(value) != names:
            return False
        return all(check(part) for check, part in zip(checks, value.values(), strict=True))

    return as_it_is
