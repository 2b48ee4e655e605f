"""The keys of a batch as columns, for operators and functions that work on whole batches. Executor.

Guarantee: a column holds the very keys. Arrow has one type for each column and Python's conversions are loose (the ints beside
a float become floats, which are other keys), so keys of different types that a function gave go into different columns, each
with its records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa

from tidegate.state.key_codec import is_naive, refused
from tidegate.state.key_columns import canonical_column, column_type
from tidegate.state.keys import KeyType, TupleKey

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.graph.key_selector import KeySelector

Places: TypeAlias = "np.ndarray[Any, Any]"
_NONE = type(None)
_BEYOND = "No column holds it: declare key_type=str and give its text, or use process instead of process_batches."


def key_columns(selector: KeySelector, key_types: Sequence[pa.DataType], batch: Batch) -> list[pa.Array]:
    """The key of each record: a column, or one for each part of a tuple. Equal keys are equal values."""
    key_type = selector.key_type()
    column = selector.key_column(batch)
    if column is None:
        ((_, column),) = key_arrays(key_type, selector.keys_of(batch))
    columns, parts = (column.flatten(), key_type.parts) if isinstance(key_type, TupleKey) else ([column], [key_type])
    return [
        canonical_column(part, each if each.type == type else each.cast(type))
        for part, each, type in zip(parts, columns, key_types, strict=True)
    ]


def key_arrays(key_type: KeyType, keys: list[Any]) -> list[tuple[Places | None, pa.Array]]:
    """Columns of keys, with the places of their records in the batch; None where one column holds all.

    :raises KeyTypeError: :raises TypeDeclarationError: for what cannot be a key, or has no column.
    """
    normalised = key_type.normalise_many(keys)
    plain = keys if normalised is keys else list(map(key_type.denormalise, normalised))
    declared = column_type(key_type)
    if declared is not None:
        return [(None, declared.to_arrow(plain))]
    shapes = list(map(_shape, plain))
    different = list(dict.fromkeys(shapes))
    if _NONE in different and len(different) > 1:  # None stands in any column, so it needs none of its own
        different.remove(_NONE)
        shapes = [different[0] if shape is _NONE else shape for shape in shapes]
    if len(different) == 1:
        return [(None, _array(different[0], plain))]
    columns: list[tuple[Places | None, pa.Array]] = []
    for shape in different:
        places = [place for place, found in enumerate(shapes) if found == shape]
        columns.append((np.array(places, np.int64), _array(shape, [plain[place] for place in places])))
    return columns


def _shape(key: Any) -> Any:
    """What keys must have in common to share a column."""
    kind = type(key)
    if kind is tuple:
        return tuple(map(_shape, key))
    return (kind, is_naive(key)) if kind is datetime else kind


def _array(shape: Any, keys: list[Any]) -> pa.Array:
    """Of keys of that shape, or None."""
    if shape in _BUILDERS:
        return _BUILDERS[shape](keys)
    if isinstance(shape, tuple):
        present = [key for key in keys if key is not None]
        parts = [_array(part, [key[at] for key in present]) for at, part in enumerate(shape)]
        names = [f"f{at}" for at in range(len(shape))]
        dense = pa.StructArray.from_arrays(parts, names) if parts else pa.array([{}] * len(present), pa.struct([]))
        if len(present) == len(keys):
            return dense
        positions = np.cumsum([key is not None for key in keys]) - 1
        return dense.take(pa.array(positions, pa.int64(), mask=np.array([key is None for key in keys])))
    return pa.array(keys, from_pandas=False)


def _ints(keys: list[Any]) -> pa.Array:
    for arrow in (pa.int64(), pa.uint64()):
        try:
            return pa.array(keys, arrow, from_pandas=False)
        except (OverflowError, pa.ArrowInvalid):
            continue
    raise refused(next(key for key in keys if key is not None and not -(2**63) <= key < 2**63), _BEYOND)


def _decimals(keys: list[Any]) -> pa.Array:
    try:
        return pa.array(keys, from_pandas=False)
    except pa.ArrowException:
        raise refused(max(keys, key=lambda key: 0 if key is None else len(str(key))), _BEYOND) from None


def _uuids(keys: list[Any]) -> pa.Array:
    storage = pa.array([None if key is None else key.bytes for key in keys], pa.binary(16))
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


#: How columns are made of keys of one type; what pyarrow does by itself for those that are not here.
_BUILDERS: dict[Any, Callable[[list[Any]], pa.Array]] = {
    int: _ints,
    Decimal: _decimals,
    UUID: _uuids,
    (datetime, False): lambda keys: pa.array(keys, pa.timestamp("us", "UTC"), from_pandas=False),
    (datetime, True): lambda keys: pa.array(keys, pa.timestamp("us"), from_pandas=False),
}
