"""The scalar types and their columns. Pure.

| declared      | column               | note                                                              |
| ---           | ---                  | ---                                                               |
| int           | int64                | beyond 64 bits: Decimal or Pickled                                |
| float         | double               | takes ints that a double holds exactly                            |
| bool          | bool                 |                                                                   |
| str           | string               | lone surrogates have no UTF-8 and are refused                     |
| bytes         | binary               |                                                                   |
| date          | date32               |                                                                   |
| datetime      | timestamp[us, UTC]   | aware; comes back in UTC                                          |
| NaiveDatetime | timestamp[us]        | naive                                                             |
| Decimal       | string               | every fixed precision would lose some value; digits are kept      |
| UUID          | fixed_size_binary[16]| big-endian, as UUID.bytes                                         |

The checks look at the set of the values' types, not at each value: one pass in C for a whole column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidegate.errors import TypeDeclarationError
from tidegate.types.base import DataType, NaiveDatetime, is_numpy_integer, misfit

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def is_text(arrow: pa.DataType) -> bool:
    return bool(pat.is_string(arrow) or pat.is_large_string(arrow) or pat.is_string_view(arrow))


def is_bytes(arrow: pa.DataType) -> bool:
    return bool(
        pat.is_binary(arrow)
        or pat.is_large_binary(arrow)
        or pat.is_binary_view(arrow)
        or pat.is_fixed_size_binary(arrow)
    )


class ScalarType(DataType):
    """One Python class, one Arrow type."""

    immutable = True
    python: type
    way_out: str = "Convert it before, or declare the type that it has."

    def _encode(self, values: Sequence[Any]) -> pa.Array:
        kinds = set(map(type, values))
        if kinds and kinds != {self.python}:
            python = self.python
            values = [value if type(value) is python else self._converted(value) for value in values]
        return self._column(values)

    def _converted(self, value: Any) -> Any:
        """`value`, which is not of `python`, without loss as one; raises when there is none."""
        raise misfit(value, self.name, self.way_out)

    def _column(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, self.arrow, from_pandas=False)

    def _decode(self, array: pa.Array) -> list[Any]:
        values: list[Any] = self._native(array).to_pylist()
        return values

    def _native(self, array: pa.Array) -> pa.Array:
        if array.type.equals(self.arrow):
            return array
        if not self._readable(array.type):
            raise ValueError(f"its values are not {self.name}")
        return array.cast(self.arrow)

    def _readable(self, arrow: pa.DataType) -> bool:
        return False

    def __reduce__(self) -> tuple[Callable[[str], ScalarType], tuple[str]]:
        return _scalar_named, (self.name,)


class IntType(ScalarType):
    name, python, annotation, arrow = "int", int, int, pa.int64()
    number = numpy = np.dtype(np.int64)

    def check(self, value: Any) -> None:
        if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
            self.to_arrow([value])

    def _converted(self, value: Any) -> Any:
        if is_numpy_integer(value):
            return int(value)
        raise misfit(value, self.name, self.way_out)

    def _column(self, values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array(values, self.arrow, from_pandas=False)
        except (OverflowError, pa.ArrowInvalid):
            beyond = next(value for value in values if not INT64_MIN <= value <= INT64_MAX)
            raise misfit(
                beyond, self.name, "int is 64 bits wide: declare Decimal or Pickled for larger ones."
            ) from None

    def _decode(self, array: pa.Array) -> list[Any]:
        values: list[Any] = self._native(array).to_numpy().tolist()
        return values

    def _readable(self, arrow: pa.DataType) -> bool:
        return bool(pat.is_integer(arrow))


class FloatType(ScalarType):
    name, python, annotation, arrow = "float", float, float, pa.float64()
    number = numpy = np.dtype(np.float64)
    comes_back = False
    settled_class = float

    def _settled(self, value: Any) -> Any:
        if type(value) is float:
            return value
        try:
            return self._converted(value)
        except TypeDeclarationError:
            return value

    def check(self, value: Any) -> None:
        if type(value) is not float:
            self.to_arrow([value])

    def _converted(self, value: Any) -> Any:
        if isinstance(value, np.floating):
            return float(value)
        if type(value) is int or is_numpy_integer(value):
            whole = int(value)
            if -(2**1023) < whole < 2**1023 and float(whole) == whole:
                return float(whole)
            raise misfit(
                value, self.name, "A double does not hold it exactly: convert it with float(), or declare int."
            )
        raise misfit(value, self.name, self.way_out)

    def _decode(self, array: pa.Array) -> list[Any]:
        values: list[Any] = self._native(array).to_numpy().tolist()
        return values

    def _readable(self, arrow: pa.DataType) -> bool:
        return bool(pat.is_floating(arrow) or pat.is_integer(arrow))


class BoolType(ScalarType):
    name, python, annotation, arrow = "bool", bool, bool, pa.bool_()
    number = numpy = np.dtype(np.bool_)

    def _converted(self, value: Any) -> Any:
        if isinstance(value, np.bool_):
            return bool(value)
        raise misfit(value, self.name, self.way_out)


class StrType(ScalarType):
    name, python, annotation, arrow = "str", str, str, pa.string()

    def check(self, value: Any) -> None:
        if type(value) is not str or not value.isascii():
            self.to_arrow([value])

    def _converted(self, value: Any) -> Any:
        if isinstance(value, np.str_):
            return str(value)
        raise misfit(value, self.name, self.way_out)

    def _column(self, values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array(values, self.arrow, from_pandas=False)
        except UnicodeEncodeError:
            lone = next(value for value in values if any("\ud800" <= letter <= "\udfff" for letter in value))
            raise misfit(lone, self.name, "It has a lone surrogate, which is not text: declare bytes.") from None

    def _decode(self, array: pa.Array) -> list[Any]:
        values: list[Any] = (
            self._native(array).to_numpy(zero_copy_only=False).tolist()
        )  # to_pylist takes thrice as long
        return values

    def _readable(self, arrow: pa.DataType) -> bool:
        return is_text(arrow)


class BytesType(ScalarType):
    name, python, annotation, arrow = "bytes", bytes, bytes, pa.binary()

    def _converted(self, value: Any) -> Any:
        if isinstance(value, np.bytes_):
            return bytes(value)
        raise misfit(value, self.name, "Convert it with bytes().")

    def _readable(self, arrow: pa.DataType) -> bool:
        return is_bytes(arrow)


class DateType(ScalarType):
    name, python, annotation, arrow = "date", date, date, pa.date32()
    way_out = "A datetime is not a date: use its .date()."

    def _readable(self, arrow: pa.DataType) -> bool:
        return bool(pat.is_date64(arrow))


class DatetimeType(ScalarType):
    """A moment: aware, kept as UTC microseconds. The zone it was written in is not kept."""

    name, python, annotation, arrow = "datetime", datetime, datetime, pa.timestamp("us", tz="UTC")
    way_out = "Convert it to a datetime.datetime with a time zone."
    comes_back = False

    def _settled(self, value: Any) -> Any:
        if type(value) is not datetime or value.tzinfo is UTC or value.utcoffset() is None:
            return value
        try:
            return value.astimezone(UTC)
        except OverflowError:
            return value

    def _column(self, values: Sequence[Any]) -> pa.Array:
        zones = set(map(attrgetter("tzinfo"), values))
        if not zones <= {UTC}:
            values = [self._in_utc(value) for value in values]
        return pa.array(values, self.arrow, from_pandas=False)

    def _in_utc(self, value: datetime) -> datetime:
        if value.utcoffset() is None:
            raise misfit(
                value,
                self.name,
                "It has no time zone: give it one, e.g. .replace(tzinfo=timezone.utc), "
                "or declare tidegate.types.NaiveDatetime.",
            )
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise misfit(value, self.name, "In UTC it lies outside the years 1 to 9999.") from None

    def _decode(self, array: pa.Array) -> list[Any]:
        # Adding durations to the epoch is seven times as fast as giving each naive datetime its zone.
        durations = self._native(array).cast(pa.int64()).cast(pa.duration("us"))
        return list(map(_EPOCH.__add__, durations.to_numpy().tolist()))

    def _readable(self, arrow: pa.DataType) -> bool:
        return pat.is_timestamp(arrow) and arrow.tz is not None


class NaiveDatetimeType(ScalarType):
    """A reading of a wall clock, in an unnamed zone."""

    name, python, annotation, arrow = "naive datetime", datetime, NaiveDatetime, pa.timestamp("us")
    way_out = "Convert it to a datetime.datetime without a time zone."
    comes_back = False  # without its `fold`

    def _settled(self, value: Any) -> Any:
        return value.replace(fold=0) if type(value) is datetime and value.fold else value

    def _column(self, values: Sequence[Any]) -> pa.Array:
        for zone in set(map(attrgetter("tzinfo"), values)) - {None}:
            aware = next(value for value in values if value.tzinfo is zone)
            raise misfit(aware, self.name, "It has a time zone: declare datetime.")
        return pa.array(values, self.arrow, from_pandas=False)

    def _decode(self, array: pa.Array) -> list[Any]:
        values: list[Any] = self._native(array).to_numpy().tolist()  # twenty times as fast as to_pylist
        if not set(map(type, values)) <= {datetime}:  # numpy gives what datetime cannot hold as integers
            raise ValueError("it has times outside the years 1 to 9999")
        return values

    def _readable(self, arrow: pa.DataType) -> bool:
        return pat.is_timestamp(arrow) and arrow.tz is None


class DecimalType(ScalarType):
    """As text: 1.0 and 1.00 stay apart, NaN and infinities are kept, no precision is ever chosen."""

    name, python, annotation, arrow = "Decimal", Decimal, Decimal, pa.string()
    way_out = "Convert it with Decimal(...)."

    def _column(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(list(map(str, values)), self.arrow, from_pandas=False)

    def _decode(self, array: pa.Array) -> list[Any]:
        try:
            return list(map(Decimal, self._native(array).to_pylist()))
        except ArithmeticError as error:
            raise ValueError(f"it has text that is not a number ({error})") from None

    def _readable(self, arrow: pa.DataType) -> bool:
        return is_text(arrow) or pat.is_decimal(arrow)


class UuidType(ScalarType):
    name, python, annotation, arrow = "UUID", UUID, UUID, pa.binary(16)
    way_out = "Convert it with uuid.UUID(...)."

    def _column(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([value.bytes for value in values], self.arrow, from_pandas=False)

    def _decode(self, array: pa.Array) -> list[Any]:
        return [UUID(bytes=value) for value in self._native(array).to_pylist()]

    def _readable(self, arrow: pa.DataType) -> bool:
        return is_bytes(arrow)


SCALARS: dict[Any, ScalarType] = {
    scalar.annotation: scalar
    for scalar in (
        IntType(),
        FloatType(),
        BoolType(),
        StrType(),
        BytesType(),
        DateType(),
        DatetimeType(),
        NaiveDatetimeType(),
        DecimalType(),
        UuidType(),
    )
}
_BY_NAME = {scalar.name: scalar for scalar in SCALARS.values()}


def _scalar_named(name: str) -> ScalarType:
    return _BY_NAME[name]
