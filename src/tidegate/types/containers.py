"""Optional, list, dict, tuple and dataclass: values made of values. Pure.

All of them work on whole columns: the parts of all values are laid out flat, encoded by their own type in one call,
and the shape is kept beside them. So nested values cost no call per value.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import attrgetter, itemgetter
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tidegate.errors import TypeDeclarationError
from tidegate.types.base import DataType, decode_inside, encode_inside, inside, misfit


class OptionalType(DataType):
    """None, or a value of `inner`."""

    nullable = True

    def __init__(self, inner: DataType) -> None:
        self.inner = inner
        self.name = f"optional[{inner.name}]"
        self.arrow = inner.arrow
        self.immutable = inner.immutable
        self.pickles = inner.pickles
        self.comes_back = inner.comes_back
        self.number = inner.number
        self.annotation = Optional[inner.annotation]  # noqa: UP045 - | is not defined for a pyarrow type

    def _encode(self, values: Sequence[Any]) -> pa.Array:
        present = [value for value in values if value is not None]
        dense = self.inner.to_arrow(present)
        if len(present) == len(values):
            return dense
        # Null positions are null indices: take() then makes nulls of every type, structs and maps too.
        positions = accumulate((value is not None for value in values), initial=-1)
        next(positions)
        return dense.take(
            pa.array([None if value is None else at for value, at in zip(values, positions, strict=True)], pa.int64())
        )

    def _decode(self, array: pa.Array) -> list[Any]:
        if not array.null_count:
            return self.inner.from_arrow(array)
        present = iter(self.inner.from_arrow(array.drop_null()) if array.null_count < len(array) else ())
        return [next(present) if valid else None for valid in array.is_valid().to_pylist()]

    def _copied(self, value: Any) -> Any:
        return None if value is None else self.inner.copy(value)

    def _settled(self, value: Any) -> Any:
        return None if value is None else self.inner.settled(value)

    def check(self, value: Any) -> None:
        if value is not None:
            self.inner.check(value)


class ListType(DataType):
    immutable = False

    def __init__(self, element: DataType) -> None:
        self.element = element
        self.pickles = element.pickles
        self.comes_back = element.comes_back
        self.name = f"list[{element.name}]"
        self.arrow = pa.list_(element.arrow)
        self.annotation = list[element.annotation]  # type: ignore[name-defined]

    def _encode(self, values: Sequence[Any]) -> pa.Array:
        _all_of(list, values, self.name, "Convert it with list().")
        flat = list(chain.from_iterable(values))
        return pa.ListArray.from_arrays(_offsets(values), encode_inside(self.name, self.element, flat), type=self.arrow)

    def _decode(self, array: pa.Array) -> list[Any]:
        if not (pat.is_list(array.type) or pat.is_large_list(array.type)):
            array = array.cast(self.arrow)
        bounds = array.offsets.to_numpy().tolist()
        flat = decode_inside(self.name, self.element, array.values.slice(bounds[0], bounds[-1] - bounds[0]))
        first = bounds[0]
        return [flat[start - first : stop - first] for start, stop in pairwise(bounds)]

    def _copied(self, value: Any) -> Any:
        return value.copy() if self.element.immutable else [self.element.copy(part) for part in value]

    def _settled(self, value: Any) -> Any:
        if type(value) is not list:
            return value
        return value.copy() if all_settled(self.element, value) else list(map(self.element.settled, value))


class DictType(DataType):
    """Insertion order is kept."""

    immutable = False

    def __init__(self, key: DataType, value: DataType) -> None:
        self.key = key
        self.value = value
        self.name = f"dict[{key.name}, {value.name}]"
        self.arrow = pa.map_(key.arrow, value.arrow)
        self.pickles = key.pickles or value.pickles
        self.comes_back = key.comes_back and value.comes_back
        self.annotation = dict[key.annotation, value.annotation]  # type: ignore[name-defined]

    def _encode(self, values: Sequence[Any]) -> pa.Array:
        _all_of(dict, values, self.name, "Convert it with dict().")
        keys = encode_inside(f"a key of {self.name}", self.key, list(chain.from_iterable(values)))
        flat = list(chain.from_iterable(map(dict.values, values)))
        parts = encode_inside(f"a value of {self.name}", self.value, flat)
        return pa.MapArray.from_arrays(_offsets(values), keys, parts).cast(self.arrow)

    def _decode(self, array: pa.Array) -> list[Any]:
        if not pat.is_map(array.type):
            raise ValueError("it is not a map")
        bounds = array.offsets.to_numpy().tolist()
        first, count = bounds[0], bounds[-1] - bounds[0]
        keys = decode_inside(f"a key of {self.name}", self.key, array.keys.slice(first, count))
        parts = decode_inside(f"a value of {self.name}", self.value, array.items.slice(first, count))
        return [
            dict(zip(keys[start - first : stop - first], parts[start - first : stop - first], strict=True))
            for start, stop in pairwise(bounds)
        ]

    def _copied(self, value: Any) -> Any:
        if self.value.immutable:
            return value.copy()
        return {key: self.value.copy(part) for key, part in value.items()}

    def _settled(self, value: Any) -> Any:
        if type(value) is not dict:
            return value
        if self.key.comes_back and all_settled(self.value, value.values()):
            return value.copy()
        return {self.key.settled(key): self.value.settled(part) for key, part in value.items()}


class TupleType(DataType):
    """A fixed number of parts; a struct with the fields f0, f1, ..."""

    def __init__(self, parts: Sequence[DataType]) -> None:
        self.parts = list(parts)
        self.name = f"tuple[{', '.join(part.name for part in parts)}]"
        self.arrow = pa.struct([(f"f{at}", part.arrow) for at, part in enumerate(parts)])
        self.immutable = all(part.immutable for part in parts)
        self.pickles = any(part.pickles for part in parts)
        self.comes_back = all(part.comes_back for part in parts)
        #: The parts that may have to be settled, and the class of which all values are so by themselves.
        self._unsettled = [(at, part.settled_class) for at, part in enumerate(parts) if not part.comes_back]
        self.annotation = tuple[tuple(part.annotation for part in parts)]  # type: ignore[misc]

    def columns_of(self, values: Sequence[Any]) -> list[pa.Array]:
        self._check_shape(values)
        return [
            encode_inside(f"part {at} of {self.name}", part, list(map(itemgetter(at), values)))
            for at, part in enumerate(self.parts)
        ]

    def check(self, value: Any) -> None:
        if type(value) is not tuple or len(value) != len(self.parts):
            self._check_shape([value])
        at = 0
        try:
            for at, part in enumerate(self.parts):
                part.check(value[at])
        except TypeDeclarationError as error:
            raise inside(f"part {at} of {self.name}", error) from None

    def _check_shape(self, values: Sequence[Any]) -> None:
        _all_of(tuple, values, self.name, "Convert it with tuple().")
        size = len(self.parts)
        if not set(map(len, values)) <= {size}:
            odd = next(value for value in values if len(value) != size)
            raise misfit(odd, self.name, f"It has {len(odd)} parts, not {size}.")

    def values_of(self, columns: Sequence[pa.Array]) -> list[Any]:
        parts = [
            decode_inside(f"part {at} of {self.name}", part, column)
            for at, (part, column) in enumerate(zip(self.parts, columns, strict=True))
        ]
        return list(zip(*parts, strict=True))

    def _encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.StructArray.from_arrays(self.columns_of(values), fields=list(self.arrow))

    def _decode(self, array: pa.Array) -> list[Any]:
        if not pat.is_struct(array.type) or array.type.num_fields != len(self.parts):
            raise ValueError(f"it is not a struct of {len(self.parts)} fields")
        return self.values_of([array.field(at) for at in range(len(self.parts))])

    def _copied(self, value: Any) -> Any:
        return tuple([part.copy(element) for part, element in zip(self.parts, value, strict=True)])

    def _settled(self, value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(self.parts):
            return value
        for at, of in self._unsettled:
            if value[at].__class__ is not of:
                break
        else:
            return self.copy(value)
        return tuple([part.settled(element) for part, element in zip(self.parts, value, strict=True)])


class DataclassType(DataType):
    """A struct with a field for each field of the class.

    Values are made without `__init__` and `__post_init__`: the fields are set as they were stored. What such methods
    computed is among them, and computing twice could change them. A stored struct may lack fields that have a default
    (the class has grown), have more (the class has
    shrunk), and have fields under an older name (`old_name`).
    """

    def __init__(self, cls: type, fields: dict[str, DataType]) -> None:
        self.cls = cls
        self.fields = fields
        self.name = f"dataclass {cls.__name__}{{{','.join(f'{name}:{type.name}' for name, type in fields.items())}}}"
        self.arrow = pa.struct([(name, type.arrow) for name, type in fields.items()])
        self.immutable = cls.__dataclass_params__.frozen and all(type.immutable for type in fields.values())  # type: ignore[attr-defined]
        self.pickles = any(type.pickles for type in fields.values())
        self.comes_back = all(type.comes_back for type in fields.values())
        self.annotation = cls

    def columns_of(self, values: Sequence[Any]) -> list[pa.Array]:
        self._check_class(values)
        label = self.cls.__name__
        try:
            return [
                encode_inside(f"field {name!r} of {label}", type, list(map(attrgetter(name), values)))
                for name, type in self.fields.items()
            ]
        except AttributeError as error:
            odd = next(value for value in values if not all(hasattr(value, name) for name in self.fields))
            raise self._unset(odd, error) from None

    def check(self, value: Any) -> None:
        if value.__class__ is not self.cls:
            self._check_class([value])
        name = ""
        try:
            for name, type in self.fields.items():
                type.check(getattr(value, name))
        except AttributeError as error:
            raise self._unset(value, error) from None
        except TypeDeclarationError as error:
            raise inside(f"field {name!r} of {self.cls.__name__}", error) from None

    def _check_class(self, values: Sequence[Any]) -> None:
        label = self.cls.__name__
        _all_of(self.cls, values, label, f"Only {label} itself fits: a subclass would lose its own fields.")

    def _unset(self, value: Any, error: AttributeError) -> TypeDeclarationError:
        return misfit(object.__repr__(value), self.name, f"A field has never been set: {error}.")

    def values_of(self, columns: dict[str, pa.Array], count: int) -> list[Any]:
        values: list[Any] = list(map(object.__new__, repeat(self.cls, count)))
        for name, type in self.fields.items():
            stored = name if name in columns else old_name(self.cls, name)
            if stored in columns:
                parts: Any = decode_inside(f"field {name!r} of {self.cls.__name__}", type, columns[stored])
            else:
                parts = self._defaults(name, count)
            # map and deque keep the loop in C; object.__setattr__ also sets the fields of frozen classes.
            deque(map(object.__setattr__, values, repeat(name), parts), maxlen=0)
        return values

    def _defaults(self, name: str, count: int) -> list[Any]:
        field = self.cls.__dataclass_fields__[name]  # type: ignore[attr-defined]
        if field.default is not dataclasses.MISSING:
            return [field.default] * count
        if field.default_factory is not dataclasses.MISSING:
            return [field.default_factory() for _ in range(count)]
        raise ValueError(f"it lacks the field {name!r}, which has no default in {self.cls.__name__}")

    def _encode(self, values: Sequence[Any]) -> pa.Array:
        return pa.StructArray.from_arrays(self.columns_of(values), fields=list(self.arrow))

    def _decode(self, array: pa.Array) -> list[Any]:
        if not pat.is_struct(array.type):
            raise ValueError("it is not a struct")
        columns = {array.type.field(at).name: array.field(at) for at in range(array.type.num_fields)}
        return self.values_of(columns, len(array))

    def _copied(self, value: Any) -> Any:
        twin: Any = object.__new__(self.cls)
        for name, type in self.fields.items():
            object.__setattr__(twin, name, type.copy(getattr(value, name)))
        return twin

    def _settled(self, value: Any) -> Any:
        if value.__class__ is not self.cls or not all(hasattr(value, name) for name in self.fields):
            return value
        twin: Any = object.__new__(self.cls)
        for name, type in self.fields.items():
            object.__setattr__(twin, name, type.settled(getattr(value, name)))
        return twin


def all_settled(of: DataType, values: Iterable[Any]) -> bool:
    """Seen by their classes alone: of a type that has no such class, none is."""
    return of.settled_class is not None and {of.settled_class}.issuperset(map(type, values))


def old_name(cls: type, field: str) -> str:
    """What a field of a dataclass was called before: `field(metadata={"renamed_from": "old"})`; "" when it says nothing."""
    return str(cls.__dataclass_fields__[field].metadata.get("renamed_from", ""))  # type: ignore[attr-defined]


def _all_of(kind: type, values: Sequence[Any], declared: str, way_out: str) -> None:
    if not set(map(type, values)) <= {kind}:
        raise misfit(next(value for value in values if type(value) is not kind), declared, way_out)


def _offsets(values: Sequence[Any]) -> pa.Array:
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int64, count=len(values)), out=offsets[1:])
    if offsets[-1] > 2**31 - 1:
        raise misfit(len(values), "a list or dict column", "It has more than 2**31 parts: use smaller batches.")
    return pa.array(offsets.astype(np.int32), pa.int32())
