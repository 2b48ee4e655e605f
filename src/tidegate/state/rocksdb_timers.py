"""Timers in RocksDB: rows in order of time, and the first few of each key group in memory. Executor; the task's thread, but for
what a snapshot has taken over (state/rocksdb_cache.py).

    row    key group (2 bytes) + moment (8 bytes) + key + namespace -> the moment, as the cell of an int

Rows of one key group lie together, as those of every state do, so a rescale finds them; in a group they are in order of time.
So the next timer of all is the least of the groups' first ones. Of each group those up to a point, its `reach`, are in memory:

    group 3    [ near: 10:00  10:02  10:05 ] reach [ rows and unwritten changes: 10:07 ... ]

    set, delete    a change to write; and in `near`, where it is within reach
    first          where `near` of a group is empty and there is more beyond its reach, the next few are read

Setting and deleting read nothing. Rows that were deleted lie before the reach, so no scan walks over what they have left.

Invariant 1. `near` holds all timers of its group that are within reach, and no other.
Invariant 2. `near` has at most `MAX_NEAR` timers: what is more goes out of reach.
Invariant 3. `_heads` has an entry for every group that may have timers: its first one, or one that is not later, from which
             the first is found. Entries that are out of date are passed over, and are never the most.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.state.key_codec import decode_key, decode_prefix, encode_key
from tidegate.state.namespaces import in_namespace, parts_of_table_key
from tidegate.state.rocksdb_cache import ENTRY_BYTES, Table
from tidegate.state.rocksdb_keys import EMPTY_NAMESPACE, GROUP_BYTES, end_of, group_of, group_prefix
from tidegate.state.rocksdb_rows import cells_of
from tidegate.state.timers import (
    MOMENT_BYTES,
    Timer,
    TimerTable,
    filed_namespace,
    moment_bytes,
    timer_filed_under,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.rocksdb_cache import TableContext
    from tidegate.state.rocksdb_store import Family
    from tidegate.state.sections import SectionReader
    from tidegate.state.timers import TimerState

READ_AT_ONCE = 128  #: timers of a group
MAX_NEAR = 4 * READ_AT_ONCE
WRITTEN_AT_ONCE = 4096  #: timers, about ten milliseconds
_FEW_HEADS = 64
_KEY_AT = GROUP_BYTES + MOMENT_BYTES  #: where the key begins in a row's key

Groups = dict[int, dict[bytes, bytes | None]]  #: key group -> row's key -> its cell, None: deleted


class TimerChanges:
    """What was taken to be written."""

    def __init__(self, table: RocksTimers, groups: Groups) -> None:
        self._table = table
        self._groups = groups

    def settle(self) -> None:
        """Under the store's lock, in any thread."""
        self._table.family.write([row for rows in self._groups.values() for row in rows.items()])
        self._table.handed_over = {}


class _Group:
    """What is in memory of one key group's timers."""

    __slots__ = ("near", "reach")

    def __init__(self, reach: bytes | None) -> None:
        self.near: list[bytes] = []  #: row keys, sorted
        self.reach = reach  #: those before it are near; None: all are

    def is_within(self, row_key: bytes) -> bool:
        return self.reach is None or row_key < self.reach

    def head(self) -> bytes | None:
        """Without the group: the first timer, or where to look for it; None when there is none."""
        first = self.near[0] if self.near else self.reach
        return None if first is None else first[GROUP_BYTES:]

    def trim(self) -> None:
        if len(self.near) > MAX_NEAR:
            self.reach = self.near[READ_AT_ONCE]
            del self.near[READ_AT_ONCE:]


class RocksTimers(Table, TimerTable):
    """Timers of one kind."""

    family: Family

    def __init__(self, declaration: TimerState, context: TableContext) -> None:
        super().__init__(declaration, context)
        #: Changes that were taken and may not be written yet. They may be at any time, in the snapshot's thread: a read takes
        #: the dictionary once, and before the rows.
        self.handed_over: Groups = {}
        self._cells = cells_of(declaration.value_type)
        self._groups: dict[int, _Group] = {}  #: those that were looked at; of the others nothing is known
        self._heads: list[tuple[bytes, int]] = []  #: a heap: moment, key and namespace of a first timer, its group
        self._dirty: Groups = {}
        self._dirty_bytes = 0
        self._dirty_limit_bytes = 0
        self._looked = False  #: at every group, once
        self.resize()

    def resize(self) -> None:
        self._dirty_limit_bytes = self.share().unwritten_bytes

    def rebind(self) -> None:
        self.family = self.store.family(self.declaration)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._groups, self._heads, self._looked = {}, [], False

    # -- setting and deleting --------------------------------------------------------------------------------------

    def set_timer(self, timer: Timer) -> None:
        row_key = self._row_key(timer)
        number = group_of(row_key)
        self._change(number, row_key, self._cells.to_cell(timer.timestamp))
        group = self._groups.get(number)
        if group is None and self._looked:  # there was nothing of this group
            group = self._groups[number] = _Group(None)
        if group is not None and group.is_within(row_key):
            near = group.near
            if not near or row_key < near[0]:
                near.insert(0, row_key)
                self._push_head(number, group)
            elif not _holds(near, row_key):
                insort(near, row_key)
            group.trim()
        self._bound()

    def delete_timer(self, timer: Timer) -> None:
        row_key = self._row_key(timer)
        number = group_of(row_key)
        self._change(number, row_key, None)
        group = self._groups.get(number)
        if group is not None and group.near and group.is_within(row_key):
            near = group.near
            was_first = near[0] == row_key
            if was_first:
                del near[0]
                self._push_head(number, group)
            elif _holds(near, row_key):
                near.remove(row_key)
        self._bound()

    def has_timer(self, timer: Timer) -> bool:
        row_key = self._row_key(timer)
        number = group_of(row_key)
        for changes in (self._dirty, self.handed_over):
            rows = changes.get(number, {})
            if row_key in rows:
                return rows[row_key] is not None
        return self.family.get(row_key) is not None

    def _change(self, group: int, row_key: bytes, cell: bytes | None) -> None:
        rows = self._dirty.get(group)
        if rows is None:
            rows = self._dirty[group] = {}
        rows[row_key] = cell
        self._dirty_bytes += ENTRY_BYTES

    def _bound(self) -> None:
        """Last of all: when the disk refuses what is too much, `near` has the change too."""
        if self._dirty_bytes > min(self._dirty_limit_bytes, WRITTEN_AT_ONCE * ENTRY_BYTES) and (
            self.store.is_settled or self._dirty_bytes > self._dirty_limit_bytes
        ):
            self._write_some()

    def _write_some(self) -> None:
        """Ahead of need, and so few that no record waits long: the others when more timers are set. While a snapshot is not
        written, which would have to be done first, only when there is no room."""
        with self.store.lock:
            self.store.settle()
            all_rows = (row for rows in self._dirty.values() for row in rows.items())
            written = list(islice(all_rows, WRITTEN_AT_ONCE))
            self.family.write(written)
        for row_key, _ in written:
            rows = self._dirty[group_of(row_key)]
            del rows[row_key]
            if not rows:
                del self._dirty[group_of(row_key)]
        self._dirty_bytes = max(self._dirty_bytes - len(written) * ENTRY_BYTES, 0) if self._dirty else 0

    # -- finding the first -----------------------------------------------------------------------------------------

    def first_timer(self) -> Timer | None:
        if not self._looked:
            self._look_at_all()
        heads, groups = self._heads, self._groups
        while heads:
            head, number = heads[0]
            group = groups[number]
            if group.near and group.near[0][GROUP_BYTES:] == head:
                return self._timer(group.near[0])
            heapq.heappop(heads)
            if not group.near and group.reach is not None:
                self._read(number, group)
        return None

    def _push_head(self, number: int, group: _Group) -> None:
        head = group.head()
        if head is None:
            return
        heapq.heappush(self._heads, (head, number))
        if len(self._heads) > 2 * len(self._groups) + _FEW_HEADS:
            self._heads = [(head, at) for at, other in self._groups.items() if (head := other.head()) is not None]
            heapq.heapify(self._heads)

    def _look_at_all(self) -> None:
        """The first few of each group that has any."""
        own = self.addresses.own
        found = {number for changes in (self._dirty, self.handed_over) for number in changes}
        stop = group_prefix(own.stop)
        at = group_prefix(own.start)
        while self.family.holds_rows and (row := next(self.family.scan_between(at, stop), None)) is not None:
            number = group_of(row[0])
            found.add(number)
            at = group_prefix(number + 1)
        for number in found:
            group = self._groups[number] = _Group(group_prefix(number))
            self._read(number, group)
        self._looked = True

    def _read(self, number: int, group: _Group) -> None:
        """The next few beyond the reach come near."""
        assert group.reach is not None
        reach = group.reach
        # Looked at before the rows are: what is not in it any more is in the rows.
        changed = {
            row_key: cell
            for changes in (self.handed_over, self._dirty)
            for row_key, cell in changes.get(number, {}).items()
            if row_key >= reach
        }
        stored: list[bytes] = []
        more = False
        for row_key, _ in (
            self.family.scan_between(reach, end_of(group_prefix(number))) if self.family.holds_rows else ()
        ):
            if len(stored) == READ_AT_ONCE:
                more = True
                break
            if row_key not in changed:
                stored.append(row_key)
        group.reach = stored[-1] + b"\x00" if more else None
        added = [row_key for row_key, cell in changed.items() if cell is not None and group.is_within(row_key)]
        group.near = sorted([*stored, *added])
        group.trim()
        self._push_head(number, group)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _row_key(self, timer: Timer) -> bytes:
        address = self.address(timer.key)  # group, key, empty namespace
        namespace = encode_key(timer.namespace) if timer.namespace else EMPTY_NAMESPACE
        moment = moment_bytes(timer.timestamp)
        return address[:GROUP_BYTES] + moment + address[GROUP_BYTES:-1] + namespace

    def _timer(self, row_key: bytes) -> Timer:
        key, filed = timer_parts(row_key)
        return timer_filed_under(self.addresses.key_type.normalise(decode_key(key)), filed)

    def take_changes(self) -> TimerChanges:
        self.resize()
        taken, self._dirty, self._dirty_bytes = self._dirty, {}, 0
        self.handed_over = taken
        return TimerChanges(self, taken)

    def write_out(self) -> None:
        with self.store.lock:
            self.store.settle()
            self.take_changes().settle()

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        timers = [timer_filed_under(*parts_of_table_key(filed)) for filed in reader.keys(rows)]
        cells = map(self._cells.to_cell, reader.values(rows))
        with self.store.lock:
            self.family.write(list(zip(map(self._row_key, timers), cells, strict=True)))
        self._begin_anew()

    def entries(self) -> Iterator[tuple[Any, Any]]:
        self.write_out()
        own = self.addresses.own
        for row_key, _ in self.family.scan_between(group_prefix(own.start), group_prefix(own.stop)):
            timer = self._timer(row_key)
            yield in_namespace(timer.key, filed_namespace(timer)), timer.timestamp

    def row_count(self) -> int:
        return self.family.rows.property_int_value("rocksdb.estimate-num-keys") or 0

    def live_keys(self, now_ms: int) -> Iterator[Any]:
        raise NotImplementedError("timers are not asked for by their key")


def timer_parts(row_key: bytes) -> tuple[bytes, bytes]:
    """The canonical bytes of the key, and the namespace that the timer is filed under (state/timers.py)."""
    _, end = decode_prefix(row_key, _KEY_AT)
    namespace = b"" if row_key.startswith(EMPTY_NAMESPACE, end) else decode_prefix(row_key, end)[0]
    return row_key[_KEY_AT:end], row_key[GROUP_BYTES:_KEY_AT] + namespace


def _holds(near: list[bytes], row_key: bytes) -> bool:
    at = bisect_left(near, row_key)
    return at < len(near) and near[at] == row_key
