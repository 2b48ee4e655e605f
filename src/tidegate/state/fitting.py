"""Whether a value fits its declared state, asked when it is set. Executor, per-record path.

A wrong value should fail at the user's line and not later, in the snapshot's thread. So the class of a value is
compared at once, which is cheap; what lies deeper (an element of a list, a field of a dataclass) is looked at by the
snapshot, which names the state and the key.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.types import DataType
from tidegate.types.arrow_types import ArrowType, taken_as_it_is
from tidegate.types.containers import DataclassType, DictType, ListType, OptionalType, TupleType
from tidegate.types.pickled import PickledType
from tidegate.types.scalars import ScalarType

if TYPE_CHECKING:
    from tidegate.state.declarations import Declaration, StoredValue
    from tidegate.state.handles import Column


_PARTLY = (int, str)  #: beyond 64 bits, and with a lone surrogate, they cannot be stored
_LOOKED_AT = (*_PARTLY, datetime)  #: whose zone is not kept


class Fitter:
    """Takes values into one state: checked, converted where nothing is lost, copied where they can change."""

    __slots__ = ("_declaration", "_type", "exact", "fit")

    def __init__(self, declaration: Declaration, data_type: DataType) -> None:
        self._declaration = declaration
        self._type = data_type
        #: a value of exactly this class needs no `fit`; None when every value does
        self.exact = (
            data_type.python if isinstance(data_type, ScalarType) and data_type.python not in _LOOKED_AT else None
        )
        #: the value as it is to be kept; raises TypeDeclarationError
        self.fit: Callable[[Any], Any] = self._fit_of(data_type)

    def _fit_of(self, data_type: DataType) -> Callable[[Any], Any]:
        if isinstance(data_type, OptionalType):
            inner = self._fit_of(data_type.inner)
            return lambda value: None if value is None else inner(value)
        if isinstance(data_type, PickledType):
            return data_type.copy
        if isinstance(data_type, ArrowType):
            return self._fit_of_arrow(data_type)
        expected = _python_class(data_type)
        copy = self._check_of(data_type) if expected in _PARTLY else data_type.settled

        def fit(value: Any) -> Any:
            return copy(value) if value.__class__ is expected else self._converted(data_type, value)

        return fit

    def _fit_of_arrow(self, data_type: ArrowType) -> Callable[[Any], Any]:
        as_it_is = taken_as_it_is(data_type.arrow)

        def fit(value: Any) -> Any:
            return data_type.copy(value) if as_it_is(value) else self._converted(data_type, value)

        return fit

    def _converted(self, data_type: DataType, value: Any) -> Any:
        """Through the stored form and back: what `get` gives is then the same before and after a restore."""
        try:
            (converted,) = data_type.from_arrow(data_type.to_arrow([value]))
        except TypeDeclarationError as error:
            raise self._refused(error) from None
        return converted

    def _check_of(self, data_type: DataType) -> Callable[[Any], Any]:
        """For values of the right class, of which some cannot be stored: refused here, not by the snapshot."""

        def check(value: Any) -> Any:
            try:
                data_type.check(value)
            except TypeDeclarationError as error:
                raise self._refused(error) from None
            return value

        return check

    def fit_sum(self, total: Any) -> Any:
        """A sum that is to be kept; a sum of ints may have left the type's range."""
        if total.__class__ is int:
            try:
                self._type.check(total)
            except TypeDeclarationError as error:
                raise self._refused(error) from None
        return total

    def require_number(self) -> None:
        if self._type.number is None or self._type.number.kind not in "iuf":
            raise TypeDeclarationError(
                f"state {self._declaration.name!r} ({self._declaration.line}) is declared as "
                f"{self._declaration.type_name}, so nothing can be added to it. Declare it int or float, or use "
                "get_many and update_many.",
                state=self._declaration.name,
            )

    def values(self, values: Column | int | float, count: int) -> list[Any]:
        """`count` values as Python objects, of a column or of one number for all rows."""
        if isinstance(values, (int, float, np.number, np.bool_)):
            return [self.fit(values)] * count
        column = _arrow_column(values, count)
        try:
            return self._type.from_arrow(column)
        except TypeDeclarationError as error:
            raise self._refused(error) from None

    def numbers(self, values: Column | int | float, count: int) -> np.ndarray[Any, Any]:
        """The same as a numpy array of the type's own dtype; without a copy where it is one already."""
        dtype = self._type.number
        if isinstance(values, np.ndarray) and values.dtype == dtype:
            _check_length(values, count)
            return values
        if isinstance(values, pa.Array) and values.type == self._type.arrow and not values.null_count:
            _check_length(values, count)
            return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
        if isinstance(values, (int, float, np.number, np.bool_)):
            return np.full(count, self.fit(values), dtype=dtype)
        return np.array(self.values(values, count), dtype=dtype)

    def _refused(self, error: TypeDeclarationError) -> TypeDeclarationError:
        return TypeDeclarationError(
            f"state {self._declaration.name!r} ({self._declaration.line}): {error.message}",
            **{**error.context, "state": self._declaration.name},
        )


class Intake(NamedTuple):
    """In and out of the form in which a table keeps values."""

    admit: Callable[[Any], Any]  #: a value as it is to be kept; raises TypeDeclarationError
    give: Callable[[Any], Any] | None  #: what is kept, as the caller's own; None: as it is, because it cannot change
    look: Callable[[Any], Any] | None = None  #: the same, to be looked at and not handed out; None: as it is kept


def object_intake(declaration: Declaration, data_type: DataType) -> Intake:
    """Values are kept as the objects that they are."""
    return Intake(Fitter(declaration, data_type).fit, None if data_type.immutable else data_type.copy)


def _python_class(data_type: DataType) -> type | None:
    if isinstance(data_type, ScalarType):
        return data_type.python
    if isinstance(data_type, DataclassType):
        return data_type.cls
    for of, expected in ((ListType, list), (DictType, dict), (TupleType, tuple)):
        if isinstance(data_type, of):
            return expected
    return None


def _arrow_column(values: Column, count: int) -> pa.Array | pa.ChunkedArray:
    _check_length(values, count)
    return pa.array(values) if isinstance(values, np.ndarray) else values


def _check_length(values: Column, count: int) -> None:
    if len(values) != count:
        raise ValueError(f"{count} keys but {len(values)} values: each row needs one of each")


def column_of(declaration: StoredValue, values: list[Any]) -> pa.Array:
    """As `get_many` gives it: null for a key that has no value and no default."""
    value_type = declaration.value_type
    if declaration.default is None and not value_type.nullable:
        return OptionalType(value_type).to_arrow(values)
    return value_type.to_arrow(values)
