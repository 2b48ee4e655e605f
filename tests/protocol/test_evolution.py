"""State that is declared otherwise than it was stored: converted where nothing is lost, refused before anything runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from protocol_kit import Numbered, environment, fresh_storage
from test_savepoint_jobs import request, run

import tidegate as tg
from tidegate.coordinator.restore_check import Verdict, check_restore
from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.graph.plan import plan_job
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.state.declarations import declared_states
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, Ask, InProcessRun
from tidegate.types import data_type
from tidegate.types.evolution import Fit, evolve

SOURCE = Numbered(1, splits=5, per_split=40, rows_per_poll=(2, 1, 0))


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


@dataclass
class Plain:
    a: int
    b: str


@dataclass
class Grown:
    a: int
    b: str
    c: float = 1.5
    d: list[int] = dataclasses.field(default_factory=list)


@dataclass
class Needy:
    a: int
    b: str
    c: float


@dataclass
class Shrunk:
    a: int


@dataclass
class Renamed:
    a: int
    text: str = dataclasses.field(metadata={"renamed_from": "b"})


@dataclass
class Widened:
    a: float
    b: str | None


@dataclass
class Narrowed:
    a: str
    b: str


@pytest.mark.parametrize(
    ("stored", "declared", "fit", "note"),
    [
        (Plain, Plain, Fit.SAME, ""),
        (Plain, Grown, Fit.CONVERTED, "c: added, with its default"),
        (Plain, Needy, Fit.INCOMPATIBLE, "c: added without a default"),
        (Plain, Shrunk, Fit.CONVERTED, "b: dropped"),
        (Plain, Renamed, Fit.CONVERTED, "text: renamed from 'b'"),
        (Plain, Widened, Fit.CONVERTED, "a: int widened to float"),
        (Plain, Narrowed, Fit.INCOMPATIBLE, "a: int cannot become str"),
        (list[Plain], list[Grown], Fit.CONVERTED, "c: added, with its default"),
        (dict[str, Plain], dict[str, Needy], Fit.INCOMPATIBLE, "c: added without a default"),
        (tuple[int, str], tuple[float, str], Fit.CONVERTED, "int widened to float"),
        (tuple[int, str], tuple[int, str, int], Fit.INCOMPATIBLE, "cannot become"),
        (int, int | None, Fit.CONVERTED, "may be None from now on"),
        (int | None, int, Fit.INCOMPATIBLE, "may hold None"),
        (float, int, Fit.INCOMPATIBLE, "float cannot become int"),
        (pa.int32(), int, Fit.CONVERTED, "arrow:int32 widened to int"),
        (pa.int64(), pa.int32(), Fit.INCOMPATIBLE, "cannot become"),
        (int, tg.Pickled, Fit.INCOMPATIBLE, "int cannot become pickled"),
    ],
)
def test_what_fits_and_what_does_not(stored: Any, declared: Any, fit: Fit, note: str) -> None:
    found = evolve(data_type(stored).name, data_type(declared))
    assert found.fit is fit, found
    assert any(note in each for each in found.notes) or not note


def counting(value_type: Any, extra: bool = False) -> type[tg.KeyedProcessFunction]:
    class Count(tg.KeyedProcessFunction):
        seen = tg.ValueState(value_type)
        if extra:
            more = tg.ValueState(int, default=0)

        def process_element(self, value: tuple[int, int], ctx: tg.Context) -> Any:
            before = self.seen.get()
            if before is None:
                before = value_type(*([0, ""][: len(dataclasses.fields(value_type))]))
            self.seen.set(dataclasses.replace(before, a=before.a + 1))
            yield (ctx.key, self.seen.get())

    return Count


def job(function: type, keys: int = 3, **settings: Any) -> tg.StreamEnvironment:
    env = environment(**settings)
    numbers = env.from_source(SOURCE, uid="source", returns=tuple[int, int])
    numbers.key_by(lambda row: row[1] % keys, key_type=int).process(function(), uid="count").sink_to(
        LedgerSink("out"), uid="out"
    )
    return env


def suspended(function: type, **settings: Any) -> str:
    ask = Ask(request(StopMode.SUSPEND), after_checkpoints=2)
    run(job(function, **settings), ask)
    path: str = ask.outcome.path
    return path


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("later", [Grown, Shrunk, Renamed, Widened])
def test_a_job_goes_on_with_a_type_that_has_evolved(later: type, backend: str) -> None:
    path = suspended(counting(Plain), limits={"state_backend": backend})
    before = max(row[1].a for row in ledger("out").rows())
    forget_later = len(ledger("out").rows())

    run(job(counting(later), resume=path, limits={"state_backend": backend}))

    after = ledger("out").rows()[forget_later:]
    assert after
    counts = sorted(row[1].a for row in ledger("out").rows() if row[0] == 1)
    assert counts == list(range(1, len(counts) + 1))
    assert max(counts) > before - 3
    assert any(isinstance(row[1], later) for row in ledger("out").rows())


@pytest.mark.parametrize("later", [Needy, Narrowed])
def test_an_incompatible_change_is_refused_before_anything_runs(later: type) -> None:
    path = suspended(counting(Plain))
    before = ledger("out").rows()

    with pytest.raises(ConfigurationError, match=r"state 'seen' of .* was stored as value state of dataclass Plain.*"):
        run(job(counting(later), resume=path))
    assert ledger("out").rows() == before


@pytest.mark.parametrize("snapshot", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_state_that_is_not_declared_any_more_is_dropped_only_in_words(backend: str, snapshot: str) -> None:
    class WithMore(counting(Plain, extra=True)):  # type: ignore[misc]
        def process_element(self, value: tuple[int, int], ctx: tg.Context) -> Any:
            self.more.set(1)
            yield from super().process_element(value, ctx)

    storage = fresh_storage()
    limits = {"state_backend": backend}
    if snapshot == "savepoint":
        path = suspended(WithMore, limits=limits)
    else:
        started = run(job(WithMore, storage=storage, limits=limits))
        path = started.world.view.latest_completed().path  # type: ignore[union-attr]

    with pytest.raises(ConfigurationError, match=r"'more' of .* does not declare any more"):
        run(job(counting(Plain), resume=path, limits=limits))
    run(job(counting(Plain), resume=path, limits=limits, allow_dropped_state=True))
    counts = sorted(row[1].a for row in ledger("out").rows() if row[0] == 1)
    assert counts == list(range(1, len(counts) + 1))


def test_a_check_says_what_would_become_of_each_state() -> None:
    savepoint = tg.Savepoint.load(suspended(counting(Plain)))

    def verdicts(function: type, parallelism: int = 2, **settings: Any) -> dict[str, Verdict]:
        env = job(function, parallelism=parallelism)
        plan = plan_job(env.name, env._graph, parallelism)
        return {f.state or f.uid: f.verdict for f in check_restore(plan, savepoint.metadata, **settings)}

    assert verdicts(counting(Plain)) == {"source": Verdict.RESTORED, "seen": Verdict.RESTORED, "out": Verdict.RESTORED}
    assert verdicts(counting(Plain), 3)["seen"] is Verdict.MOVED
    assert verdicts(counting(Grown))["seen"] is Verdict.CONVERTED
    assert verdicts(counting(Narrowed))["seen"] is Verdict.REFUSED
    assert verdicts(counting(Plain, extra=True))["more"] is Verdict.NEW


# -- states that have another name now ----------------------------------------------------------------------------------


@dataclass
class Settled:
    """As `Renamed`, when nobody remembers the old name any more."""

    a: int
    text: str


def known_as(name: str, value_type: type, renamed_from: str | None = None) -> type[tg.KeyedProcessFunction]:
    """Counts in a state of this name; the text of its value is that of the first record of the key."""

    class Count(tg.KeyedProcessFunction):
        locals()[name] = tg.ValueState(value_type, renamed_from=renamed_from)

        def process_element(self, value: tuple[int, int], ctx: tg.Context) -> Any:
            state = getattr(self, name)
            before = state.get() or value_type(0, f"first {ctx.key}")
            state.set(dataclasses.replace(before, a=before.a + 1))
            yield (ctx.key, state.get().a, dataclasses.astuple(state.get())[1])

    return Count


def assert_counted_on(keys: int = 3) -> None:
    rows = ledger("out").rows()
    assert len(rows) == len(SOURCE.numbers())
    for key in range(keys):
        mine = [row for row in rows if row[0] == key]
        assert sorted(row[1] for row in mine) == list(range(1, len(mine) + 1))
        assert {row[2] for row in mine} == {f"first {key}"}


@pytest.mark.parametrize("format", ["canonical", "native"])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_state_that_is_renamed_is_found_again(backend: str, format: str, parallelism: int) -> None:
    limits = {"state_backend": backend}
    ask = Ask(request(StopMode.SUSPEND, format), after_checkpoints=2)
    run(job(known_as("old", Plain), limits=limits), ask)
    path = ask.outcome.path

    with pytest.raises(ConfigurationError, match=r"'old' of .* \(renamed_from='old'\)"):
        run(job(known_as("new", Plain), resume=path, limits=limits))
    run(job(known_as("new", Renamed, renamed_from="old"), resume=path, limits=limits, parallelism=parallelism))
    assert_counted_on()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_nothing_is_built_on_files_of_a_state_that_has_changed(backend: str) -> None:
    """Increments of the new name and type over a base of the old would need both programs to be read."""
    storage, limits, keys = fresh_storage(), {"state_backend": backend, "incremental": True}, 61
    for function in (known_as("old", Plain), known_as("new", Renamed, renamed_from="old")):
        env = job(function, keys, storage=storage, limits=limits, every="10ms", resume="latest")
        with pytest.raises(AllDriversDied):
            InProcessRun(env, 1, [Crash("driver.notified")], max_drivers=1).run()

    run(job(known_as("new", Settled), keys, storage=storage, limits=limits, resume="latest"))
    assert_counted_on(keys)


def test_a_state_is_renamed_in_a_savepoint() -> None:
    savepoint = tg.Savepoint.load(suspended(known_as("old", Plain)))
    edited = savepoint.edit().rename_state("count", "old", "new").write(fresh_storage() + "/renamed")
    assert edited.keyed_state("count", "new").to_arrow() == savepoint.keyed_state("count", "old").to_arrow()
    with pytest.raises(ConfigurationError, match="has no state 'other'; it has 'old'"):
        savepoint.edit().rename_state("count", "other", "new")

    run(job(known_as("new", Plain), resume=edited.path))
    assert_counted_on()


def test_a_check_tells_of_the_other_name() -> None:
    savepoint = tg.Savepoint.load(suspended(known_as("old", Plain)))
    env = job(known_as("new", Grown, renamed_from="old"))
    (found,) = [
        finding
        for finding in check_restore(plan_job(env.name, env._graph, 2), savepoint.metadata)
        if finding.uid == "count"
    ]
    assert (found.state, found.verdict) == ("new", Verdict.CONVERTED)
    assert found.detail.startswith("renamed from 'old'; c: added, with its default")


def test_one_stored_state_becomes_one_declared_state() -> None:
    class Both(tg.KeyedProcessFunction):
        old = tg.ValueState(int)
        new = tg.ValueState(int, renamed_from="old")

    with pytest.raises(TypeDeclarationError, match="that is also where 'old' comes from"):
        declared_states(Both)
