"""A table whose cold part is sorted runs. Part of the RocksDB backend. Executor.

Its runs lie beside the database, and a checkpoint has links to both; `RUNS` says which runs there are (state/run_files.py).
What of it is in memory is in columns (state/rocksdb_columns.py), or in dictionaries (state/hot_table.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.state.cold import Changed, Cold, FrozenCold
from tidegate.state.cold_keys import INTS, OTHERS
from tidegate.state.namespaces import is_namespaced
from tidegate.state.rocksdb_cache import Table
from tidegate.state.rocksdb_rows import expiry_of
from tidegate.state.rocksdb_store import row_format

if TYPE_CHECKING:
    from tidegate.state.declarations import StoredValue
    from tidegate.state.runs import Column

PIECE_ROWS = 65_536


class Swept(NamedTuple):
    """Of a few steps over the rows of a table."""

    is_round: bool  #: the next step begins anew
    looked_at: int
    forgotten: int


class ColdTable(Table):
    """Key -> what it has."""

    cold: Cold
    tiers: ClassVar[Sequence[str]] = (INTS, OTHERS)

    def rebind(self) -> None:
        self.store.put_format(row_format(self.declaration))

    @abstractmethod
    def _take(self) -> Changed | None:
        """What has changed since the last time."""

    @abstractmethod
    def load_rows(self, rows: Iterator[tuple[bytes, bytes]]) -> None:
        """Rows as older releases have them in RocksDB, in the order of their keys."""

    def take_changes(self) -> FrozenCold:
        return self.cold.hand_over(self._take())

    def write_out(self) -> None:
        changed = self._take()
        if changed is not None:
            self.cold.write_ahead(changed)

    def row_count(self) -> int:
        return self.cold.row_count()

    def close(self) -> None:
        self.cold.close()


class CellTable(ColdTable):
    """Keys that have one row each."""

    declaration: StoredValue

    @property
    def is_numeric(self) -> bool:
        """Whether cells are a column of numbers."""
        return self.declaration.ttl is None and self.declaration.value_type.numpy is not None

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        assert self.declaration.value_type.numpy is not None
        return self.declaration.value_type.numpy.newbyteorder("<")

    @abstractmethod
    def value_from(self, cell: Any) -> Any:
        """As user code would see it."""

    def entries(self) -> Iterator[tuple[Any, Any]]:
        self.write_out()  # which `rows` settles
        return ((key, self.value_from(cell)) for key, cell in self.cold.rows())

    def live_keys(self, now_ms: int) -> Iterator[Any]:
        self.write_out()
        expires = self.declaration.ttl is not None
        return (
            key
            for key, cell in self.cold.rows()
            if not is_namespaced(key) and (not expires or expiry_of(cell) > now_ms)
        )

    def load_rows(self, rows: Iterator[tuple[bytes, bytes]]) -> None:
        while piece := list(islice(rows, PIECE_ROWS)):
            keys = [self.addresses.table_key(address) for address, _ in piece]
            cells: Any = [cell for _, cell in piece]
            if self.is_numeric:
                cells = np.frombuffer(b"".join(cells), dtype=self.dtype)
            else:
                cells = pa.array(cells, pa.large_binary())
            self.load_cells(keys, cells)

    def load_cells(self, keys: Any, cells: Column) -> None:
        if len(keys):
            present = np.ones(len(keys), dtype=np.bool_)
            self.cold.write(Changed(lambda: (self.cold.keys(keys), cells, present), len(keys)))
