"""Where windows and joins over columns keep their rows: a backend of value states that are tables of columns. Executor.

    key         of the row, as columns
    namespace   the run of time: of a slice its end, of a session its end and its start; a record of a join has its time there,
                and a number
    value       the accumulators, or the columns of the record, as one struct

The task's thread puts rows into whatever `rows` is; a snapshot is a list of tables that nobody changes, and the snapshot's
thread writes them. The rows are in memory whichever state backend the job has: they are there for as long as a window is open,
or a record can meet another.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from tidegate.errors import ConfigurationError
from tidegate.functions.merging import Merging
from tidegate.state.backend import KeyedSnapshot, KeyedStateBackend, Section
from tidegate.state.declarations import Declaration
from tidegate.state.key_codec import encode_int64s
from tidegate.state.key_columns import column_type, int64_column, normalised_keys
from tidegate.state.key_groups import key_group
from tidegate.state.key_hash import hash_int64s
from tidegate.state.section_writer import SectionWriter
from tidegate.state.sections import SectionReader
from tidegate.state.timers import MOMENT_BYTES

if TYPE_CHECKING:
    from tidegate.state.handles import Handle
    from tidegate.state.keys import KeyType

#: Of a table with the columns of the key, then `namespace`, then the accumulators.
NAMESPACE = "namespace"


class KeptRows(Protocol):
    """What one state keeps."""

    @property
    def merging(self) -> Merging | None:
        """How several rows of a key and a namespace become one; None: there is one of each."""

    @property
    def columns(self) -> list[str]:
        """Of the value."""

    @property
    def value_type(self) -> pa.StructType: ...

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

    def hashes(self, rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Of each row's key, as where keys are rows."""
        columns = [rows.column(name) for name in self.names]
        return self.key_type.hash_column(columns[0]) if len(columns) == 1 else self.key_type.hash_columns(columns)

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


class RowsBackend(KeyedStateBackend):
    """The state of one operator over columns, in one subtask."""

    def __init__(self, keys: KeyColumns, key_groups: range, max_parallelism: int, rows: Mapping[str, KeptRows]) -> None:
        """`rows`: by the name of the state."""
        self.key_groups = key_groups
        self._keys = keys
        self._max_parallelism = max_parallelism
        self._rows = rows
        self._declarations: dict[str, Declaration] = {}

    def bind(self, declaration: Declaration, columnar: bool = False) -> Handle:
        """Of its states nobody has a handle."""
        self._declarations[declaration.name] = declaration
        return None  # type: ignore[return-value]

    def snapshot(self) -> KeyedSnapshot:
        kept = [(self._declarations[name], rows, rows.frozen()) for name, rows in self._rows.items()]
        return _RowsSnapshot(self._keys, self.key_groups, self._max_parallelism, kept)

    def restore(self, state_name: str, kind: str, batches: Iterable[pa.RecordBatch]) -> None:
        declaration = self._declarations.get(state_name)
        if declaration is None or kind != declaration.kind:
            raise ConfigurationError(
                f"the checkpoint holds a {kind} state {state_name!r}, and this operator over columns keeps "
                f"{' and '.join(map(repr, self._rows))} alone. Start without its state under another uid.",
                state=state_name,
            )
        kept = self._rows[state_name]
        reader = SectionReader(declaration, self._keys.key_type)
        for rows in batches:
            if not rows.num_rows:
                continue
            columns = self._keys.columns(self._keys.read(rows, reader))
            values = reader.value_column(rows)
            names = [*self._keys.names, NAMESPACE, *kept.columns]
            kept.load(pa.table([*columns, rows.column("namespace"), *values.flatten()], names=names))

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
        """What is kept is in namespaces, all of it."""
        return iter(())

    def state_size(self) -> dict[str, int]:
        return {name: len(rows) for name, rows in self._rows.items()}


class _RowsSnapshot(KeyedSnapshot):
    """Tables of one moment."""

    def __init__(
        self,
        keys: KeyColumns,
        key_groups: range,
        max_parallelism: int,
        kept: list[tuple[Declaration, KeptRows, list[pa.Table]]],
    ) -> None:
        self._keys = keys
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._kept = kept

    def sections(self) -> Iterator[Section]:
        for declaration, kept, tables in self._kept:
            writer = SectionWriter(declaration, self._keys.key_type, self._key_groups, self._max_parallelism)
            for table in tables:
                if table.num_rows:
                    self._write(table, kept, writer)
            yield from writer.finish()

    def _write(self, rows: pa.Table, kept: KeptRows, writer: SectionWriter) -> None:
        if kept.merging is not None:
            rows = Merging((*kept.merging.keys, NAMESPACE), kept.merging.accumulators).merged([rows])
        keys = self._keys.column(rows)
        hashes, encoded = self._keys.stored(keys)
        values = pa.StructArray.from_arrays(
            [_one(rows.column(name)) for name in kept.columns], fields=list(kept.value_type)
        )
        writer.add_columns(keys, hashes, encoded, _one(rows.column(NAMESPACE)), values)

    def release(self) -> None:
        self._kept = []


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
