"""The RocksDB backend: keyed state that may be larger than memory, on the local disk of the worker. Executor.

For an operator's subtask:

    values, lists, maps    sorted runs, files of this backend's own (state/cold.py)
    timers                 one database of RocksDB, a column family for each kind

What is in use is in memory as on the heap, bounded (state/hot_table.py); the rest is there. The folder is this process's
own and is gone when the backend is closed: what counts is in checkpoints.

A snapshot is a checkpoint of RocksDB and of the runs: hard links to files that never change. It can be read in two ways:

    sections   all rows in the format of every backend: full checkpoints, savepoints, restores into another backend
    files      the tables themselves: incremental checkpoints (task/incremental.py), of which only new ones are stored

Taking one hands over what was changed since the last, which is quick; writing it, and making the links, is done by the
snapshot's thread (state/rocksdb_store.py).
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tidegate.errors import ProtocolViolation
from tidegate.state.backend import KeyedSnapshot, LocalFile, Section, StoredFolder
from tidegate.state.cold import Cold, FrozenCold
from tidegate.state.cold_table import ColdTable
from tidegate.state.declarations import Declaration, StoredList, StoredMap, StoredValue, ValueState
from tidegate.state.hot_table import HotTable
from tidegate.state.key_groups import overlap
from tidegate.state.rocksdb_cache import Table, TableContext
from tidegate.state.rocksdb_columns import ColdColumns, ColdColumnValue
from tidegate.state.rocksdb_files import StateFolder, checkpoint_files, sweep
from tidegate.state.rocksdb_keys import Addresses, group_prefix
from tidegate.state.rocksdb_lists import RocksLists
from tidegate.state.rocksdb_maps import RocksMaps
from tidegate.state.rocksdb_options import RocksMemory, RocksSettings, database_options
from tidegate.state.rocksdb_rows import MapKeys, cells_of
from tidegate.state.rocksdb_sections import stored_sections
from tidegate.state.rocksdb_store import Family, RocksStore, RowFormat, StoredStates, local_disk, row_format
from tidegate.state.rocksdb_timers import RocksTimers
from tidegate.state.rocksdb_values import ColdValues, HotInt, rocks_intake
from tidegate.state.run_files import RunsOf, runs_of, taken_over
from tidegate.state.runs import RUN_SUFFIX
from tidegate.state.table_backend import TableBackend

if TYPE_CHECKING:
    from rocksdict import Options

    from tidegate.state.fitting import Intake
    from tidegate.state.handles import Handle
    from tidegate.state.keys import KeyType
    from tidegate.state.timers import TimerState
    from tidegate.types import DataType

_COPY_ROWS = 16_384
ColdT = TypeVar("ColdT", bound=ColdTable)


class RocksStateBackend(TableBackend[Table]):
    """Keyed state of one operator in one subtask, in RocksDB."""

    file_format = "rocksdb"

    def __init__(
        self,
        key_type: KeyType,
        key_groups: range,
        max_parallelism: int,
        settings: RocksSettings | None = None,
        memory: RocksMemory | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`memory` is shared by all backends of a slot; without one this backend has all that `settings` allow.

        :raises StorageError: when no local folder can be made.
        """
        super().__init__(key_type, key_groups, max_parallelism, wall_clock)
        self.settings = settings or RocksSettings()
        self._memory = memory or RocksMemory(self.settings)
        self._memory.join(self)
        sweep(self.settings.folder)  # what killed processes have left
        self._folder = StateFolder(self.settings.folder)
        self._addresses = Addresses(key_type, key_groups, max_parallelism)
        self._store = RocksStore(self._folder.new("db"), self._options)
        self._context = TableContext(self._store, self._addresses, self._memory.share)
        self._runs_folder = self._folder.new("runs")
        self._runs_folder.mkdir()

    def _options(self) -> Options:
        return database_options(self.settings, self._memory)

    # -- the contract ----------------------------------------------------------------------------------------------

    def bind(self, declaration: Declaration, columnar: bool = False) -> Handle:
        if declaration.name not in self._states:
            self._memory.states += 1
            super().bind(declaration, columnar)
            self._memory.resize()
        return super().bind(declaration, columnar)

    def _intake(self, declaration: Declaration, data_type: DataType) -> Intake:
        return rocks_intake(declaration, cells_of(data_type))

    def _intake_of_map_keys(self, declaration: StoredMap) -> Intake:
        return rocks_intake(declaration, MapKeys(declaration.key_type))

    def _new_plain_value(self, declaration: StoredValue, columnar: bool) -> tuple[Table, Handle]:
        if columnar and isinstance(declaration, ValueState) and declaration.value_type.numpy is not None:
            columns = self._with_runs(ColdColumns, declaration)
            return columns, ColdColumnValue(declaration, columns, self._current)
        if declaration.value_type.name == "int":
            values = self._new_values(declaration)
            intake = self._intake(declaration, declaration.value_type)
            return values, HotInt(declaration, values, self._current, self.key_type, intake)
        return super()._new_plain_value(declaration, columnar)

    def _with_runs(self, table_class: type[ColdT], declaration: Any) -> ColdT:
        table = table_class(declaration, self._context)
        part_bytes = min(
            self.settings.table_bytes, max(self.settings.memory_bytes // 32, 64 * 1024)
        )  # a merge has some
        table.cold = Cold(self._runs_folder, self._addresses, declaration.name, part_bytes, table.tiers)
        return table

    def _new_values(self, declaration: StoredValue) -> ColdValues:
        return self._with_runs(ColdValues, declaration)

    def _new_lists(self, declaration: StoredList) -> RocksLists:
        return self._with_runs(RocksLists, declaration)

    def _new_maps(self, declaration: StoredMap) -> RocksMaps:
        return self._with_runs(RocksMaps, declaration)

    def _new_timers(self, declaration: TimerState) -> tuple[Table, Handle]:
        timers = RocksTimers(declaration, self._context)
        return timers, timers

    def resize(self) -> None:
        """The share of memory has changed."""
        for _, table, _ in self._states.values():
            table.resize()

    def set_current_key(self, key: Hashable) -> None:
        self._current.key = key

    def expect(self, keys: list[Hashable]) -> None:
        for _, table, _ in self._states.values():
            if isinstance(table, HotTable):
                table.expect(keys)

    def snapshot(self) -> RocksSnapshot:
        self._store.settle()
        formats = [row_format(declaration) for declaration, _, _ in self._states.values()]
        changes = [(table, table.take_changes()) for _, table, _ in self._states.values()]
        snapshot = RocksSnapshot(
            self._store,
            changes,
            formats,
            self.key_groups,
            self.max_parallelism,
            self._folder.new("chk"),
            self._options,
            self._now_ms(),
        )
        self._store.hand_over(snapshot.settle)
        return snapshot

    def clean_up(self, budget_entries: int) -> int:
        """Rows that are written, of which those of a list may have several elements."""
        removed, now = 0, self._now_ms()
        for _ in range(len(self._swept)):
            table = self._swept[0]
            assert isinstance(table, HotTable)  # with a TTL there are no columns
            is_round, looked_at, forgotten = table.sweep(budget_entries, now)
            removed += forgotten
            budget_entries -= looked_at
            if is_round:
                self._swept.rotate(-1)
            if budget_entries <= 0:
                break
        return removed

    def state_size(self) -> dict[str, int]:
        """An estimate of the number of rows: elements added together are one, each entry of a map is one."""
        return {name: table.row_count() for name, (_, table, _) in self._states.items()}

    def metrics(self) -> dict[str, float]:
        numbers = self._store.properties()
        for _, table, _ in list(self._states.values()) if numbers else ():
            if isinstance(table, ColdTable):
                for name, number in table.cold.metrics().items():
                    numbers[name] += number
        return numbers

    def close(self) -> None:
        self._memory.leave(self)
        for _, table, _ in self._states.values():
            table.close()
        self._store.close()
        self._folder.close()

    # -- restoring from files --------------------------------------------------------------------------------------

    def fetch_folder(self) -> Path:
        return self._folder.new("fetched")

    def restore_files(self, stored: Sequence[StoredFolder]) -> bool:
        """The files become this database's own when there is one old subtask with the same key groups and nothing was
        declared anew. Else rows are copied: those of our key groups, and where a type has changed they go the way of every
        stored column.
        """
        if len(stored) == 1 and stored[0].key_groups == self.key_groups:
            with StoredStates(stored[0].folder, self._options) as states:
                same = self._check(states)
            if same:
                self._adopt(stored[0].folder)
                return True
        for source in stored:
            with StoredStates(source.folder, self._options) as states:
                self._copy(states, source.key_groups)
        return False

    def _adopt(self, folder: Path) -> None:
        self._store.reopen(folder)
        stored = runs_of(self._store.folder)
        for name, (_, table, _) in self._states.items():
            table.rebind()
            if isinstance(table, ColdTable):
                if stored is not None and name in stored.states:
                    taken_over(self._store.folder, stored, name, self.key_groups, table.cold, keep_names=True)
                else:
                    table.load_rows(self._store.dropped_rows(table.declaration))
        for path in self._store.folder.glob(f"*{RUN_SUFFIX}"):
            path.unlink()

    def _check(self, states: StoredStates) -> bool:
        """Whether all stored rows can be used as they are."""
        same = True
        for written in states.formats.values():
            if not self._knows(written.name) and states.is_empty(written.name):
                same = False  # a state that never held anything is not missed, but its family must not stay
                continue
            declaration, _ = self._declared(written.name, written.kind)
            same = same and written == row_format(declaration)
        return same

    def _knows(self, stored_name: str) -> bool:
        return stored_name in self._states or self._renamed(stored_name) is not None

    def _copy(self, states: StoredStates, old: range) -> None:
        ours = overlap(old, self.key_groups)
        if not ours:
            return
        self._check(states)
        self._store.raise_sequence(states.sequence)
        for written in states.formats.values():
            if not self._knows(written.name):
                continue
            declaration, table = self._declared(written.name, written.kind)
            if msgspec.structs.replace(written, name=declaration.name) == row_format(declaration):
                if isinstance(table, RocksTimers):
                    self._copy_rows(states, written, table.family, ours)
                    continue
                assert isinstance(table, ColdTable)
                if states.runs is not None and written.name in states.runs.states:
                    taken_over(states.folder, states.runs, written.name, ours, table.cold)
                else:
                    table.load_rows(
                        states.rows_between(written.name, group_prefix(ours.start), group_prefix(ours.stop))
                    )
            else:
                for section in stored_sections(states, written, ours):
                    self.restore(section.state, section.kind, [section.rows])

    def _copy_rows(self, states: StoredStates, written: RowFormat, family: Family, ours: range) -> None:
        piece = []
        for row in states.rows_between(written.name, group_prefix(ours.start), group_prefix(ours.stop)):
            piece.append(row)
            if len(piece) >= _COPY_ROWS:
                self._write(family, piece)
                piece = []
        self._write(family, piece)

    def _write(self, family: Family, rows: list[tuple[bytes, bytes]]) -> None:
        with self._store.lock:
            family.write(rows)


def sections_in(stored: StoredFolder, key_groups: range, settings: RocksSettings | None = None) -> Iterator[Section]:
    """What the files hold for these key groups, in the format of every backend: for a job that changes its backend.

    :raises CheckpointDamaged: when the files are not a database.
    """
    settings = settings or RocksSettings()
    memory = RocksMemory(settings)
    wanted = overlap(stored.key_groups, key_groups)
    with StoredStates(stored.folder, lambda: database_options(settings, memory)) as states:
        for written in states.formats.values():
            yield from stored_sections(states, written, wanted)


class RocksSnapshot(KeyedSnapshot):
    """The state at one moment: first the changes that led to it, then a checkpoint of RocksDB.

    Made in the task's thread, read and released in the snapshot's.
    """

    def __init__(
        self,
        store: RocksStore,
        changes: list[tuple[Table, Any]],
        formats: list[RowFormat],
        key_groups: range,
        max_parallelism: int,
        folder: Path,
        options: Callable[[], Options],
        now_ms: int,
    ) -> None:
        self._max_parallelism = max_parallelism
        self._store = store
        self._now_ms = now_ms
        self._changes = changes
        self._formats = formats
        self._key_groups = key_groups
        self._folder = folder
        self._options = options
        self._released = threading.Event()

    def settle(self) -> None:
        """Called by the store, under its lock: write, then make the checkpoint."""
        for _, changes in self._changes:
            changes.settle()
        if not self._released.is_set():
            self._store.checkpoint(self._folder)
            try:
                self._link_runs()
            except BaseException:  # made anew when it is tried again
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
        self._changes = []

    def _link_runs(self) -> None:
        frozen = [
            (table.declaration.name, changes) for table, changes in self._changes if isinstance(changes, FrozenCold)
        ]
        if frozen:
            states = {name: changes.link(self._folder) for name, changes in frozen}
            with local_disk(self._folder):
                RunsOf(self._max_parallelism, states).write(self._folder)

    def sections(self) -> Iterator[Section]:
        self._settled()
        with StoredStates(self._folder, self._options) as states:
            for written in self._formats:
                yield from stored_sections(states, written, self._key_groups, self._now_ms)

    def files(self) -> list[LocalFile]:
        """The files to keep, until `release`. Tables never change under their name."""
        self._settled()
        return checkpoint_files(self._folder)

    def _settled(self) -> None:
        if self._released.is_set():
            raise ProtocolViolation("a released snapshot was read")
        self._store.settle()

    def release(self) -> None:
        self._released.set()
        # Under the lock: a checkpoint that is being made is not pulled from under RocksDB.
        with self._store.lock:
            shutil.rmtree(self._folder, ignore_errors=True)
