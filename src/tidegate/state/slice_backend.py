"""Where windows over columns keep their rows: a backend of one value state, in tables instead of a table of keys. Executor.

    key         of the row, as columns
    namespace   the run of time: of a slice its end, of a session its end and its start
    value       the accumulators, as one struct

The task's thread puts rows into whatever `rows` is; a snapshot is a list of tables that nobody changes, and the snapshot's
thread writes them. The rows are in memory whichever state backend the job has: they are there for as long as a window is open.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from tidegate.errors import ConfigurationError
from tidegate.state.backend import KeyedSnapshot, KeyedStateBackend, Section
from tidegate.state.canonical_rows import column_type
from tidegate.state.declarations import Declaration
from tidegate.state.key_codec import encode_int64s
from tidegate.state.key_columns import int64_column, normalised_keys
from tidegate.state.key_groups import key_group
from tidegate.state.key_hash import hash_int64s
from tidegate.state.merging import Merging
from tidegate.state.section_writer import SectionWriter
from tidegate.state.sections import SectionReader
from tidegate.state.timers import MOMENT_BYTES

if TYPE_CHECKING:
    from tidegate.state.backend import Handle
    from tidegate.state.keys import KeyType

#: Of a table with the columns of the key, then `namespace`, then the accumulators.
NAMESPACE = "namespace"


class KeptRows(Protocol):
    """What windows keep."""

    def frozen(self) -> list[pa.Table]:
        """The rows as they are now, with their namespace; a key may have several of one namespace."""

    def load(self, rows: pa.Table) -> None:
        """Add stored ones."""

    def __len__(self) -> int:
        """How many rows there are, or a few more."""


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """A key as columns of a table."""

    key_type: KeyType
    names: tuple[str, ...]  #: of one column for a key of any type, or of several for a tuple of as many parts

    def column(self, rows: pa.Table) -> pa.Array:
        """As one column, of a tuple a struct."""
        columns = [_one(rows.column(name)) for name in self.names]
        if len(columns) == 1:
            return columns[0]
        declared = column_type(self.key_type)
        assert declared is not None
        return pa.StructArray.from_arrays(columns, fields=list(declared.arrow))

    def columns(self, keys: pa.Array) -> list[pa.Array]:
        """The way back."""
        return [keys] if len(self.names) == 1 else keys.flatten()

    def stored(self, keys: pa.Array) -> tuple[np.ndarray[Any, Any], pa.Array]:
        """Hashes and canonical bytes."""
        ints = int64_column(keys)
        if ints is not None and self.key_type.name in ("int", "optional[int]"):
            return hash_int64s(ints), encode_int64s(ints)
        normalised = normalised_keys(self.key_type, keys)
        return self.key_type.hash_many(normalised), self.key_type.encode_column(normalised)

    def read(self, rows: pa.RecordBatch, reader: SectionReader) -> pa.Array:
        declared = column_type(self.key_type)
        assert declared is not None
        bare = reader.bare_keys(rows)
        return declared.to_arrow([self.key_type.denormalise(key) for key in bare])


class WindowRowsBackend(KeyedStateBackend):
    """The state of one operator of windows over columns, in one subtask."""

    def __init__(
        self, keys: KeyColumns, key_groups: range, max_parallelism: int, merging: Merging, rows: KeptRows
    ) -> None:
        self.key_groups = key_groups
        self._keys = keys
        self._max_parallelism = max_parallelism
        self._merging = merging
        self._rows = rows
        self._declaration: Declaration

    def bind(self, declaration: Declaration, columnar: bool = False) -> Handle:
        """It keeps one state, which nobody has a handle of."""
        self._declaration = declaration
        return None  # type: ignore[return-value]

    def snapshot(self) -> KeyedSnapshot:
        return _RowsSnapshot(
            self._declaration, self._keys, self.key_groups, self._max_parallelism, self._merging, self._rows.frozen()
        )

    def restore(
        self, state_name: str, kind: str, batches: Iterable[pa.RecordBatch], *, only_own_key_groups: bool = False
    ) -> None:
        declaration = self._declaration
        if (state_name, kind) != (declaration.name, declaration.kind):
            raise ConfigurationError(
                f"the checkpoint holds a {kind} state {state_name!r}, and windows over columns keep {declaration.name!r} "
                "alone. Start without this operator's state under another uid.",
                state=state_name,
            )
        reader = SectionReader(declaration, self._keys.key_type)
        for stored in batches:
            rows = reader.only(stored, self.key_groups, self._max_parallelism) if only_own_key_groups else stored
            if not rows.num_rows:
                continue
            columns = self._keys.columns(self._keys.read(rows, reader))
            values = reader.value_column(rows)
            names = [*self._keys.names, NAMESPACE, *self._merging.columns]
            self._rows.load(pa.table([*columns, rows.column("namespace"), *values.flatten()], names=names))

    # -- what a backend of single keys has -------------------------------------------------------------------------------

    def set_current_key(self, key: Hashable) -> None:
        """No key is ever current: rows name theirs."""

    def set_current_namespace(self, namespace: bytes) -> None: ...

    def clear_current_key(self) -> None: ...

    def key_group_of(self, key: Any) -> int:
        key_type = self._keys.key_type
        return key_group(key_type.hash(key_type.normalise(key)), self._max_parallelism)

    def entries(self, state_name: str) -> Iterator[tuple[Hashable, Any]]:
        return iter(())

    def keys(self, state_name: str) -> Iterator[Hashable]:
        """What windows keep is in namespaces, all of it."""
        return iter(())

    def state_size(self) -> dict[str, int]:
        return {self._declaration.name: len(self._rows)}


class _RowsSnapshot(KeyedSnapshot):
    """Tables of one moment."""

    def __init__(
        self,
        declaration: Declaration,
        keys: KeyColumns,
        key_groups: range,
        max_parallelism: int,
        merging: Merging,
        tables: list[pa.Table],
    ) -> None:
        self._declaration = declaration
        self._keys = keys
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._merging = merging
        self._by_namespace = Merging((*merging.keys, NAMESPACE), merging.accumulators)
        self._tables = tables

    def sections(self) -> Iterator[Section]:
        writer = SectionWriter(self._declaration, self._keys.key_type, self._key_groups, self._max_parallelism)
        for kept in self._tables:
            if not kept.num_rows:
                continue
            rows = self._by_namespace.merged([kept])
            keys = self._keys.column(rows)
            hashes, encoded = self._keys.stored(keys)
            values = pa.StructArray.from_arrays(
                [_one(rows.column(name)) for name in self._merging.columns], fields=list(self._merging.value_type)
            )
            writer.add_columns(keys, hashes, encoded, _one(rows.column(NAMESPACE)), values)
        yield from writer.finish()

    def release(self) -> None:
        self._tables = []


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.array([], column.type)
    )


def moments_column(*moments: np.ndarray[Any, Any]) -> pa.Array:
    """Namespaces of such moments, one after the other, in their order."""
    bits = [each.view(np.uint64) ^ np.uint64(1 << 63) for each in moments]
    raw = np.stack(bits, axis=1).astype(">u8")
    size = MOMENT_BYTES * len(moments)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(raw), [None, pa.py_buffer(raw.tobytes())]).cast(
        pa.binary()
    )


def moments_of(namespaces: pa.Array, count: int) -> list[np.ndarray[Any, Any]]:
    """The way back. :raises ConfigurationError: for the namespaces of another kind of window."""
    # Binary columns that are part of larger ones begin anywhere in their buffer; joined, they begin at its front.
    joined = b"".join(_one(namespaces).to_pylist())
    if len(joined) != MOMENT_BYTES * count * len(namespaces):
        raise ConfigurationError(
            "the checkpoint holds windows over columns of another kind than the operator's: sessions are not made of slices, "
            "nor slices of sessions. Give the operator another uid, and start without its state."
        )
    raw = np.frombuffer(joined, ">u8")
    columns = raw.reshape(-1, count).astype(np.uint64) ^ np.uint64(1 << 63)
    return [np.ascontiguousarray(columns[:, at]).view(np.int64) for at in range(count)]
