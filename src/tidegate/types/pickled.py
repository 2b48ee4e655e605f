"""Pickle, only where the user writes it. Pure.

What is pickled can be read back only where the same classes can be imported. Nobody else can read it, and it cannot
evolve; that is why it must be asked for.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.types.base import DataType, misfit


class Pickled:
    """Annotation for values of any class: `ValueState(tg.Pickled)`. `Pickled[Order]` says the same, for readers."""

    def __class_getitem__(cls, item: Any) -> type[Pickled]:
        return cls


class PickledType(DataType):
    name = "pickled"
    arrow = pa.binary()
    immutable = False
    annotation = Pickled
    pickles = True

    def _encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(list(map(pickled, values)), self.arrow, from_pandas=False)

    def _decode(self, array: pa.Array) -> list[Any]:
        try:
            return [pickle.loads(data) for data in array.to_pylist()]
        except Exception as error:  # unpickling runs the constructors of user classes: anything can come out of it
            raise TypeDeclarationError(
                f"a pickled value cannot be read: {type(error).__name__}: {error}. The classes that wrote it must be "
                "importable here, under the same names.",
                declared=self.name,
            ) from error

    def _copied(self, value: Any) -> Any:
        return copy.deepcopy(value)

    def check(self, value: Any) -> None:
        """Only pickling could tell, and would cost as much as the snapshot."""


def pickled(value: Any) -> bytes:
    """The one way in which values are pickled: state, records on their way, what goes to the driver. Classes are named;
    those that no module has (a function has made them, or the main program elsewhere) go along by value.

    :raises TypeDeclarationError: when it cannot be done.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # a class that pickle does not find, or an object's own __reduce__, which is user code
        return _by_value(value)


def _by_value(value: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
        return data
    except Exception as error:
        raise misfit(value, "pickled", f"It cannot be pickled: {error}.") from error
