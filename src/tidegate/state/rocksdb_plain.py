"""Values in plain form: what msgpack can hold, and nothing that needs a class to be read again. Part of the row format.

Pure. A value's plain form is given by the Arrow type of its declared type alone, so stored rows can be turned into
columns after the class that wrote them has changed (see `column_of_plain`); restoring then goes the way of every other
stored column.

    int, float, bool, str, bytes   themselves            list[T]      an array of plain forms
    date                           days since 1970       dict[K, V]   an array: key, value, key, value ...
    datetime (aware or naive)      microseconds          tuple, dataclass  an array, a plain form for each field
    Decimal                        its text              None         nil
    UUID                           16 bytes              Pickled      the pickle

Arrow types are plain where Python's value is exact (integers, double, bool, text, bytes); all others have no plain form,
and a value that holds one is stored as Arrow stores it (state/rocksdb_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import accumulate, chain
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidegate.types import DataType
from tidegate.types.arrow_types import ArrowType
from tidegate.types.containers import DataclassType, DictType, ListType, OptionalType, TupleType
from tidegate.types.pickled import PickledType
from tidegate.types.scalars import INT64_MAX, INT64_MIN, ScalarType, is_text

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)


class NotPlain(Exception):
    """A value that is not exactly of its type: a misfit, or one that the type can still convert (a numpy scalar)."""


class PlainForm(NamedTuple):
    """The way in (raises NotPlain) and the way out; None: the value is its own plain form, unchecked."""

    to: Callable[[Any], Any]
    of: Callable[[Any], Any] | None


def plain_form(data_type: DataType) -> PlainForm | None:
    """None when values of the type have no plain form."""
    if isinstance(data_type, ScalarType):
        return _SCALARS[data_type.name]
    if isinstance(data_type, PickledType):
        return PlainForm(
            lambda value: data_type.to_arrow([value])[0].as_py(),
            lambda data: data_type.from_arrow(pa.array([data], pa.binary()))[0],
        )
    if isinstance(data_type, ArrowType):
        return _arrow_form(data_type.arrow)
    if isinstance(data_type, OptionalType):
        return _optional(data_type)
    if isinstance(data_type, ListType):
        return _list(data_type)
    if isinstance(data_type, DictType):
        return _dict(data_type)
    if isinstance(data_type, TupleType):
        return _tuple(data_type)
    if isinstance(data_type, DataclassType):
        return _dataclass(data_type)
    return None


# -- scalars -----------------------------------------------------------------------------------------------------------


def _exactly(kind: type) -> Callable[[Any], Any]:
    def to(value: Any) -> Any:
        if value.__class__ is not kind:
            raise NotPlain
        return value

    return to


def _to_int(value: Any) -> Any:
    if value.__class__ is not int or not INT64_MIN <= value <= INT64_MAX:
        raise NotPlain
    return value


def _to_days(value: Any) -> int:
    if value.__class__ is not date:
        raise NotPlain
    return int(value.toordinal()) - _EPOCH_DAY


def _to_micros(value: Any) -> int:
    if value.__class__ is not datetime or value.tzinfo is not UTC:
        raise NotPlain  # another zone: the type converts it
    return int((value - _EPOCH_UTC) // _MICROSECOND)


def _to_naive_micros(value: Any) -> int:
    if value.__class__ is not datetime or value.tzinfo is not None:
        raise NotPlain
    return int((value - _EPOCH) // _MICROSECOND)


def _to_decimal_text(value: Any) -> str:
    if value.__class__ is not Decimal:
        raise NotPlain
    return str(value)


def _to_uuid_bytes(value: Any) -> bytes:
    if value.__class__ is not UUID:
        raise NotPlain
    return value.bytes


_SCALARS: dict[str, PlainForm] = {
    "int": PlainForm(_to_int, None),
    "float": PlainForm(_exactly(float), None),
    "bool": PlainForm(_exactly(bool), None),
    "str": PlainForm(_exactly(str), None),
    "bytes": PlainForm(_exactly(bytes), None),
    "date": PlainForm(_to_days, lambda days: date.fromordinal(days + _EPOCH_DAY)),
    "datetime": PlainForm(_to_micros, lambda micros: _EPOCH_UTC + timedelta(microseconds=micros)),
    "naive datetime": PlainForm(_to_naive_micros, lambda micros: _EPOCH + timedelta(microseconds=micros)),
    "Decimal": PlainForm(_to_decimal_text, Decimal),
    "UUID": PlainForm(_to_uuid_bytes, lambda data: UUID(bytes=data)),
}


def _arrow_form(arrow: pa.DataType) -> PlainForm | None:
    if pat.is_integer(arrow):
        low, high = _range_of(arrow)

        def to_integer(value: Any) -> Any:
            if value is not None and (value.__class__ is not int or not low <= value <= high):
                raise NotPlain
            return value

        return PlainForm(to_integer, None)
    for holds, kind in ((pat.is_boolean, bool), (pat.is_float64, float), (is_text, str), (pat.is_binary, bytes)):
        if holds(arrow):
            return _or_none(_exactly(kind))
    return None


def _or_none(to: Callable[[Any], Any]) -> PlainForm:
    return PlainForm(lambda value: None if value is None else to(value), None)


def _range_of(arrow: pa.DataType) -> tuple[int, int]:
    if pat.is_signed_integer(arrow):
        return -(1 << (arrow.bit_width - 1)), (1 << (arrow.bit_width - 1)) - 1
    return 0, (1 << arrow.bit_width) - 1


# -- containers --------------------------------------------------------------------------------------------------------


def _optional(data_type: OptionalType) -> PlainForm | None:
    inner = plain_form(data_type.inner)
    if inner is None:
        return None
    to, of = inner
    return PlainForm(
        lambda value: None if value is None else to(value),
        None if of is None else lambda plain: None if plain is None else of(plain),
    )


def _list(data_type: ListType) -> PlainForm | None:
    element = plain_form(data_type.element)
    if element is None:
        return None
    to_element, of_element = element

    def to(value: Any) -> Any:
        if value.__class__ is not list:
            raise NotPlain
        return [to_element(part) for part in value]

    # Without a way out the decoded list is the caller's own as it is.
    return PlainForm(to, None if of_element is None else lambda plain: [of_element(part) for part in plain])


def _dict(data_type: DictType) -> PlainForm | None:
    key, value = plain_form(data_type.key), plain_form(data_type.value)
    if key is None or value is None:
        return None
    to_key, to_value = key.to, value.to
    of_key, of_value = _way_out(key), _way_out(value)

    def to(mapping: Any) -> Any:
        if mapping.__class__ is not dict:
            raise NotPlain
        flat = []
        for name, part in mapping.items():
            flat.append(to_key(name))
            flat.append(to_value(part))
        return flat

    def of(flat: Any) -> Any:
        return dict(zip(map(of_key, flat[::2]), map(of_value, flat[1::2]), strict=True))

    return PlainForm(to, of)


def _tuple(data_type: TupleType) -> PlainForm | None:
    forms = [plain_form(part) for part in data_type.parts]
    if any(form is None for form in forms):
        return None
    ways_in = [form.to for form in forms if form is not None]
    ways_out = [_way_out(form) for form in forms if form is not None]
    size = len(ways_in)

    def to(value: Any) -> Any:
        if value.__class__ is not tuple or len(value) != size:
            raise NotPlain
        return [way(part) for way, part in zip(ways_in, value, strict=True)]

    return PlainForm(to, lambda plain: tuple([way(part) for way, part in zip(ways_out, plain, strict=True)]))


def _dataclass(data_type: DataclassType) -> PlainForm | None:
    forms = {name: plain_form(part) for name, part in data_type.fields.items()}
    if any(form is None for form in forms.values()):
        return None
    ways_in = [(name, form.to) for name, form in forms.items() if form is not None]
    ways_out = [(name, _way_out(form)) for name, form in forms.items() if form is not None]
    cls = data_type.cls

    def to(value: Any) -> Any:
        if value.__class__ is not cls:
            raise NotPlain
        try:
            return [way(getattr(value, name)) for name, way in ways_in]
        except AttributeError:
            raise NotPlain from None

    def of(plain: Any) -> Any:
        # Without __init__ and __post_init__, as everywhere (types/containers.py); also for frozen classes.
        value: Any = object.__new__(cls)
        for (name, way), part in zip(ways_out, plain, strict=True):
            object.__setattr__(value, name, way(part))
        return value

    return PlainForm(to, of)


def _way_out(form: PlainForm) -> Callable[[Any], Any]:
    return form.of if form.of is not None else lambda plain: plain


# -- columns -----------------------------------------------------------------------------------------------------------


def column_of_plain(arrow: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Plain forms as a column of the Arrow type that they were made under."""
    if not pat.is_nested(arrow):
        return pa.array(values, arrow, from_pandas=False)
    if None in values:
        dense = column_of_plain(arrow, [value for value in values if value is not None])
        positions = accumulate((value is not None for value in values), initial=-1)
        next(positions)
        return dense.take(
            pa.array([None if value is None else at for value, at in zip(values, positions, strict=True)], pa.int64())
        )
    if pat.is_struct(arrow):
        parts = [
            column_of_plain(arrow.field(at).type, [value[at] for value in values]) for at in range(arrow.num_fields)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(arrow))
    if pat.is_map(arrow):
        keys = column_of_plain(arrow.key_type, list(chain.from_iterable(value[::2] for value in values)))
        items = column_of_plain(arrow.item_type, list(chain.from_iterable(value[1::2] for value in values)))
        return pa.MapArray.from_arrays(offsets_of([len(value) // 2 for value in values]), keys, items).cast(arrow)
    flat = column_of_plain(arrow.value_type, list(chain.from_iterable(values)))
    return pa.ListArray.from_arrays(offsets_of([len(value) for value in values]), flat, type=arrow)


def offsets_of(lengths: Sequence[int]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(np.asarray(lengths, dtype=np.int64), out=offsets[1:], dtype=np.int32)
    return pa.array(offsets, pa.int32())
