"""State that expires: what is returned when, what clean-up does, and what snapshots keep. The clock is moved by hand."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from state_backends import Backends
from state_kit import Mean, stored_rows

from tidegate.errors import CheckpointDamaged, ConfigurationError, TypeDeclarationError
from tidegate.state import heap_nested
from tidegate.state.backend import bind_states
from tidegate.state.declarations import AggregatingState, ListState, MapState, ReducingState, ValueState
from tidegate.state.keys import key_type
from tidegate.state.ttl import Ttl
from tidegate.testing.clock import ManualClock

INT = key_type(int)
made: Backends  #: of the test that runs
TEN = Ttl("10s")
READ = Ttl("10s", update="read_and_write")
SHOWN = Ttl("10s", visibility="return_expired_if_not_cleaned_up")


def states(ttl: Ttl | None) -> type:
    class States:
        total = ValueState(int, default=0, ttl=ttl)
        tags = ValueState(list[int], ttl=ttl)
        log = ListState(str, ttl=ttl)
        counts = MapState(str, int, ttl=ttl)
        best = ReducingState(int, max, ttl=ttl)
        mean = AggregatingState(Mean(), ttl=ttl)

    return States


@pytest.fixture(autouse=True)
def _each_backend(backends: Backends) -> None:
    global made
    made = backends


def new_backend(clock: ManualClock) -> Any:
    return made.new(INT, wall_clock=clock)


class RunningClock(ManualClock):
    """Time passes whenever somebody looks at it."""

    def __call__(self) -> float:
        self.now += 1
        return self.now


class Run:
    """A backend, a function and the clock they live by, at key 1."""

    def __init__(self, ttl: Ttl | None, clock: ManualClock | None = None) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.backend = new_backend(self.clock)
        self.f: Any = states(ttl)()
        bind_states(self.f, self.backend)
        self.backend.set_current_key(1)

    def fill(self) -> Run:
        self.f.total.set(5)
        self.f.tags.set([5])
        self.f.log.add("a")
        self.f.counts.put("a", 5)
        self.f.best.add(5)
        self.f.mean.add(5)
        return self

    def seen(self) -> list[Any]:
        return [
            self.f.total.get(),
            self.f.tags.get(),
            self.f.log.get(),
            dict(self.f.counts.items()),
            self.f.best.get(),
            self.f.mean.get(),
        ]

    def settle(self) -> None:
        """In RocksDB clean-up looks at what is written, and that is what a snapshot does."""
        for _ in self.backend.snapshot().sections():
            pass

    def kept(self) -> dict[str, int]:
        """How much is there, expired or not: keys, in RocksDB rows."""
        sizes = self.backend.state_size()
        return sizes if made.rocks is None else {name: made.rocks.rows_of(self.backend, name) for name in sizes}

    def restored(self, ttl: Ttl | None) -> Run:
        again = Run(ttl, self.clock)
        for section in self.backend.snapshot().sections():
            again.backend.restore(section.state, section.kind, [section.rows])
        return again


FULL = [5, [5], ["a"], {"a": 5}, 5, 5.0]
EMPTY = [0, None, [], {}, None, None]


# -- the declaration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["0s", "0.5ms", timedelta(0)])
def test_a_lifetime_below_a_millisecond_is_refused(after):
    with pytest.raises(ConfigurationError, match="cannot live for"):
        Ttl(after)


def test_a_lifetime_without_a_unit_and_unknown_words_are_refused():
    with pytest.raises(ConfigurationError, match="no unit"):
        Ttl(10)
    with pytest.raises(ConfigurationError, match="update='reads' is unknown"):
        Ttl("1s", update="reads")
    with pytest.raises(ConfigurationError, match="visibility='all' is unknown"):
        Ttl("1s", visibility="all")


def test_a_lifetime_is_given_as_text_or_as_a_timedelta():
    assert Ttl("1h").milliseconds == Ttl(timedelta(hours=1)).milliseconds == 3_600_000


# -- reading and writing -----------------------------------------------------------------------------------------------


def test_an_entry_is_returned_until_its_time_and_never_after():
    run = Run(TEN).fill()

    run.clock.advance(9.999)
    assert run.seen() == FULL
    run.clock.advance(0.001)
    assert run.seen() == EMPTY
    assert len(run.f.counts) == 0
    assert not run.f.counts.contains("a")
    assert run.f.counts.get("a", 7) == 7


def test_by_default_only_a_write_begins_the_time_anew():
    run = Run(TEN).fill()
    run.clock.advance(6)
    assert run.seen() == FULL
    run.f.total.set(6)
    run.clock.advance(6)

    assert run.seen() == [6, *EMPTY[1:]]


def test_reads_begin_the_time_anew_where_this_was_asked_for():
    run = Run(READ).fill()
    for _ in range(5):
        run.clock.advance(6)
        assert run.seen() == FULL
    run.clock.advance(10)
    assert run.seen() == EMPTY


@pytest.mark.parametrize(
    "read",
    [
        lambda counts: counts.get("a"),
        lambda counts: counts.contains("a"),
        lambda counts: list(counts.keys()),
        lambda counts: list(counts.values()),
        lambda counts: counts["a"],
    ],
)
def test_every_way_to_read_a_map_entry_begins_its_time_anew(read):
    run = Run(READ).fill()
    run.clock.advance(6)
    read(run.f.counts)
    run.clock.advance(6)

    assert len(run.f.counts) == 1, "counting is not reading"
    run.clock.advance(6)
    assert len(run.f.counts) == 0


def test_elements_of_a_list_and_entries_of_a_map_expire_one_by_one():
    run = Run(TEN).fill()
    run.clock.advance(6)
    run.f.log.add("b")
    run.f.counts.put("b", 6)
    run.clock.advance(6)

    assert run.f.log.get() == ["b"]
    assert dict(run.f.counts.items()) == {"b": 6}
    run.f.counts.put("b", 7)
    run.f.log.set(["c", "d"])
    run.clock.advance(9)
    assert run.f.log.get() == ["c", "d"]
    assert run.f.counts["b"] == 7


def test_reducing_and_aggregating_begin_again_after_expiry():
    run = Run(TEN).fill()
    run.clock.advance(10)
    run.f.best.add(1)
    run.f.mean.add(1)

    assert run.f.best.get() == 1
    assert run.f.mean.get() == 1.0


def test_clearing_and_removing_work_as_without_a_ttl():
    run = Run(TEN).fill()
    run.f.counts.remove("never there")
    run.f.counts.put_all({"b": 1})
    run.f.counts.remove("a")
    assert dict(run.f.counts.items()) == {"b": 1}
    for name in ("total", "tags", "log", "counts", "best", "mean"):
        getattr(run.f, name).clear()

    assert run.seen() == EMPTY
    run.f.log.set([])
    assert sum(run.kept().values()) == 0


def test_columns_of_keys_see_the_same_expiry():
    run = Run(TEN)
    keys = pa.array([1, 2])
    run.f.total.update_many(keys, pa.array([10, 20]))
    run.clock.advance(6)
    run.f.total.add_many(pa.array([1]), 1)
    run.clock.advance(6)

    assert run.f.total.get_many(pa.array([1, 2, 3])).to_pylist() == [11, 0, 0]
    assert run.f.total.add_many(keys, 5, running=True).to_pylist() == [16, 5]


def test_a_state_that_was_asked_for_in_columns_expires_as_well():
    clock = ManualClock()
    backend = new_backend(clock)
    total = backend.bind(states(TEN).total, columnar=True)
    total.update_many(pa.array([1]), pa.array([10]))
    clock.advance(10)

    assert total.get_many(pa.array([1])).to_pylist() == [0]


def test_values_that_do_not_fit_are_refused_and_mutable_ones_are_the_callers_own():
    run = Run(TEN).fill()
    with pytest.raises(TypeDeclarationError, match="'total'"):
        run.f.total.set(2**63)
    with pytest.raises(TypeDeclarationError, match="'log'"):
        run.f.log.add_all(["b", 3])
    run.f.tags.get().append(9)

    assert run.seen() == FULL


# -- what has expired and is still there -------------------------------------------------------------------------------


def test_what_has_expired_can_be_returned_until_it_is_cleaned_up():
    run = Run(SHOWN).fill()
    run.clock.advance(100)
    assert run.seen() == FULL
    run.f.best.add(3)
    assert run.f.best.get() == 5, "the old value was still to be seen, so it was folded in"
    run.settle()
    while run.backend.clean_up(10_000):
        pass

    assert run.seen() == [*EMPTY[:4], 5, None]


def test_a_read_does_not_bring_back_what_has_expired():
    run = Run(Ttl("10s", update="read_and_write", visibility="return_expired_if_not_cleaned_up")).fill()
    run.clock.advance(10)
    assert run.seen() == FULL
    run.settle()
    assert run.backend.clean_up(100_000) == 6
    assert run.seen() == EMPTY


def test_clean_up_looks_at_no_more_than_its_budget_and_comes_round_to_everything():
    run = Run(TEN)
    for key in range(600):
        run.backend.set_current_key(key)
        run.f.total.set(key)
        run.f.counts.put_all({"a": 1, "b": 2})
        run.f.log.add_all(["x", "y"])
    run.clock.advance(10)
    run.backend.set_current_key(5_000)
    run.f.total.set(1)
    run.settle()
    forgotten, calls = [], 0
    while sum(forgotten) < 5 * 600:
        forgotten.append(run.backend.clean_up(100))
        calls += 1
        assert calls < 200, "it does not come round"

    assert max(forgotten) <= (100 if made.rocks is None else 200)  # elements that were added together are one row
    assert run.kept() == {"total": 1, "tags": 0, "log": 0, "counts": 0, "best": 0, "mean": 0}
    assert run.f.total.get() == 1
    assert run.backend.clean_up(50_000) == 0


@pytest.mark.parametrize("written", [False, True], ids=["as it is", "written"])
@pytest.mark.parametrize("name", ["total", "tags", "log", "counts", "best", "mean"])
def test_a_key_is_there_as_long_as_any_of_its_entries_has_not_expired(name, written):
    run = Run(TEN)
    for key in (1, 3):
        run.backend.set_current_key(key)
        run.fill()
    run.clock.advance(6)
    for key in (2, 3):
        run.backend.set_current_key(key)
        run.fill()
        run.f.counts.put("b", 6)
    if written:
        run.settle()
    assert sorted(run.backend.keys(name)) == [1, 2, 3]

    run.clock.advance(6)
    assert sorted(run.backend.keys(name)) == [2, 3]
    run.clock.advance(6)
    assert list(run.backend.keys(name)) == []


@pytest.mark.parametrize("sweep", [True, False], ids=["swept", "not swept"])
def test_of_a_list_that_has_expired_in_part_the_rest_stays_whatever_is_swept_or_stored(sweep):
    run = Run(TEN)
    run.f.log.add_all(["a", "b"])
    run.clock.advance(6)
    run.f.log.add_all(["c", "d"])  # in RocksDB one row, as nothing was written in between
    run.settle()
    run.clock.advance(6)
    if sweep:
        while run.backend.clean_up(100):
            pass
        assert run.kept()["log"] == 1

    assert run.f.log.get() == ["c", "d"]
    assert [row.value for row in stored_rows(run.backend.snapshot().sections(), INT)] == [["c", "d"]]
    assert run.restored(TEN).f.log.get() == ["c", "d"]
    run.clock.advance(6)
    assert run.f.log.get() == run.restored(TEN).f.log.get() == []


def test_clean_up_without_a_ttl_has_nothing_to_do():
    run = Run(None).fill()

    assert run.backend.clean_up(1_000_000) == 0


def test_a_long_list_is_cleaned_up_from_its_front():
    run = Run(TEN)
    run.f.log.add_all(["old"] * 1_000)
    run.clock.advance(5)
    run.f.log.add_all(["new"] * 10)
    run.clock.advance(5)
    before = run.backend.snapshot()
    if made.rocks is not None:
        run.settle()
    removed = 0
    while removed < 1_000:
        step = run.backend.clean_up(400)
        assert step <= 400 or made.rocks is not None, "in RocksDB elements that were added together are one row"
        removed += step

    assert heap_nested.ELEMENTS_AT_ONCE < 400
    assert run.f.log.get() == ["new"] * 10
    assert [row.value for row in stored_rows(before.sections(), INT)] == [["new"] * 10]
    assert run.backend.clean_up(10_000) == 0


def test_entries_that_are_written_between_two_steps_of_clean_up_stay():
    run = Run(TEN)
    run.f.counts.put_all({str(n): n for n in range(100)})
    run.clock.advance(10)
    run.settle()
    removed = 0
    for n in range(500):
        removed += run.backend.clean_up(7)
        run.f.counts.put(str(n % 50), n)
        run.f.log.add("x")
        run.f.log.clear()

    assert removed >= 50
    assert {key for key, _ in run.f.counts.items()} == {str(n) for n in range(50)}


# -- snapshots and restores --------------------------------------------------------------------------------------------


def test_a_restored_entry_keeps_its_expiry():
    run = Run(TEN).fill()
    run.clock.advance(6)
    again = run.restored(Ttl("1h"))
    assert again.seen() == FULL
    again.clock.advance(3.999)
    assert again.seen() == FULL
    again.clock.advance(0.001)

    assert again.seen() == EMPTY


def test_what_has_expired_is_in_no_snapshot_though_it_was_not_cleaned_up():
    run = Run(SHOWN).fill()
    run.clock.advance(6)
    run.f.log.add("b")
    run.f.counts.put("b", 6)
    run.clock.advance(6)
    rows = list(stored_rows(run.backend.snapshot().sections(), INT))

    expiry = int((run.clock.now - 6 + 10) * 1000)
    assert [(row.state, row.map_key, row.value, row.expiry) for row in rows] == [
        ("log", None, ["b"], [expiry]),
        ("counts", "b", 6, expiry),
    ]


def test_a_snapshot_is_of_the_moment_at_which_it_was_taken():
    run = Run(TEN).fill()
    run.clock.advance(9)
    snapshot = run.backend.snapshot()
    run.clock.advance(9)
    run.f.total.set(1)
    run.backend.clean_up(100_000)

    assert {row.state: row.value for row in stored_rows(snapshot.sections(), INT)} == {
        "total": 5, "tags": [5], "log": ["a"], "counts": 5, "best": 5, "mean": [5, 1],
    }  # fmt: skip


def test_what_expires_while_the_job_is_down_is_not_restored():
    run = Run(TEN).fill()
    sections = list(run.backend.snapshot().sections())
    run.clock.advance(10)
    again = Run(SHOWN, run.clock)
    for section in sections:
        again.backend.restore(section.state, section.kind, [section.rows])

    assert sum(again.kept().values()) == 0


def test_state_from_before_there_was_a_ttl_lives_for_its_length_from_the_restore_on():
    again = Run(None).fill().restored(TEN)
    again.clock.advance(9.999)
    assert again.seen() == FULL
    again.clock.advance(0.001)

    assert again.seen() == EMPTY


def test_state_whose_ttl_was_taken_away_stays_but_for_what_had_expired():
    run = Run(TEN).fill()
    run.clock.advance(6)
    run.f.log.add("b")
    run.f.counts.put("b", 6)
    run.f.best.add(6)
    sections = list(run.backend.snapshot().sections())
    run.clock.advance(6)
    again = Run(None, run.clock)
    for section in sections:
        again.backend.restore(section.state, section.kind, [section.rows])
    again.clock.advance(1_000_000)

    assert again.seen() == [0, None, ["b"], {"b": 6}, 6, None]


def test_columns_whose_ttl_was_taken_away_stay_as_well():
    run = Run(TEN).fill()
    sections = list(run.backend.snapshot().sections())
    backend = new_backend(run.clock)
    total = backend.bind(states(None).total, columnar=True)
    backend.restore("total", "value", [section.rows for section in sections if section.state == "total"])

    assert total.get_many(pa.array([1])).to_pylist() == [5]


def test_namespaces_expire_on_their_own():
    run = Run(TEN).fill()
    run.clock.advance(6)
    run.backend.set_current_namespace(b"window")
    assert run.seen() == EMPTY
    run.fill()
    run.clock.advance(6)

    again = run.restored(TEN)
    for each in (run, again):
        each.backend.set_current_key(1)
        assert each.seen() == EMPTY
        each.backend.set_current_namespace(b"window")
        assert each.seen() == FULL


def test_expiries_that_do_not_fit_their_list_are_damage():
    rows = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([INT.encode(1)], pa.binary()),
            "namespace": pa.array([b""], pa.binary()),
            "value": pa.array([["a", "b"]]),
            "expiry": pa.array([[1]], pa.list_(pa.int64())),
        }
    )
    run = Run(TEN)

    with pytest.raises(CheckpointDamaged, match="2 elements with 1 expiries"):
        run.backend.restore("log", "list", [rows])
    with pytest.raises(CheckpointDamaged, match="'expiry' of list"):
        run.backend.restore("total", "value", [rows])


def test_an_entry_that_expires_while_it_is_looked_up_is_not_none():
    run = Run(TEN, RunningClock())
    run.f.counts.put("a", 5)
    found = []
    with suppress(KeyError):
        for _ in range(30):
            found.append(run.f.counts["a"])

    assert 0 < len(found) < 30
    assert set(found) == {5}


@pytest.mark.parametrize("fold", ["add_many", "fold_many"])
def test_a_null_that_is_passed_over_is_no_write(fold):
    class Passed:
        lately = ValueState(int | None, ttl=TEN)
        total = ValueState(int | None, default=0)

    clock = ManualClock()
    backend, function = new_backend(clock), Passed()
    bind_states(function, backend)
    backend.set_current_key(1)
    function.lately.set(5)
    clock.advance(9)
    for handle in (function.lately, function.total):
        extreme = ("max",) if fold == "fold_many" else ()
        getattr(handle, fold)(pa.array([1]), pa.array([None], pa.int64()), *extreme)
    clock.advance(2)

    assert function.lately.get() is None
    assert list(backend.keys("total")) == []
