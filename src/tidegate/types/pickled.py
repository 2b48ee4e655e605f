"""Pickle, only where the user writes it. Pure.

What is pickled can be read back only where the same classes can be imported. Nobody else can read it, and it cannot
evolve; that is why it must be asked for.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
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
        try:
            data = [pickle.dumps(value, protocol=5) for value in values]
        except (pickle.PicklingError, AttributeError, TypeError):
            dumps = cloudpickle.dumps
            data = [_dumped(dumps, value) for value in values]
        return pa.array(data, self.arrow, from_pandas=False)

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


def _dumped(dumps: Callable[[Any], bytes], value: Any) -> bytes:
    try:
        return dumps(value)
    except Exception as error:  # __reduce__ and __getstate__ are user code
        raise misfit(value, "pickled", f"It cannot be pickled: {error}.") from error
