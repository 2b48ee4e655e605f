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
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.errors import ProtocolViolation, StorageError
from tidegate.state import tiers
from tidegate.state.cold_keys import INTS, OTHERS, Keys
from tidegate.state.rocksdb_keys import address_in
from tidegate.state.runs import (
    LOWER,
    MAX_ORDER,
    Column,
    Columns,
    Loaded,
    Part,
    Run,
    StoredPart,
    by_upper_half,
    bytes_between,
    find_in,
    listed,
    merged,
    take,
    together,
)
from tidegate.state.tiers import Tier

if TYPE_CHECKING:
    from tidegate.state.rocksdb_keys import Addresses

    Array = np.ndarray[Any, np.dtype[Any]]

FEW_ROWS = 4096  #: of one key, in all runs, are looked at one by one
FEW_ROWS_OF_KEY = 64  #: are worth to be read with those of other keys, before anybody has asked


def _add_older(
    found: dict[bytes, bytes | None], identities: Iterable[bytes], cells: Iterable[bytes], present: Iterable[bool]
) -> None:
    """Rows that are older than those in `found`; None: gone."""
    for identity, cell, there in zip(identities, cells, present, strict=True):
        found.setdefault(identity, cell if there else None)


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
        """By tier, in the order of their hashes. Each row at most once."""
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


class Cold:
    """What one state has on the local disk."""

    def __init__(
        self,
        folder: Path,
        addresses: Addresses,
        state: str,
        part_bytes: int,
        forms: Sequence[str] = (INTS, OTHERS),
    ) -> None:
        self.folder = folder
        self.part_bytes = part_bytes
        self.failed: Exception | None = None
        self._addresses = addresses
        self._state = state
        self.tiers = {name: Tier(self) for name in forms}
        self.pending: tuple[Changed, ...] = ()  #: newest first; replaced as a whole, under the lock
        self.lock = threading.Lock()  #: of `pending` and of the runs
        self._writing = threading.Lock()  #: what is pending is written by one thread at a time
        self._writer: threading.Thread | None = None

    def keys(self, keys: list[Any] | Array) -> Keys:
        return Keys.of_values(keys, self._addresses, self._state)

    def parts_of(self, keys: list[Any], parts: list[list[bytes]]) -> Keys:
        (tier,) = self.tiers
        return Keys.of_parts(tier, keys, parts, self._addresses, self._state)

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
        ((tier, _, order, identities),) = self.keys([key]).forms
        return self._newest(self.tiers[tier].runs, order[0], listed(identities)[0])

    def get_part(self, key: Any, part: bytes) -> Any:
        """The same of one row of a key."""
        self._raise_failed()
        (tier,) = self.tiers.values()
        runs = tier.runs
        if not runs:
            return None
        address, hashed = self._addresses.of_one(key, self._state)
        identity = address + part
        return self._newest(runs, np.uint64(hashed & ~LOWER | zlib.crc32(identity)), identity)

    def _newest(self, runs: Sequence[Run], order: np.uint64, identity: Any) -> Any:
        for run in runs:
            met = run.find_one(order, identity)
            if met is not None:
                columns, at = met
                return listed(columns.cell[at : at + 1])[0] if columns.present[at] else None
        return None

    def parts(self, key: Any) -> Iterator[tuple[bytes, bytes]]:
        """Of one key, what is in runs now: parts and cells, in no order."""
        self._raise_failed()
        (tier,) = self.tiers.values()
        runs = tier.runs
        if not runs:
            return iter(())
        address, hashed = self._addresses.of_one(key, self._state)
        first, last = hashed & ~LOWER, hashed | LOWER
        pieces = [piece for run in runs for piece in run.between(first, last)]
        rows_met = sum(stop - start for _, start, stop in pieces)
        if rows_met <= FEW_ROWS and self._size_of(pieces) <= self.part_bytes:
            found: dict[bytes, bytes | None] = {}
            for columns, start, stop in pieces:
                identities, cells = columns.identity[start:stop].to_pylist(), columns.cell[start:stop].to_pylist()
                _add_older(found, identities, cells, columns.present[start:stop].tolist())
            rows: Iterable[Any] = found.items()
        else:
            of_runs = [some for run in runs if (some := run.pieces(first, last))]
            rows = self._rows_of([Run(list(map(Loaded, of_run))) for of_run in of_runs])
        length = len(address)
        return (
            (identity[length:], cell)
            for identity, cell in rows
            if cell is not None and identity.startswith(address)  # the upper half of its hash may be another key's too
        )

    def _size_of(self, pieces: Sequence[tuple[Columns, int, int]]) -> int:
        return sum(bytes_between(columns.cell, start, stop) for columns, start, stop in pieces)

    def _rows_of(self, runs: Sequence[Run]) -> Iterator[tuple[bytes, bytes]]:
        for columns in merged(runs, forget_absent=True, part_bytes=self.part_bytes):
            yield from zip(columns.identity.to_pylist(), columns.cell.to_pylist(), strict=True)

    def parts_of_some(self, keys: list[Any], max_rows: int, max_bytes: int) -> dict[Any, list[tuple[bytes, bytes]]]:
        """The same of many keys, as far as there are few rows of each and not more of all; those with more are not named."""
        self._raise_failed()
        (tier,) = self.tiers.values()
        hashes, addresses = self._addresses.hashes(keys), self._addresses.of_many(keys, self._state)
        uppers, of_key = np.unique(hashes & ~np.uint64(LOWER), return_inverse=True)
        met = [places for run in tier.runs for places in run.places_of(uppers, uppers | np.uint64(LOWER))]
        counts, sizes = np.zeros(len(uppers), np.int64), np.zeros(len(uppers), np.int64)
        for columns, which, starts, stops in met:
            counts[which] += stops - starts
            sizes[which] += bytes_between(columns.cell, starts, stops)
        few = (counts <= FEW_ROWS_OF_KEY) & (sizes <= max_bytes)
        few &= np.cumsum(np.where(few, counts, 0)) <= max_rows
        few &= np.cumsum(np.where(few, sizes, 0)) <= max_bytes
        found: list[dict[bytes, bytes | None]] = [{} for _ in uppers]
        for columns, which, starts, stops in met:
            wanted = few[which]
            which, starts, lengths = which[wanted], starts[wanted], (stops - starts)[wanted]
            rows = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            some = columns.take(rows)
            owners = np.repeat(which, lengths).tolist()
            for owner, identity, cell, there in zip(
                owners, some.identity.to_pylist(), some.cell.to_pylist(), some.present.tolist(), strict=True
            ):
                found[owner].setdefault(identity, cell if there else None)
        return {
            key: [
                (identity[len(address) :], cell)
                for identity, cell in found[upper].items()
                if cell is not None and identity.startswith(address)
            ]
            for key, address, upper in zip(keys, addresses, of_key.tolist(), strict=True)
            if few[upper]
        }

    # -- writing ---------------------------------------------------------------------------------------------------

    def hand_over(self, changed: Changed | None) -> FrozenCold:
        """A snapshot: the changes are written when somebody settles it. At once; None: nothing has changed."""
        if changed is not None:
            self._add(changed)
        return FrozenCold(self)

    def write_ahead(self, changed: Changed) -> None:
        """Write it in another thread, once what was handed over before is written.

        :raises StorageError: when the disk has refused that. `changed` is pending all the same: the table has it no more.
        """
        try:
            self.settle()
        finally:
            self._add(changed)
        if changed.rows <= tiers.AT_ONCE_ROWS:
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
            self.tiers[name].wait_for_room()

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

    def rows_by_key(self) -> Iterator[tuple[Any, list[tuple[bytes, bytes]]]]:
        """Where keys have several rows: every table key with its parts and their cells, as they are now."""
        self.settle()
        (tier,) = self.tiers.values()
        for rows in by_upper_half(tier.runs, self.part_bytes):
            of_half: dict[bytes, list[tuple[bytes, bytes]]] = {}
            for identity, cell in rows:
                address = address_in(identity)
                of_half.setdefault(address, []).append((identity[len(address) :], cell))
            yield from ((self._addresses.table_key(address), of_key) for address, of_key in of_half.items())

    def split(self, identities: Column) -> Iterator[tuple[Any, bytes]]:
        """Table keys and parts."""
        for identity in identities.to_pylist():
            address = address_in(identity)
            yield self._addresses.table_key(address), identity[len(address) :]

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
        """Once or more. A snapshot that is not settled then never is: without what is pending it would be another."""
        self.failed = self.failed or ProtocolViolation(f"state {self._state!r} was used after it was closed")
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
