"""What the RocksDB backend promises beyond what all backends do (test_state_contract.py): its rows, its files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from rocksdb_kit import AMPLE, FORGETFUL, NONE, RocksBackends, Room, rocks_backends
from rocksdict import Options, Rdict
from state_kit import MAX_PARALLELISM, Everything, bound, plain

from tidegate.errors import CheckpointDamaged, ConfigurationError, ProtocolViolation, TypeDeclarationError
from tidegate.state.backend import StoredFolder, bind_states
from tidegate.state.declarations import ListState, MapState, ValueState, declared_states
from tidegate.state.key_groups import key_group
from tidegate.state.keys import key_type
from tidegate.state.namespaces import in_namespace
from tidegate.state.rocksdb import RocksStateBackend, sections_in
from tidegate.state.rocksdb_keys import Addresses
from tidegate.state.rocksdb_options import RocksMemory, database_options
from tidegate.state.rocksdb_rows import encode_elements
from tidegate.state.rocksdb_store import RocksStore
from tidegate.state.ttl import Ttl
from tidegate.testing.clock import ManualClock

INT = key_type(int)
ANY = key_type(None)
ALL = range(MAX_PARALLELISM)


@pytest.fixture
def backends() -> Iterator[RocksBackends]:
    with rocks_backends() as made:
        yield made


# -- keys --------------------------------------------------------------------------------------------------------------

PREFIXES = [
    "",
    "a",
    "a\x00",
    "a\x00\x00",
    "a\x00\x01",
    "ab",
    b"",
    b"a",
    b"a\x00",
    b"a\x00\xff",
    0,
    1,
    256,
    -1,
    (),
    ((),),
]
PREFIXES += [("a",), ("a", "b"), ("ab",), ("a", ("b",)), None, False, 0.5]


def test_keys_and_namespaces_that_are_prefixes_of_each_other_never_meet(backends):
    backend, function = backends.bound(ANY)
    backends.room = NONE
    places = [(key, namespace) for key in PREFIXES for namespace in (b"", b"\x00", b"\x00\x01", b"a", b"a\x00")]
    for number, (key, namespace) in enumerate(places):
        backend.set_current_key(ANY.normalise(key))
        backend.set_current_namespace(namespace)
        function.total.set(number)
        function.log.add(str(number))
        function.counts.put_all({"": number, "a": -number})
    backend.snapshot().files()  # all is in the rows now

    other, function = backends.bound(ANY)
    snapshot = backend.snapshot()
    assert other.restore_files([backends.fetched(snapshot, "other", ALL)])
    for number, (key, namespace) in enumerate(places):
        other.set_current_key(ANY.normalise(key))
        other.set_current_namespace(namespace)
        assert function.total.get() == number
        assert function.log.get() == [str(number)]
        assert dict(function.counts.items()) == {"": number, "a": -number}
        function.counts.clear()
        assert function.counts.is_empty()
    assert plain(other.snapshot().sections(), ANY)["counts"] == {}
    assert len(plain(snapshot.sections(), ANY)["counts"]) == len(places)


def test_rows_are_in_the_order_of_key_groups_and_of_keys(backends):
    backend, function = backends.bound(INT)
    numbers = [-(2**40), -300, -1, 0, 1, 255, 256, 2**40]
    for number in reversed(numbers):
        backend.set_current_key(number)
        function.total.set(number)

    seen = [row["value"] for section in backend.snapshot().sections() for row in section.rows.to_pylist()]
    assert seen == sorted(numbers, key=lambda number: (key_group(INT.hash(number), MAX_PARALLELISM), number))


@pytest.mark.parametrize("columnar", [False, True])
def test_a_key_of_another_subtask_fails_every_snapshot_and_blames_the_key_function(backends, columnar):
    own = range(4)
    foreign = next(number for number in range(100) if key_group(INT.hash(number), MAX_PARALLELISM) not in own)
    backend, function = backends.bound(INT, columnar, own)
    backend.set_current_key(foreign)
    function.total.set(1)
    snapshot = backend.snapshot()

    for _ in range(2):
        with pytest.raises(ProtocolViolation, match="key function is not deterministic"):
            snapshot.files()
    with pytest.raises(ProtocolViolation, match="key function is not deterministic"):
        backend.snapshot()  # what could not be written is not lost in silence


# -- lists and maps ----------------------------------------------------------------------------------------------------


def test_a_list_that_grew_over_many_checkpoints_is_whole_and_in_order(backends):
    backend, function = backends.bound(INT)
    for number in range(40):
        backend.set_current_key(1)
        function.log.add_all([f"{number}a", f"{number}b"])
        backend.snapshot().files()
    expected = [f"{number}{letter}" for number in range(40) for letter in "ab"]
    other, function = backends.bound(INT)
    assert other.restore_files([backends.fetched(backend.snapshot(), "other", ALL)])
    other.set_current_key(1)

    assert backends.rows_of(backend, "log") == 40
    assert function.log.get() == expected
    assert backends.rows_of(other, "log") == 1, "many rows that were read are joined"
    function.log.add("last")
    assert plain(other.snapshot().sections(), INT)["log"] == {1: [*expected, "last"]}


@pytest.mark.parametrize("room", [AMPLE, NONE], ids=["in memory", "on disk"])
def test_lists_of_several_old_subtasks_go_on_at_their_ends(room):
    """Rows of a list are in the order of numbers that each database counts for itself: the new one goes on from the highest."""
    with rocks_backends(room) as backends:
        halves = [range(MAX_PARALLELISM // 2), range(MAX_PARALLELISM // 2, MAX_PARALLELISM)]
        stored, keys = [], []
        for half, checkpoints in zip(halves, (3, 7), strict=True):
            old, function = backends.bound(INT, False, half)
            key = next(key for key in range(100) if key_group(INT.hash(key), MAX_PARALLELISM) in half)
            for number in range(checkpoints):
                old.set_current_key(key)
                function.log.add(f"{number}")
                snapshot = old.snapshot()
                snapshot.files()
            stored.append(backends.fetched(snapshot, f"old{checkpoints}", half))
            keys.append(key)

        backend, function = backends.bound(INT)
        backend.restore_files(stored)
        for key in keys:
            backend.set_current_key(key)
            function.log.add("new")
        backend.snapshot().files()

        expected = {keys[0]: ["0", "1", "2", "new"], keys[1]: ["0", "1", "2", "3", "4", "5", "6", "new"]}
        assert plain(backend.snapshot().sections(), INT)["log"] == expected


@pytest.fixture
def large_map() -> Iterator[tuple[RocksStateBackend, Any]]:
    """5,000 entries under one key, of which memory holds a few hundred."""
    with rocks_backends(Room(400_000, 400_000)) as made:
        backend, function = made.bound(INT)
        backend.set_current_key(1)
        function.counts.put_all({f"{number:04}": number for number in range(5000)})
        yield backend, function


def test_a_map_that_is_larger_than_memory_can_be_walked_and_counted(large_map):
    _, function = large_map

    assert len(function.counts) == 5000
    assert sum(function.counts.values()) == sum(range(5000))
    assert function.counts.get("4999") == 4999
    function.counts.remove("0000")
    assert len(function.counts) == 4999


def test_walking_a_large_map_sees_it_as_it_was_when_the_walk_began(large_map):
    backend, function = large_map
    walk = function.counts.items()
    function.counts.put("5000", 5000)
    function.counts.remove("2500")
    backend.snapshot().files()  # the changes reach the rows while the walk is under way
    seen = {}
    for key, value in walk:
        seen[key] = value
        function.counts.put(key, -1)

    assert seen == {f"{number:04}": number for number in range(5000)}
    assert set(function.counts.values()) == {-1, 5000}


def test_clearing_a_large_map_leaves_nothing_of_it(large_map):
    backend, function = large_map
    function.counts.clear()
    function.counts.put("new", 1)

    assert dict(function.counts.items()) == {"new": 1}
    assert plain(backend.snapshot().sections(), INT)["counts"] == {1: {"new": 1}}


def test_a_map_that_was_cleared_stays_so_when_memory_has_forgotten_it():
    with rocks_backends(FORGETFUL) as made:
        backend, function = made.bound(INT)
        backend.set_current_key(1)
        function.counts.put("a", 1)
        backend.snapshot().files()  # it is in the rows
        function.counts.clear()
        for key in (2, 3):
            backend.set_current_key(key)
            function.counts.get("a")
        backend.set_current_key(1)

        assert function.counts.get("a") is None


# -- columns -----------------------------------------------------------------------------------------------------------


def test_a_sum_does_not_wrap_when_its_number_comes_from_the_disk():
    with rocks_backends(NONE) as made:
        backend, function = made.bound(INT, columnar=True)
        function.total.add_many(pa.array([1, 2]), pa.array([2**63 - 10, 1]))
        function.total.add_many(pa.array([3]), 1)  # 1 and 2 leave memory

        with pytest.raises(TypeDeclarationError, match="beyond the 64 bits"):
            function.total.add_many(pa.array([1]), 10)
        assert function.total.get_many(pa.array([1, 2])).to_pylist() == [2**63 - 10, 1]
        assert plain(backend.snapshot().sections(), INT)["total"] == {1: 2**63 - 10, 2: 1, 3: 1}


def test_columns_of_more_keys_than_memory_allows_keep_every_sum():
    with rocks_backends(Room(20_000, 20_000)) as made:
        backend, function = made.bound(INT, columnar=True)
        keys = pa.array([number % 4000 for number in range(20_000)])
        for start in range(0, 20_000, 500):
            function.total.add_many(keys.slice(start, 500), 1)

        assert set(plain(backend.snapshot().sections(), INT)["total"].values()) == {5}
        assert len(function.total._cold.cached.values) < 1500


# -- snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [AMPLE, FORGETFUL, Room(20_000, 20_000)], ids=["ample", "forgetful", "little"])
def test_a_snapshot_is_of_one_moment_while_the_task_goes_on(room):
    with rocks_backends(room) as made:
        backend, function = made.bound(INT)
        for round_ in range(8):
            for key in range(300):
                backend.set_current_key(key)
                function.total.set(round_)
                function.log.add(str(round_))
                function.counts.put("round", round_)
            snapshot, sections = backend.snapshot(), []
            reader = threading.Thread(target=lambda s=snapshot, out=sections: out.extend(s.sections()))
            reader.start()
            for key in range(0, 300, 2):
                backend.set_current_key(key)
                assert function.total.get() == round_
                assert len(function.log.get()) == round_ + 1
                function.total.set(-1)
                function.counts.put("round", -1)
            reader.join()
            snapshot.release()
            found = plain(sections, INT)
            assert set(found["total"].values()) == {round_}
            assert {len(words) for words in found["log"].values()} == {round_ + 1}
            assert {entries["round"] for entries in found["counts"].values()} == {round_}
            assert len(found["total"]) == 300


def test_a_snapshot_outlives_later_ones_and_their_release(backends):
    backend, function = backends.bound(INT)
    backend.set_current_key(1)
    function.total.set(1)
    first = backend.snapshot()
    function.total.set(2)
    second = backend.snapshot()
    function.total.set(3)
    second.release()

    assert plain(first.sections(), INT)["total"] == {1: 1}
    first.release()
    assert plain(backend.snapshot().sections(), INT)["total"] == {1: 3}


def test_metrics_count_runs_and_rows(backends):
    backend, function = backends.bound(INT)
    for key in range(100):
        backend.set_current_key(key)
        function.total.set(key)
        function.counts.put("a", key)
    before = backend.metrics()
    backend.snapshot().files()
    after = backend.metrics()

    assert before["rocksdb.estimate-num-keys"] == 0
    assert after["rocksdb.estimate-num-keys"] == 200
    assert after["rocksdb.live-sst-files-size"] > before["rocksdb.live-sst-files-size"] + 100 * (8 + 8 + 8 + 1)


def test_files_are_links_that_stay_until_release_and_only_tables_are_shareable(backends):
    backend, function = backends.bound(INT)
    backend.set_current_key(1)
    function.total.set(1)
    snapshot = backend.snapshot()
    files = snapshot.files()

    assert [file.name for file in files if not file.shareable] == [
        "CURRENT",
        *(f.name for f in files if "MANIFEST" in f.name),
        "RUNS",
    ]
    assert {file.path.suffix for file in files if file.shareable} == {".sst", ".run"}
    assert all(file.path.stat().st_size == file.size for file in files)
    function.total.set(2)
    again = {file.name for file in backend.snapshot().files()}
    assert {file.name for file in files if file.shareable} < again, "tables that did not change keep their names"
    snapshot.release()
    snapshot.release()
    assert not files[0].path.exists()
    with pytest.raises(ProtocolViolation, match="released"):
        snapshot.files()


def test_closing_deletes_everything_on_the_local_disk(backends):
    backend, _ = backends.bound(INT)
    folder = backend.settings.folder
    assert len(list(folder.iterdir())) == 2
    backend.snapshot().files()
    backend.close()
    backend.close()

    assert list(folder.iterdir()) == []


# -- restores ----------------------------------------------------------------------------------------------------------


def stored(backends: RocksBackends, function: Any, name: str = "stored") -> StoredFolder:
    """The files of a state that `function` (an object with a `fill` method) has made under the key 1."""
    backend = backends.backend(INT)
    bind_states(function, backend)
    backend.set_current_key(1)
    function.fill()
    return backends.fetched(backend.snapshot(), name, ALL)


@dataclass
class Address:
    street: str


class Customer:
    address = ValueState(Address)
    visits = ListState(Address)

    def fill(self) -> None:
        self.address.set(Address("High Street"))
        self.visits.add(Address("Low Road"))


@dataclass
class AddressWithTown:
    street: str
    town: str = "Oldtown"


AddressWithTown.__name__ = "Address"


class GrownCustomer:
    address = ValueState(AddressWithTown)
    visits = ListState(AddressWithTown)


def test_a_dataclass_that_has_grown_reads_old_files_with_its_defaults(backends):
    folder, function = stored(backends, Customer()), GrownCustomer()
    backend = backends.backend(INT)
    bind_states(function, backend)

    assert not backend.restore_files([folder]), "the rows were written anew"
    backend.set_current_key(1)
    assert function.address.get() == AddressWithTown("High Street", "Oldtown")
    assert function.visits.get() == [AddressWithTown("Low Road", "Oldtown")]


def restoring(backends: RocksBackends, function: Any, folder: StoredFolder) -> None:
    backend = backends.backend(INT)
    bind_states(function, backend)
    backend.restore_files([folder])


def test_a_state_that_is_not_declared_any_more_is_refused_unless_it_held_nothing(backends):
    class Less:
        address = ValueState(Address)

    with pytest.raises(ConfigurationError, match="'visits', which the operator no longer declares"):
        restoring(backends, Less(), stored(backends, Customer()))

    class Unused(Customer):
        def fill(self) -> None:
            self.address.set(Address("High Street"))

    restoring(backends, Less(), stored(backends, Unused(), "unused"))


def test_a_state_of_another_kind_or_type_is_refused(backends):
    class OtherType:
        address = ValueState(int)
        visits = ListState(Address)

    class OtherKind:
        address = ValueState(Address)
        visits = MapState(str, Address)

    with pytest.raises(ConfigurationError, match="'visits' as a list state, but it is declared as a map state"):
        restoring(backends, OtherKind(), stored(backends, Customer()))
    with pytest.raises(TypeDeclarationError, match=r"state 'address' .* is declared as int"):
        restoring(backends, OtherType(), stored(backends, Customer(), "again"))


def test_a_new_state_begins_empty_beside_restored_ones(backends):
    class More(Customer):
        orders = MapState(str, int)

    folder, function = stored(backends, Customer()), More()
    backend = backends.backend(INT)
    bind_states(function, backend)

    assert backend.restore_files([folder])
    backend.set_current_key(1)
    assert function.address.get() == Address("High Street")
    assert function.orders.is_empty()
    function.orders.put("a", 1)
    again = More()
    other = backends.backend(INT)
    bind_states(again, other)
    assert other.restore_files([backends.fetched(backend.snapshot(), "more", ALL)])
    other.set_current_key(1)
    assert again.orders.get("a") == 1


@pytest.mark.parametrize("damage", ["missing table", "cut manifest", "no files"])
def test_damaged_files_are_refused_in_words(backends, damage):
    folder = stored(backends, Customer())
    for path in list(folder.folder.iterdir()):
        if damage == "no files" or (damage == "missing table" and path.suffix == ".sst"):
            path.unlink()
        elif damage == "cut manifest" and path.name.startswith("MANIFEST"):
            path.write_bytes(path.read_bytes()[:20])

    with pytest.raises(CheckpointDamaged, match=r"RocksDB files in .* cannot be opened|row format none"):
        restoring(backends, Customer(), folder)


def test_rows_of_a_later_format_are_refused(backends):
    folder = stored(backends, Customer())
    backends.set_format(folder, b"2")

    with pytest.raises(CheckpointDamaged, match="have the row format 2; this release reads format 1"):
        restoring(backends, Customer(), folder)


def test_the_heap_reads_what_rocksdb_writes_and_the_other_way_round(backends):
    heap, function = bound(INT, False)
    for key in range(50):
        heap.set_current_key(key)
        function.tags.set([key])
        function.counts.put(str(key), key)
        function.mean.add(key)
    backend, _ = backends.bound(INT)
    for section in heap.snapshot().sections():
        backend.restore(section.state, section.kind, [section.rows])

    ours, theirs = list(backend.snapshot().sections()), list(heap.snapshot().sections())
    assert [(s.state, s.kind, s.key_group) for s in ours] == [(s.state, s.kind, s.key_group) for s in theirs]
    assert [s.rows.schema for s in ours] == [s.rows.schema for s in theirs]
    assert plain(ours, INT) == plain(theirs, INT)


def test_a_job_that_changes_to_the_heap_reads_the_files(backends):
    backend, function = backends.bound(INT)
    for key in range(50):
        backend.set_current_key(key)
        function.log.add(str(key))
        function.counts.put("key", key)
    snapshot = backend.snapshot()
    own = range(4)
    expected = {key: [str(key)] for key in range(50) if key_group(INT.hash(key), MAX_PARALLELISM) in own}
    heap, _ = bound(INT, False)
    for section in sections_in(backends.fetched(snapshot, "fetched", ALL), own, backends.settings):
        heap.restore(section.state, section.kind, [section.rows])

    assert plain(heap.snapshot().sections(), INT)["log"] == expected


@pytest.mark.parametrize("same_range", [True, False])
def test_what_an_older_release_has_stored_as_rows_becomes_runs(backends, same_range: bool) -> None:
    addresses, memory = Addresses(INT, range(MAX_PARALLELISM), MAX_PARALLELISM), RocksMemory(backends.settings)
    store = RocksStore(backends.folder / "older", lambda: database_options(backends.settings, memory))
    keys = [*range(500), in_namespace(3, b"w")]
    cells = {number: number.to_bytes(8, "little") for number in range(10)}
    old_rows = {
        "total": [(addresses.of(key, ""), cells[7]) for key in keys],
        "log": [
            (addresses.of(key, "") + number.to_bytes(8, "big"), encode_elements([b"%d" % number, b"x"]))
            for key in keys
            for number in (0, 3, 300)
        ],
        "counts": [(addresses.of(key, "") + name, cells[5]) for key in keys for name in (b"", b"a", b"ab")],
    }
    with store.lock:
        for name, rows in old_rows.items():
            store.family(declared_states(Everything())[name]).write(rows)
        store.raise_sequence(300)
        store.checkpoint(backends.folder / "stored")
    store.close()
    own = range(MAX_PARALLELISM if same_range else MAX_PARALLELISM // 2)
    backend, function = backends.bound(INT, True, own)
    expected = {"total": 7, "log": ["0", "x", "3", "x", "300", "x"], "counts": {"": 5, "a": 5, "ab": 5}}

    adopted = backend.restore_files([StoredFolder(backends.folder / "stored", range(MAX_PARALLELISM))])
    mine = [key for key in keys if backend.key_group_of(key if isinstance(key, int) else 3) in own]
    assert adopted == same_range
    again, _ = backends.bound(INT, True, own)
    assert again.restore_files([backends.fetched(backend.snapshot(), "new", own)])
    families = Rdict.list_cf(str(backend._store.folder), Options(raw_mode=True))
    for name, value in expected.items():
        assert f"state/{name}" not in families
        assert dict(backend.entries(name)) == dict(again.entries(name)) == dict.fromkeys(mine, value)
    backend.set_current_key(mine[0])
    function.log.add("new")
    assert function.log.get() == [*expected["log"], "new"]
    backend.snapshot().files()
    assert dict(backend.entries("log"))[mine[0]] == [*expected["log"], "new"]


def test_what_was_read_ahead_is_never_older_than_what_was_written_since() -> None:
    with rocks_backends(NONE) as made:
        backend, function = made.bound(INT)
        for key in range(10):
            backend.set_current_key(key)
            function.total.set(key)
        backend.expect(list(range(12)))
        seen = []
        for key in (0, 1, 5, 6, 1, 11, 2, 2):
            backend.set_current_key(key)
            seen.append(function.total.get())
            function.total.set(100 + key)
        backend.set_current_key(3)
        function.total.clear()

        assert seen == [0, 1, 5, 6, 101, 0, 2, 102]
        assert function.total.get() == 0


def test_lists_and_maps_that_were_read_ahead_are_never_older_than_what_was_written_since() -> None:
    """All of it leaves memory at once. Between the first read, which brings all keys, and theirs they change and are stored."""
    with rocks_backends(NONE) as made:
        backend, function = made.bound(INT)

        def at(key: int) -> Everything:
            backend.set_current_key(key)
            return function

        for key in range(8):
            at(key).log.add("a")
            at(key).counts.put_all({"a": 1, "b": 2})
        backend.expect(list(range(10)))
        assert at(0).log.get() == ["a"]
        assert at(0).counts.get("a") == 1
        at(1).log.add("b")
        at(2).log.set(["c"])
        at(3).log.clear()
        at(1).counts.put("a", 9)
        at(2).counts.remove("a")
        at(3).counts.clear()
        backend.snapshot().files()
        at(4).log.add("d")

        assert [at(key).log.get() for key in range(6)] == [["a"], ["a", "b"], ["c"], [], ["a", "d"], ["a"]]
        assert [at(key).counts.get("a") for key in range(5)] == [1, 9, None, None, 1]
        assert [len(at(key).counts) for key in range(5)] == [2, 2, 1, 0, 2]
        assert dict(at(9).counts.items()) == {}


HOUR, TEN = Ttl("1h"), Ttl("10s")


@pytest.mark.parametrize("own", [ALL, range(MAX_PARALLELISM // 2)], ids=["all", "half"])
@pytest.mark.parametrize(("before", "after"), [(TEN, None), (None, TEN), (TEN, HOUR), (HOUR, TEN)], ids=str)
def test_files_of_a_state_with_another_ttl_are_restored_with_the_expiries_that_they_have(
    before: Ttl | None, after: Ttl | None, own: range
) -> None:
    def states_with(ttl: Ttl | None) -> Any:
        class States:
            total = ValueState(int, ttl=ttl)
            log = ListState(str, ttl=ttl)
            counts = MapState(str, int, ttl=ttl)

        return States()

    clock = ManualClock()
    with rocks_backends(NONE) as made:

        def started(ttl: Ttl | None, groups: range) -> tuple[RocksStateBackend, Any]:
            backend, function = made.backend(INT, groups, clock), states_with(ttl)
            bind_states(function, backend)
            return backend, function

        def seen(backend: RocksStateBackend, function: Any) -> list[Any]:
            found = []
            for key in keys:
                backend.set_current_key(key)
                found.append((function.total.get(), function.log.get(), dict(function.counts.items())))
            return found

        backend, function = started(before, ALL)
        keys = [key for key in range(30) if backend.key_group_of(key) in own]
        for late in (False, True):
            for key in range(30):
                backend.set_current_key(key)
                function.log.add("b" if late else "a")
                function.counts.put("b" if late else "a", 1)
                if not late:
                    function.total.set(5)
            clock.advance(6)
        stored = made.fetched(backend.snapshot(), "stored", ALL)
        again, function = started(after, own)

        has_layout = (before is None) == (after is None)
        assert again.restore_files([stored]) == (has_layout and own == ALL)
        late = (None, ["b"], {"b": 1}) if before is TEN else (5, ["a", "b"], {"a": 1, "b": 1})
        assert seen(again, function) == [late] * len(keys)
        clock.advance(5)
        later = late if before is not TEN or after is None else (None, [], {})
        assert seen(again, function) == [later] * len(keys)
        third, function = started(after, own)
        third.restore_files([made.fetched(again.snapshot(), "again", own)])
        assert seen(third, function) == [later] * len(keys)
