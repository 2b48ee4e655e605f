"""Operator state in whole jobs: list, union and broadcast state survive crashes and a change of parallelism."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from matrices import in_turn
from tidegate.batch import Batch
from tidegate.connectors.contract import WriterContext
from tidegate.errors import ConfigurationError, TidegateError
from tidegate.functions.checkpointed import InitializationContext, SnapshotContext
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

NUMBERS = list(range(120))


class Hoard(tg.CheckpointedFunction, tg.ProcessFunction):
    """Keeps every number in list state and gives them all out at the end; counts restores in a union list."""

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.kept = ctx.operator_state.list_state("kept", int)
        self.subtasks = ctx.operator_state.union_list_state("subtasks", int)
        self.rules = ctx.operator_state.broadcast_state("rules", str, int)
        self.plain = list(self.kept.get())
        if not ctx.is_restored:
            self.subtasks.set([ctx.subtask])
            self.rules["factor"] = 3
        self.restored_from = len(self.subtasks.get()) if ctx.is_restored else 0

    def process_element(self, value: int, ctx: tg.Context) -> None:
        self.plain.append(value)

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        self.kept.set(self.plain)
        self.subtasks.set([0])

    def end_input(self, ctx: tg.Context) -> list[tuple[int, int]]:
        return [(value, value * self.rules["factor"]) for value in self.plain]


def job(storage: str, parallelism: int, resume: str | None = None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("hoard", parallelism=parallelism)
    env.checkpointing(every="10ms", storage=storage, resume=resume)
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    stream = env.from_collection(NUMBERS, uid="numbers").rebalance()
    stream.process(Hoard(), uid="hoard", returns=tuple[int, int]).sink_to(LedgerSink("out"), uid="out")
    return env


def committed() -> list[tuple[int, int]]:
    return sorted(ledger("out").rows())


@pytest.mark.parametrize(("point", "seed"), in_turn(ALL_POINTS, range(3)))
def test_list_union_and_broadcast_state_survive_a_crash(point: str, seed: int) -> None:
    forget_ledgers()
    run_in_process(job(fresh_storage(), 2), seed, [Crash(point, nth=1, times=2)])
    assert committed() == [(value, value * 3) for value in NUMBERS]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 5), (4, 1)])
def test_elements_are_split_evenly_at_another_parallelism(before: int, after: int) -> None:
    for seed in range(5):
        forget_ledgers()
        storage = fresh_storage()
        crash = [Crash("driver.notified", nth=2)]
        try:
            InProcessRun(job(storage, before), seed, crash, max_drivers=1).run()
        except AllDriversDied:
            run_in_process(job(storage, after, resume="latest"), seed)
        assert committed() == [(value, value * 3) for value in NUMBERS]


# -- raw state ---------------------------------------------------------------------------------------------------------


class RawCounts(tg.CheckpointedFunction, tg.KeyedProcessFunction):
    """(key, number, n-th of the key) with counts in bytes of its own, for each key group; and what was seen, in pieces.

    A declared state beside it counts the same: both must agree at each record."""

    declared = tg.ValueState(int, default=0)

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.key_groups, self.key_group_of = ctx.key_groups, ctx.key_group_of
        self.counts = {group: json.loads(data) for group, data in ctx.raw.keyed()}
        self.seen = [json.loads(piece) for piece in ctx.raw.operator()]
        assert set(self.counts) <= set(ctx.key_groups)

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        for number in self.seen:
            ctx.raw.write_operator(json.dumps(number).encode())
        for group, counts in self.counts.items():
            data = json.dumps(counts).encode()
            ctx.raw.write_keyed(group, data[:3])
            ctx.raw.write_keyed(group, data[3:])

    def process_element(self, value: int, ctx: tg.Context) -> list[tuple[int, int, int]]:
        group = self.key_group_of(ctx.key)
        assert group in self.key_groups
        counts = self.counts.setdefault(group, {})
        nth = counts[str(ctx.key)] = counts.get(str(ctx.key), 0) + 1
        self.seen.append(value)
        self.declared.set(self.declared.get() + 1)
        assert self.declared.get() == nth
        return [(ctx.key, value, nth)]

    def end_input(self, ctx: tg.Context) -> list[tuple[int, int, int]]:
        return [(-1, number, 0) for number in self.seen]


def raw_job(storage: str, parallelism: int, backend: str, resume: str | None = None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("raw", parallelism=parallelism)
    env.checkpointing(every="10ms", storage=storage, resume=resume)
    env.state_backend(backend, memory="4mb")
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    keyed = env.from_collection(NUMBERS, uid="numbers", type=int).key_by(lambda n: n % 7, key_type=int)
    keyed.process(RawCounts(), uid="raw", returns=tuple[int, int, int]).sink_to(LedgerSink("out"), uid="out")
    return env


def assert_raw_is_exact() -> None:
    rows = ledger("out").rows()
    assert sorted(number for key, number, _ in rows if key == -1) == NUMBERS, "pieces were lost or doubled"
    assert sorted(number for key, number, _ in rows if key >= 0) == NUMBERS
    for key in range(7):
        places = sorted(nth for found, _, nth in rows if found == key)
        assert places == list(range(1, len(places) + 1))


@pytest.mark.parametrize(
    ("point", "backend"),
    in_turn(["slot.before-ack", "slot.after-ack", "driver.after-log", "slot.restored"], ["hashmap", "rocksdb"]),
)
def test_raw_state_of_key_groups_and_of_subtasks_survives_a_crash(point: str, backend: str) -> None:
    forget_ledgers()
    run_in_process(raw_job(fresh_storage(), 2, backend), 1, [Crash(point, nth=2, times=2)])
    assert_raw_is_exact()


@pytest.mark.parametrize(
    ("before", "after", "backend"), in_turn([(2, 3), (3, 2), (1, 5), (4, 1)], ["hashmap", "rocksdb"])
)
def test_raw_state_goes_with_its_key_group_and_pieces_are_split(before: int, after: int, backend: str) -> None:
    forget_ledgers()
    storage = fresh_storage()
    with pytest.raises(AllDriversDied):
        InProcessRun(raw_job(storage, before, backend), 2, [Crash("driver.notified", nth=2)], max_drivers=1).run()
    run_in_process(raw_job(storage, after, backend, resume="latest"), 2)
    assert_raw_is_exact()


def test_a_key_group_is_only_asked_for_where_there_are_keys() -> None:
    context = InitializationContext(None, False, 0, 1, range(0))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no keys, so no key group"):
        context.key_group_of("a")


def test_a_checkpointed_function_needs_a_uid_where_checkpoints_are_stored() -> None:
    env = tg.StreamEnvironment("hoard").checkpointing(storage=fresh_storage())
    env.from_collection(NUMBERS, uid="numbers").process(Hoard()).print()
    with pytest.raises(TidegateError, match=r"Hoard at .* needs a uid"):
        run_in_process(env)


# -- not only process functions ----------------------------------------------------------------------------------------


class Numbered(tg.CheckpointedFunction):
    """In class form, for map: counts what its subtask has seen."""

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.stored = ctx.operator_state.list_state("seen", int)
        self.seen = sum(self.stored.get())
        self.lost = 0  # a plain attribute, for comparison

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        self.stored.set([self.seen])

    def __call__(self, value: int) -> tuple[int, int]:
        self.seen += 1
        self.lost += 1
        return (self.seen, self.lost)


class OnlyOnce(Numbered):
    """For filter and flat_map."""

    def __call__(self, value: Any) -> Any:
        self.seen += 1
        return [self.seen]


class CountingSink(tg.Sink):
    """Its writer stamps each record with how many its subtask has written."""

    def __init__(self, inner: tg.Sink) -> None:
        self.inner = inner

    def writer(self, context: WriterContext) -> tg.SinkWriter:
        return CountingWriter(self.inner.writer(context))

    def committer(self, context: WriterContext) -> Any:
        return self.inner.committer(context)


class CountingWriter(Numbered, tg.SinkWriter):
    def __init__(self, inner: tg.SinkWriter) -> None:
        self.inner = inner

    def write(self, batch: Batch) -> None:
        rows = [(row, self(row)[0]) for row in batch.rows()]
        self.inner.write(batch.with_rows(batch.type, rows))

    def prepare(self, checkpoint: Any) -> list[bytes]:
        return self.inner.prepare(checkpoint)


def from_elements() -> Any:
    """The source of docs/state.md, without the job that the page runs with it."""
    page = (Path(__file__).parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(import tidegate as tg\n\n\nclass FromElements.*?)^env = ", page, re.M | re.S)
    names: dict[str, Any] = {"__name__": "the_page"}  # without one cloudpickle looks for it in every module
    exec(compile(program, "docs/state.md", "exec", dont_inherit=True), names)
    return names["FromElements"]


@pytest.mark.parametrize(("point", "seed"), in_turn(ALL_POINTS, range(3)))
def test_readers_functions_and_writers_keep_operator_state(point: str, seed: int) -> None:
    forget_ledgers()
    env = tg.StreamEnvironment("everyone", parallelism=1)
    env.checkpointing(every="10ms", storage=fresh_storage())
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    numbered = env.from_source(from_elements()(*NUMBERS), uid="elements").map(Numbered(), uid="map")
    again = numbered.flat_map(OnlyOnce(), uid="flat-map")
    again.sink_to(CountingSink(LedgerSink("out")), uid="out")
    numbered.sink_to(LedgerSink("lost"), uid="lost")
    run_in_process(env, seed, [Crash(point, nth=2, times=2)])

    assert committed() == [(n, n) for n in range(1, len(NUMBERS) + 1)]
    assert sorted(seen for seen, _ in ledger("lost").rows()) == list(range(1, len(NUMBERS) + 1))


def test_a_plain_attribute_begins_anew_after_a_crash_and_declared_state_does_not() -> None:
    class Both(tg.KeyedProcessFunction):
        declared = tg.ValueState(int, default=0)

        def open(self, ctx: tg.Context) -> None:
            self.plain = 0  # not declared: not saved

        def process_element(self, value: int, ctx: tg.Context) -> list[tuple[int, int]]:
            self.declared.set(self.declared.get() + 1)
            self.plain += 1
            return [(self.declared.get(), self.plain)]

    forget_ledgers()
    env = tg.StreamEnvironment("trap", parallelism=1)
    env.checkpointing(every="10ms", storage=fresh_storage())
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    stream = env.from_collection(NUMBERS, uid="numbers", type=int).key_by(lambda value: 0, key_type=int)
    stream.process(Both(), uid="both", returns=tuple[int, int]).sink_to(LedgerSink("out"), uid="out")
    run_in_process(env, 1, [Crash("driver.notified", nth=2, times=1)])

    assert [declared for declared, _ in committed()] == list(range(1, len(NUMBERS) + 1))
    assert max(plain for _, plain in committed()) < len(NUMBERS), "no restart, so the trap was not tried"


def test_a_new_operator_is_not_restored_though_the_job_is() -> None:
    """Else it would never fill its state, and one that expects its own would fail."""
    forget_ledgers()
    storage = fresh_storage()
    try:
        InProcessRun(job(storage, 2), 1, [Crash("driver.notified", nth=2)], max_drivers=1).run()
    except AllDriversDied:
        pass

    class New(tg.CheckpointedFunction, tg.ProcessFunction):
        def initialize_state(self, ctx: InitializationContext) -> None:
            assert not ctx.is_restored
            self.state = ctx.operator_state.list_state("new", int)

        def process_element(self, value: Any, ctx: tg.Context) -> list[Any]:
            return [value]

    env = tg.StreamEnvironment("hoard", parallelism=2)
    env.checkpointing(every="10ms", storage=storage, resume="latest")
    stream = env.from_collection(NUMBERS, uid="numbers").rebalance()
    hoard = stream.process(Hoard(), uid="hoard", returns=tuple[int, int])
    hoard.process(New(), uid="new", returns=tuple[int, int]).sink_to(LedgerSink("out"), uid="out")
    run_in_process(env, 1)

    assert committed() == [(value, value * 3) for value in NUMBERS]
