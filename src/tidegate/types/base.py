"""What every value type can do, and the one way in which a misfit is reported. Pure.

Guarantee: `from_arrow(to_arrow(values)) == values`, with the same Python types, or `to_arrow` raises. Two values are
taken for another type because nothing is lost: a numpy scalar for its Python type, and an int for a declared float.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidegate.errors import TypeDeclarationError


@dataclass(frozen=True, slots=True)
class Naive:
    """Marks a datetime without a time zone; see NaiveDatetime."""


#: A wall-clock time without a zone. A plain `datetime` is a moment, so it must be aware; the two never mix in a column.
NaiveDatetime = Annotated[datetime, Naive()]


class TooManyBytes(TypeDeclarationError):
    """Each of the values may fit; all of them together make no column, which has at most 2 GiB."""


class DataType(ABC):
    """A declared type of values. Picklable, compared by its text form."""

    name: str  #: stable text form, stored in metadata
    arrow: pa.DataType
    immutable: bool  #: a value can be shared: nobody can change it
    numpy: np.dtype[Any] | None = None  #: for vectorised state; None where numpy has no exact counterpart
    number: np.dtype[Any] | None = None  #: of its values but None; those of a number that may be None have no `numpy`
    annotation: Any  #: `data_type(annotation)` gives this type again
    nullable: bool = False  #: None is a value
    settled_class: type | None = None  #: of which all values are settled, where not all of the type are
    pickles: bool = False  #: reading a column runs pickle: it must come from where it can be trusted
    comes_back: bool = True  #: the very value, also to a close look: not 3.0 for 3, nor another zone

    @abstractmethod
    def _encode(self, values: Sequence[Any]) -> pa.Array:
        """:raises TypeDeclarationError: naming the first value that does not fit."""

    @abstractmethod
    def _decode(self, array: pa.Array) -> list[Any]:
        """`array` is one chunk, without a dictionary, and has no nulls unless the type is nullable."""

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """:raises TypeDeclarationError: naming the first value that does not fit."""
        array = self._encode(values)
        if isinstance(array, pa.ChunkedArray):
            raise TooManyBytes(
                f"{len(values)} values of type {self.name} make more than 2 GB in one batch. Use smaller batches.",
                declared=self.name,
            )
        return array

    def from_arrow(self, array: pa.Array | pa.ChunkedArray) -> list[Any]:
        """Also reads columns that others wrote in another width or layout of the same type.

        :raises TypeDeclarationError: when the column holds something else, or nulls that the type does not allow.
        """
        array = one_plain_chunk(array)
        if array.null_count and not self.nullable:
            raise TypeDeclarationError(
                f"a column declared {self.name} has {array.null_count} nulls. Declare it Optional[...], "
                "or fill the nulls before.",
                declared=self.name,
            )
        try:
            return self._decode(array)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise TypeDeclarationError(
                f"a column of Arrow type {array.type} cannot be read as {self.name}: {error}", declared=self.name
            ) from error

    def copy(self, value: Any) -> Any:
        """A value that later changes to `value` do not reach; `value` itself when nobody can change it."""
        return value if self.immutable else self._copied(value)

    def _copied(self, value: Any) -> Any:
        raise NotImplementedError

    def settled(self, value: Any) -> Any:
        """A copy of `value` as it is when it is read again. What does not fit stays: to refuse it is the part of `check`."""
        return self.copy(value) if self.comes_back else self._settled(value)

    def _settled(self, value: Any) -> Any:
        raise NotImplementedError

    def check(self, value: Any) -> None:
        """:raises TypeDeclarationError: when `value` does not fit. What only pickling could tell is not looked at."""
        if not self.pickles:
            self.to_arrow([value])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataType) and self.name == other.name and self.arrow.equals(other.arrow)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<DataType {self.name}>"


def one_plain_chunk(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array without dictionary or extension wrapping."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # older pyarrow keeps chunks
            array = pa.concat_arrays(array.chunks)
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array


def misfit(value: Any, declared: str, way_out: str) -> TypeDeclarationError:
    kind = type(value)
    kind_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return TypeDeclarationError(
        f"{reprlib.repr(value)} (type {kind_name}) does not fit the declared type {declared}. {way_out}",
        declared=declared,
        value=reprlib.repr(value),
    )


def is_numpy_integer(value: Any) -> bool:
    """A timedelta64 is a numpy integer by class, but no number."""
    return isinstance(value, np.integer) and not isinstance(value, np.timedelta64)


def inside(where: str, error: TypeDeclarationError) -> TypeDeclarationError:
    """The same error, saying in which part of a larger value it happened."""
    return type(error)(f"in {where}: {error.message}", **error.context)


def encode_inside(where: str, type: DataType, values: Sequence[Any]) -> pa.Array:
    try:
        return type.to_arrow(values)
    except TypeDeclarationError as error:
        raise inside(where, error) from None


def decode_inside(where: str, type: DataType, array: pa.Array) -> list[Any]:
    try:
        return type.from_arrow(array)
    except TypeDeclarationError as error:
        raise inside(where, error) from None
