"""What a state's values are in beyond memory: runs on the local disk (state/runs.py). Executor.

Written and read by the task's thread; what a snapshot has taken over is written by the snapshot's thread, or by whoever comes
first. What is written because memory is full is written ahead of need, in a thread of its own, and runs are merged in another:
neither a record nor a barrier waits for it, unless the next lot is full before this one is written.

    hand_over     the changes of a snapshot: a run to be, newer than all runs     pending
    write_ahead   the same, of a table that has half of what it may have
    settle        they are sorted and written, the oldest first                   a run, the newest
    merge         neighbours in age become one run; the oldest one forgets what is gone

Invariant 1. A snapshot is the runs of its moment and what was pending. Runs never change, so nothing that is written, merged
             or deleted afterwards can alter it.
Invariant 2. What is pending is written in the order in which it was handed over, and becomes runs and is pending no more in one
             step: who looks at what is pending first, and at the runs then, misses nothing.
Invariant 3. The error of a thread is raised by the next read or write, in the task's thread. Until then nothing is lost: runs
             are replaced only by a merged one that is complete, and what could not be written stays pending.

Int keys in the empty namespace, the usual ones, have runs of their own (a tier), in which a key is a number; all others are
bytes there. Runs are merged as soon as there are many of about one size (as RocksDB's universal compaction does it): a key is
rewritten O(log n) times, and a large run only when the newer ones are together as large. When more
than MAX_WAITING are to be merged, a write waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.errors import StorageError
from tidegate.state.key_hash import hash_int64s
from tidegate.state.namespaces import split_namespaces
from tidegate.state.runs import (
    MAX_ORDER,
    Column,
    Columns,
    Loaded,
    Part,
    Run,
    StoredPart,
    find_in,
    listed,
    merged,
    order_of,
    take,
    together,
)

if TYPE_CHECKING:
    from tidegate.state.rocksdb_keys import Addresses

    Array = np.ndarray[Any, np.dtype[Any]]

MAX_RUNS = 6  #: of one tier, before some are merged
MAX_WAITING = 64  #: runs of one tier; then a write waits for the merge, so reads never have to look through more
AT_ONCE_ROWS = 16_384  #: so few are written and merged where they are: a thread would take longer to start
INTS, OTHERS = "ints", "others"


class Keys:
    """Some keys, in the one or two forms in which tiers know them."""

    def __init__(self, keys: list[Any] | Array, addresses: Addresses, state: str) -> None:
        #: (tier, places in `keys`, hashes, identities)
        self.forms: list[tuple[str, Array, Array, Column]] = []
        if isinstance(keys, np.ndarray):
            self._add_ints(np.arange(len(keys)), keys, addresses, state)
            return
        are_ints = [key.__class__ is int and -(1 << 63) <= key < 1 << 63 for key in keys]
        if all(are_ints):
            self._add_ints(np.arange(len(keys)), np.array(keys, dtype=np.int64), addresses, state)
            return
        is_int = np.array(are_ints, dtype=np.bool_)
        ints = np.flatnonzero(is_int)
        if len(ints):
            numbers = np.array([keys[at] for at in ints.tolist()], dtype=np.int64)
            self._add_ints(ints, numbers, addresses, state)
        places = np.flatnonzero(~is_int)
        others = [keys[at] for at in places.tolist()]
        bare, namespaces = split_namespaces(others)
        hashes = addresses.key_type.hash_many(bare)
        identities = pa.array(addresses.of_many(others, state), pa.large_binary())
        self.forms.append((OTHERS, places, order_of(hashes, namespaces), identities))

    def _add_ints(self, places: Array, numbers: Array, addresses: Addresses, state: str) -> None:
        hashes = hash_int64s(np.ascontiguousarray(numbers))
        addresses.own_groups(hashes, numbers, state)
        self.forms.append((INTS, places, hashes, numbers))


class Changed:
    """Rows that are to become a run. Made in the task's thread, sorted wherever they are first needed."""

    def __init__(
        self, make: Callable[[], tuple[Keys, Column, Array]], rows: int, known: Mapping[Any, Any] = {}
    ) -> None:
        """`make` gives keys, cells, and which of them are present. It is called once, in any thread: it must give what was
        handed over, whatever has happened since.

        :param rows: about how many they are.
        :param known: what they say, by table key and as the table keeps it, for its reads.
        """
        self._make = make
        self._lock = threading.Lock()
        self._columns: dict[str, Columns] | None = None
        self.rows = rows
        self.known = known
        self.runs: dict[str, Run] = {}  #: what of it is written

    def columns(self) -> dict[str, Columns]:
        """By tier, in the order of their hashes. Each key at most once."""
        with self._lock:
            if self._columns is None:
                keys, cells, present = self._make()
                self._columns = {
                    tier: Columns(order, identity, take(cells, places), present[places]).sorted()
                    for tier, places, order, identity in keys.forms
                    if len(order)
                }
                del self._make
            return self._columns

    def written(self, tier: str, part: Part) -> None:
        self.columns()[tier] = part.columns  # those in memory are not needed any more
        self.runs[tier] = Run([part])


class Stretch(NamedTuple):
    """Some rows of a tier that are neighbours."""

    newest: Columns | None  #: what is there
    rows: int  #: that were looked at, older ones and those of keys that are gone too
    go_on: int | None  #: the hash after them; None: that was all


class Tier:
    """The runs of one form of keys, newest first."""

    def __init__(self, cold: Cold) -> None:
        self.runs: tuple[Run, ...] = ()  #: replaced as a whole, under the lock of `Cold`
        self._cold = cold
        self._thread: threading.Thread | None = None
        self._stopped = False
        self.merged_rows = 0

    def merge_some(self) -> None:
        """There is a new run."""
        if self._thread is not None and self._thread.is_alive() and len(self.runs) > MAX_WAITING:
            self._thread.join()
        if self._thread is not None and self._thread.is_alive():
            return  # it looks again when it is done; two merges at a time could take the same run
        due = self._due()
        if sum(run.rows for run in due) <= AT_ONCE_ROWS:
            self._merge(due)
        else:
            self._thread = threading.Thread(target=self._merge_all, name="tidegate-merge", daemon=True)
            self._thread.start()

    def append(self, runs: Iterable[Run]) -> None:
        """Of other keys than those that are here."""
        with self._cold.lock:
            self.runs = (*self.runs, *runs)

    def _due(self) -> tuple[Run, ...]:
        """Neighbours that are to become one: as many as are no larger than all newer ones of them together."""
        runs = self.runs
        if len(runs) <= MAX_RUNS:
            return ()
        if sum(run.rows for run in runs[:-1]) >= runs[-1].rows:
            return runs
        for start in range(len(runs) - 1):
            total, stop = runs[start].rows, start + 1
            while stop < len(runs) and runs[stop].rows <= 1.1 * total:
                total += runs[stop].rows
                stop += 1
            if stop - start >= 2:
                return runs[start:stop]
        return runs[: len(runs) - MAX_RUNS + 1]

    def _merge_all(self) -> None:
        while not self._stopped and self._cold.failed is None and (due := self._due()):
            try:
                self._merge(due)
            except Exception as error:  # invariant 3
                self._cold.failed = error

    def _merge(self, due: Sequence[Run]) -> None:
        if not due:
            return
        is_oldest = due[-1] is self.runs[-1]
        parts = []
        with self._cold.local_disk():
            for run in due:
                for part in run.parts:
                    part.check()
            for columns in merged(due, forget_absent=is_oldest, part_bytes=self._cold.part_bytes):
                if self._stopped:
                    return
                parts.append(Part.write(self._cold.folder, columns))
        self.merged_rows += sum(run.rows for run in due)
        with self._cold.lock:
            at = self.runs.index(due[0])
            self.runs = (*self.runs[:at], *([Run(parts)] if parts else []), *self.runs[at + len(due) :])

    def wait(self) -> None:
        """Until nothing is being merged."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        self._stopped = True
        self.wait()
        self.runs = ()


class Cold:
    """One state's values on the local disk."""

    def __init__(self, folder: Path, addresses: Addresses, state: str, part_bytes: int) -> None:
        self.folder = folder
        self.part_bytes = part_bytes
        self.failed: Exception | None = None
        self._addresses = addresses
        self._state = state
        self.tiers = {INTS: Tier(self), OTHERS: Tier(self)}
        self.pending: tuple[Changed, ...] = ()  #: newest first; replaced as a whole, under the lock
        self.lock = threading.Lock()  #: of `pending` and of the runs
        self._writing = threading.Lock()  #: what is pending is written by one thread at a time
        self._writer: threading.Thread | None = None

    def keys(self, keys: list[Any] | Array) -> Keys:
        return Keys(keys, self._addresses, self._state)

    @property
    def is_empty(self) -> bool:
        return not self.pending and not any(tier.runs for tier in self.tiers.values())

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, keys: list[Any] | Array, *, with_pending: bool = True) -> Iterator[tuple[Array, Column]]:
        """Places in `keys`, and the cells of what is there; what is not here, or gone, is not named."""
        self._raise_failed()
        if self.is_empty:
            return
        for name, places, order, identity in self.keys(keys).forms:
            pending = self.pending if with_pending else ()  # before the runs: in between it may become some
            newest = [rows for changed in pending if (rows := changed.columns().get(name)) is not None]
            runs = (*(Run([Loaded(rows)]) for rows in newest), *self.tiers[name].runs)
            for columns, sought, at in find_in(runs, order, identity):
                there = np.take(columns.present, at)
                if not there.all():
                    sought, at = sought[there], at[there]
                if len(at):
                    yield places[sought], take(columns.cell, at)

    def get(self, key: Any) -> Any:
        """The cell of one key, which is not pending; None when it is not here, or gone."""
        self._raise_failed()
        if self.is_empty:
            return None
        ((tier, _, order, identities),) = Keys([key], self._addresses, self._state).forms
        identity = listed(identities)[0]
        for run in self.tiers[tier].runs:
            met = run.find_one(int(order[0]), identity)
            if met is not None:
                columns, at = met
                return listed(columns.cell[at : at + 1])[0] if columns.present[at] else None
        return None

    # -- writing ---------------------------------------------------------------------------------------------------

    def hand_over(self, changed: Changed | None) -> FrozenCold:
        """A snapshot: the changes are written when somebody settles it. At once; None: nothing has changed."""
        if changed is not None:
            self._add(changed)
        return FrozenCold(self)

    def write_ahead(self, changed: Changed) -> None:
        """Write it in another thread, once what was handed over before is written.

        :raises StorageError: when the disk has refused that.
        """
        self.settle()
        self._add(changed)
        if changed.rows <= AT_ONCE_ROWS:
            self.settle()
        else:
            self._writer = threading.Thread(target=self._settle_in_thread, name="tidegate-write", daemon=True)
            self._writer.start()

    def _settle_in_thread(self) -> None:
        try:
            self.settle()
        except Exception as error:  # invariant 3
            self.failed = error

    def write(self, changed: Changed) -> None:
        """:raises StorageError: when the disk refuses it."""
        self._add(changed)
        self.settle()

    def _add(self, changed: Changed) -> None:
        with self.lock:
            self.pending = (changed, *self.pending)

    def settle(self, changed: Changed | None = None) -> None:
        """What is pending (or only this and what is older) is in runs when this returns. When it fails, it stays, and fails
        again."""
        if not self.pending:
            return
        with self._writing:
            while self.pending and (changed is None or changed in self.pending):
                self._write(self.pending[-1])

    def _write(self, changed: Changed) -> None:
        self._raise_failed()
        for name, columns in list(changed.columns().items()):
            if name not in changed.runs:
                with self.local_disk():
                    part = Part.write(self.folder, columns)
                changed.written(name, part)
        with self.lock:  # invariant 2
            for name, run in changed.runs.items():
                self.tiers[name].runs = (run, *self.tiers[name].runs)
            self.pending = self.pending[:-1]
        for name in changed.runs:
            self.tiers[name].merge_some()

    def _raise_failed(self) -> None:
        if self.failed is not None:
            raise self.failed

    @contextmanager
    def local_disk(self) -> Iterator[None]:
        """:raises StorageError: for whatever the disk says."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise StorageError(
                f"RocksDB cannot write to its folder {self.folder}: {error}, for state {self._state!r}. Free some space on "
                'that disk, or give another folder: env.state_backend("rocksdb", folder=...).',
                path=str(self.folder),
                reason="local disk",
                state=self._state,
            ) from error

    # -- all of it -------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Any, Any]]:
        """Every table key with its cell, as they are now."""
        self.settle()
        for name, runs in [(name, tier.runs) for name, tier in self.tiers.items()]:
            for columns in merged(runs, forget_absent=True, part_bytes=self.part_bytes):
                yield from zip(self.table_keys(name, columns.identity), listed(columns.cell), strict=True)

    def table_keys(self, tier: str, identities: Column) -> Iterable[Any]:
        if tier == INTS:
            return identities.tolist()  # type: ignore[no-any-return]
        return map(self._addresses.table_key, identities.to_pylist())

    def stretch(self, tier: str, first: int, rows: int) -> Stretch:
        """What is in runs from a hash on, about so many rows of them."""
        runs = self.tiers[tier].runs
        last = min((run.end_of(first, max(1, rows // len(runs))) for run in runs), default=MAX_ORDER)
        pieces = [columns for run in runs for columns in run.pieces(first, last)]
        newest = together(pieces, forget_absent=True) if pieces else None
        return Stretch(newest, sum(map(len, pieces)), None if last == MAX_ORDER else last + 1)

    def adopt(self, runs: dict[str, list[Run]]) -> None:
        """Runs of other keys than those that are here."""
        for name, of_tier in runs.items():
            self.tiers[name].append(of_tier)

    def row_count(self) -> int:
        """An estimate: a key may be in several runs."""
        return sum(run.rows for tier in self.tiers.values() for run in tier.runs)

    def metrics(self) -> dict[str, int]:
        """In the words of RocksDB's own, to which they are added. Any thread."""
        runs = [run for tier in self.tiers.values() for run in tier.runs]
        return {
            "rocksdb.estimate-num-keys": sum(run.rows for run in runs),
            "rocksdb.live-sst-files-size": sum(part.columns.size_bytes for run in runs for part in run.parts),
            "rocksdb.num-files-at-level0": sum(
                len(run.parts) for run in runs if run.rows < max(run.rows for run in runs)
            ),
        }

    def close(self) -> None:
        """Once or more."""
        with self.lock:
            self.pending = ()
        if self._writer is not None:
            self._writer.join()
        for tier in self.tiers.values():
            tier.close()


class FrozenCold:
    """The values at one moment. Read by the snapshot's thread."""

    def __init__(self, cold: Cold) -> None:
        self._cold = cold
        with cold.lock:
            self._pending = cold.pending
            self._older = {name: tier.runs for name, tier in cold.tiers.items()}

    def settle(self) -> None:
        if self._pending:
            self._cold.settle(self._pending[0])

    def link(self, folder: Path) -> dict[str, list[list[StoredPart]]]:
        """Every part as a link in the folder, once it is settled; each tier's runs, newest first."""
        linked: dict[str, list[list[StoredPart]]] = {}
        for name, older in self._older.items():
            newer = [changed.runs[name] for changed in self._pending if name in changed.runs]
            runs = (*newer, *older)
            with self._cold.local_disk():
                linked[name] = [[part.link(folder) for part in run.parts] for run in runs]
        return linked
