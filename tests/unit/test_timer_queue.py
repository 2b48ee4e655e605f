"""The queue of timers against a plain set, on both backends: what fires, in which order, and how much is in memory.

In RocksDB only the first few timers of a key group are in memory; here so few that most of them are not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from rocksdb_kit import AMPLE, NONE, RocksBackends, Room, rocks_backends
from state_kit import MAX_PARALLELISM, backend_for

from tidegate.errors import StorageError, TypeDeclarationError
from tidegate.ids import EVENT_TIMERS
from tidegate.state import rocksdb_timers
from tidegate.state.declarations import ListState
from tidegate.state.heap_timers import FEW_ENTRIES, HeapTimers
from tidegate.state.key_groups import key_group
from tidegate.state.keys import key_type
from tidegate.state.rocksdb_cache import ENTRY_BYTES
from tidegate.state.rocksdb_store import Family
from tidegate.state.rocksdb_timers import RocksTimers
from tidegate.state.section_writer import SectionWriter
from tidegate.state.timers import LONGEST_CHAIN, Timer, TimerQueue

INT = key_type(int)
ANY = key_type(None)
ALL = range(MAX_PARALLELISM)
NAMESPACES = [b"", b"", b"w", b"\x00\xff", b"\xff" * 9]


class World:
    """A queue, and the timers that are set by its model."""

    def __init__(self, rocks: RocksBackends | None, keys: Any = INT) -> None:
        self.rocks = rocks
        self.keys = keys
        self.timers: set[Timer] = set()
        self.unread: list[Any] = []  #: snapshots
        self.restores = 0
        self.begin()

    def begin(self) -> None:
        self.backend: Any = backend_for(self.keys) if self.rocks is None else self.rocks.backend(self.keys)
        self.queue = TimerQueue(self.backend, EVENT_TIMERS)

    @property
    def table(self) -> Any:
        return self.queue._table

    def register(self, key: Any, moment: int, namespace: bytes = b"") -> None:
        self.queue.register(key, moment, namespace)
        self.timers.add(Timer(moment, key, namespace))

    def delete(self, key: Any, moment: int, namespace: bytes = b"") -> None:
        self.queue.delete(key, moment, namespace)
        self.timers.discard(Timer(moment, key, namespace))

    def fire(self, up_to: int) -> None:
        fired = list(self.queue.due(up_to))
        assert [timer.timestamp for timer in fired] == sorted(timer.timestamp for timer in fired)
        assert len(fired) == len(set(fired))
        assert set(fired) == {timer for timer in self.timers if timer.timestamp <= up_to}
        self.timers -= set(fired)

    def check(self) -> None:
        """What the modules promise of what is in memory."""
        assert self.queue.next_timestamp() == min((timer.timestamp for timer in self.timers), default=None)
        table = self.table
        if isinstance(table, HeapTimers):
            assert table.queued <= 3 * len(self.timers) + FEW_ENTRIES
            return
        assert isinstance(table, RocksTimers)
        assert len(table._heads) <= 2 * len(table._groups) + 64
        for group in table._groups.values():
            assert group.near == sorted(set(group.near))
            assert all(map(group.is_within, group.near))
            assert len(group.near) <= rocksdb_timers.MAX_NEAR

    def snapshot(self, dice: random.Random) -> None:
        """Read at once, later, or never."""
        self.unread.append(self.backend.snapshot())
        if dice.randrange(2):
            snapshot = self.unread.pop(dice.randrange(len(self.unread)))
            list(snapshot.sections())
            snapshot.release()

    def restore(self, dice: random.Random) -> None:
        snapshot = self.backend.snapshot()
        self.restores += 1
        if self.rocks is not None and dice.randrange(2):
            stored = self.rocks.fetched(snapshot, f"restored{self.restores}", ALL)
            self.begin()
            assert self.backend.restore_files([stored])
            return
        sections = list(snapshot.sections())
        self.begin()
        for section in sections:
            self.backend.restore(section.state, section.kind, [section.rows])


@pytest.fixture(params=["heap", "rocksdb", "rocksdb on disk"])
def rocks(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocksBackends | None]:
    monkeypatch.setattr(rocksdb_timers, "READ_AT_ONCE", 3)
    monkeypatch.setattr(rocksdb_timers, "MAX_NEAR", 8)
    monkeypatch.setattr(rocksdb_timers, "WRITTEN_AT_ONCE", 20)
    if request.param == "heap":
        yield None
    else:
        with rocks_backends(AMPLE if request.param == "rocksdb" else NONE) as made:
            yield made


@pytest.mark.parametrize("seed", range(6))
def test_all_and_only_the_timers_that_are_set_fire(rocks: RocksBackends | None, seed: int) -> None:
    print("seed:", seed)
    dice = random.Random(seed)
    world, now = World(rocks, dice.choice([INT, ANY])), 0
    keys, span, deleting = dice.choice([1, 5, 200]), dice.choice([3, 50, 5000]), dice.choice([0.1, 0.4, 0.6])
    for step in range(600):
        chance = dice.random()
        if chance < 0.02:
            now += dice.randrange(span)
            world.fire(now)
        elif chance < 0.04:
            world.snapshot(dice)
        elif step % 150 == 149:
            world.restore(dice)
        elif chance < deleting and world.timers:
            timer = dice.choice(sorted(world.timers))
            world.delete(timer.key, timer.timestamp, timer.namespace)
        elif chance < deleting + 0.05:
            world.delete(dice.randrange(keys), now + dice.randrange(span))  # which may not be set
        else:
            world.register(dice.randrange(keys), now - 2 + dice.randrange(span), dice.choice(NAMESPACES))
        world.check()
    world.fire(now + span)
    world.check()
    assert not world.timers


def test_a_timer_of_inactivity_takes_the_memory_of_one_timer(rocks: RocksBackends | None) -> None:
    world = World(rocks)
    world.register(8, 1)  # the next one of all, so that nobody comes by the entries of the others
    world.check()
    for record in range(3000):
        if record:
            world.delete(7, 3_600_000 + record - 1)
        world.register(7, 3_600_000 + record)
    world.check()
    world.fire(10_000_000)


def test_timers_fire_under_their_key_and_namespace(rocks: RocksBackends | None) -> None:
    world = World(rocks)
    log: Any = ListState(str)
    log.name = "log"
    handle = world.backend.bind(log)
    world.backend.set_current_key(1)
    handle.add("of the key")
    world.backend.set_current_namespace(b"w")
    handle.add("of the window")
    world.register(1, 10, b"w")
    world.register(1, 20)

    assert [handle.get() for _ in world.queue.due(20)] == [["of the window"], ["of the key"]]


def test_a_timer_that_is_set_while_others_fire_fires_if_it_is_due(rocks: RocksBackends | None) -> None:
    world = World(rocks)
    world.register(1, 10)
    fired = []
    for timer in world.queue.due(30):
        fired.append(timer.timestamp)
        world.queue.register(2, timer.timestamp + 10)

    assert fired == [10, 20, 30]
    assert world.queue.next_timestamp() == 40


@pytest.mark.parametrize("moment", [2**63, -(2**63) - 1, "soon", 1.5, None])
def test_a_moment_that_cannot_be_stored_is_refused(rocks: RocksBackends | None, moment: Any) -> None:
    world = World(rocks)
    with pytest.raises(TypeDeclarationError, match="_event_time_timers"):
        world.queue.register(1, moment)
    assert world.queue.next_timestamp() is None


def test_the_first_and_the_last_moment_can_be_timers(rocks: RocksBackends | None) -> None:
    world = World(rocks)
    for moment in (2**63 - 1, -(2**63), 0, -1):
        world.register(1, moment)
    assert [timer.timestamp for timer in world.queue.due(2**63 - 1)] == [-(2**63), -1, 0, 2**63 - 1]


def test_at_the_end_of_time_a_chain_of_timers_has_an_end_and_what_is_left_fires_when_time_goes_on(
    rocks: RocksBackends | None,
) -> None:
    world = World(rocks)
    for key in (1, 2):
        world.register(key, 10)
    queue = world.queue

    fired = []
    for moment, key, _ in queue.due_at_the_end():
        fired.append((moment, key))
        queue.register(key, moment + 10)
        if key == 2:  # taken back and set again: the same timer
            queue.delete(key, moment + 10)
            queue.register(key, moment + 10)

    assert sorted(fired) == [(moment, key) for moment in range(10, 10 * LONGEST_CHAIN + 11, 10) for key in (1, 2)]
    following = fired[-1][0] + 10
    assert list(queue.due(following - 1)) == []
    assert set(queue.due(following)) == {Timer(following, 1), Timer(following, 2)}


def test_timers_that_were_set_before_the_end_of_time_fire_whoever_sets_them_again(rocks: RocksBackends | None) -> None:
    world = World(rocks)
    count = 3 * LONGEST_CHAIN
    for moment in range(count):
        world.register(1, moment)
    fired = []
    for timer in world.queue.due_at_the_end():
        fired.append(timer.timestamp)
        if timer.timestamp + 1 < count:
            world.queue.register(1, timer.timestamp + 1)

    assert fired == list(range(count))


def test_what_is_left_at_the_end_of_time_can_be_deleted_then_and_later(rocks: RocksBackends | None) -> None:
    world = World(rocks)
    queue = world.queue
    world.register(1, 10)
    world.register(2, 10)
    world.register(3, 1_000_000)
    for moment, key, _ in queue.due_at_the_end():
        if key == 3:
            queue.delete(1, 10 * LONGEST_CHAIN + 20)  # at the end of its chain, in the middle of the end
        else:
            queue.register(key, moment + 10)

    left = queue.next_timestamp()
    assert left == 10 * LONGEST_CHAIN + 20
    queue.delete(2, left)
    assert list(queue.due(left)) == []


def test_lists_of_timers_as_older_releases_stored_them_become_timers(rocks: RocksBackends | None) -> None:
    old: Any = ListState(int)
    old.name = EVENT_TIMERS
    writer = SectionWriter(old, INT, ALL, MAX_PARALLELISM)
    lists = {key: [key, -key, 2**40 + key] for key in range(50)}
    writer.add_lists(list(lists), list(lists.values()))
    world = World(rocks)
    for section in writer.finish():
        world.backend.restore(section.state, section.kind, [section.rows])

    world.timers = {Timer(moment, key) for key, moments in lists.items() for moment in moments}
    world.fire(2**62)


def test_a_timer_is_a_row_of_its_own_and_says_its_moment(rocks: RocksBackends | None) -> None:
    world = World(rocks)
    world.register(5, 1_000)
    world.register(5, 2_000, b"w")
    (section,) = world.backend.snapshot().sections()

    assert section.kind == "timer"
    assert section.key_group == key_group(INT.hash(5), MAX_PARALLELISM)
    assert section.rows.column("value").sort() == pa.array([1_000, 2_000])
    assert sorted(name[8:] for name in section.rows.column("namespace").to_pylist()) == [b"", b"w"]


@pytest.mark.slow
@pytest.mark.parametrize("rocks", ["heap", "rocksdb"], indirect=True)
def test_a_million_timers_of_one_key_survive_a_restore(
    rocks: RocksBackends | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_timers, "READ_AT_ONCE", 128)
    monkeypatch.setattr(rocksdb_timers, "MAX_NEAR", 512)
    world = World(rocks)
    moments = list(range(1_000_000))
    random.Random(1).shuffle(moments)
    for moment in moments:
        world.queue.register(1, moment)
    for moment in moments[: len(moments) // 2]:
        world.queue.delete(1, moment)
    world.restore(random.Random(2))

    expected = sorted(moments[len(moments) // 2 :])
    assert [timer.timestamp for timer in world.queue.due(500_000)] == [m for m in expected if m <= 500_000]
    world.restore(random.Random(3))
    assert [timer.timestamp for timer in world.queue.due(2**62)] == [m for m in expected if m > 500_000]


def test_timers_are_written_a_few_at_a_time_and_wait_for_no_snapshot_while_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rocksdb_timers, "WRITTEN_AT_ONCE", 50)
    written, write = [], Family.write
    monkeypatch.setattr(Family, "write", lambda family, rows: (written.append(len(rows)), write(family, rows)))
    with rocks_backends(Room(0, 300 * ENTRY_BYTES)) as made:
        backend = made.backend(INT)
        queue = TimerQueue(backend, EVENT_TIMERS)
        for moment in range(1_000):
            queue.register(moment % 3, moment)
        assert sum(written) >= 900
        assert max(written) == 50
        snapshot = backend.snapshot()
        written.clear()
        for moment in range(1_000, 1_300):
            queue.register(1, moment)
        assert written == []
        queue.register(1, 1_300)  # there is no room: the snapshot is written first
        assert written[-1] == 50
        assert sum(written) >= 50
        list(snapshot.sections())
        for moment in range(1_301, 1_400):
            queue.register(1, moment)

        assert max(written[-60:]) <= 50
        assert [timer.timestamp for timer in queue.due(2_000)] == list(range(1_400))


def test_a_timer_that_the_disk_has_no_room_for_is_set_or_deleted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the next checkpoint either way, so what fires before a restore must be what fires after it."""

    def full(family: Family, rows: Any) -> None:
        raise StorageError("No space left on device")

    with rocks_backends(NONE) as made:
        backend = made.backend(INT)
        queue = TimerQueue(backend, EVENT_TIMERS)
        for moment in (10, 20, 30):
            queue.register(1, moment)
        assert queue.next_timestamp() == 10
        with monkeypatch.context() as patch:
            patch.setattr(Family, "write", full)
            with pytest.raises(StorageError):
                queue.register(1, 15)
            with pytest.raises(StorageError):
                queue.register(1, 5)
            with pytest.raises(StorageError):
                queue.delete(1, 20)
        assert [timer.timestamp for timer in queue.due(100)] == [5, 10, 15, 30]
