"""Unique increasing numbers for each source, an order that holds, failures everywhere: after UnalignedCheckpointITCase.

Every record of a lane (source and split) takes the same keyed way at any parallelism, so its numbers must arrive in order,
each once, also when the job continues at another parallelism. The job is failed in its function (at a quarter of the numbers),
in its snapshot (at a half), in its function and in the recovery from that (at three quarters), and at its end. A checker
in the job and one outside of it count what is lost, doubled and out of order. `slow` marks the whole table.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from protocol_kit import Numbered, fresh_storage, logged_checkpoints

import tidegate as tg
from matrices import in_turn
from tidegate.coordinator.observing import JobStatus
from tidegate.functions.checkpointed import InitializationContext, SnapshotContext
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun

Row = tuple[int, int, str]  #: lane, number in it, way
SPLITS = 3
PER_SPLIT = 100
BUSY = (3, 2, 4)  #: records of each poll
ALMOST_NOTHING = (1, 0, 0, 0, 0, 0)  #: so that almost nothing is in flight

# -- failures, as the test wants them ---------------------------------------------------------------------------------

STAGES = ("map", "snapshot", "late map", "recovery", "end")
to_come: set[str] = set()  #: stages that have not failed yet


class Injected(RuntimeError):
    pass


def fail_once(stage: str) -> None:
    if stage in to_come:
        to_come.discard(stage)
        raise Injected(stage)


class FailingMap(tg.CheckpointedFunction, tg.ProcessFunction):
    """Passes everything on. It is chained after a keyed function, so it keeps the order."""

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.highest = 0
        if "late map" not in to_come:
            fail_once("recovery")

    def process_element(self, row: Row, ctx: tg.Context) -> list[Row]:
        self.highest = max(self.highest, row[1])
        if row[1] >= PER_SPLIT // 4:
            fail_once("map")
        if row[1] >= PER_SPLIT * 3 // 4:
            fail_once("late map")
        return [row]

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        if self.highest >= PER_SPLIT // 2 and "map" not in to_come:
            fail_once("snapshot")

    def end_input(self, ctx: tg.Context) -> None:
        fail_once("end")


# -- the job ----------------------------------------------------------------------------------------------------------


class Longs(Numbered):
    def row(self, number: int) -> Row:
        return (self.source * 10 + number // 1000, number % 1000, "")


class _Ordered:
    """Says of each record what the one before it in its lane and on its way makes of it."""

    last = tg.MapState(str, int)
    name = ""

    def judge(self, row: Row, way: str = "") -> list[Row]:
        lane, number, before = row
        way = f"{before}{way}>{self.name}"
        due = self.last.get(way, -1) + 1
        self.last[way] = max(due, number + 1) - 1 if number < due else number
        verdict = "" if number == due else " DOUBLED OR LATE" if number < due else " LOST OR EARLY"
        return [(lane, number, way + verdict)]


class Ordered(_Ordered, tg.KeyedProcessFunction):
    def __init__(self, name: str) -> None:
        self.name = name

    def process_element(self, row: Row, ctx: tg.Context) -> list[Row]:
        return self.judge(row)


class OrderedPair(_Ordered, tg.KeyedCoProcessFunction):
    name = "pair"

    def process_element1(self, row: Row, ctx: tg.Context) -> list[Row]:
        return self.judge(row, "1")

    def process_element2(self, row: Row, ctx: tg.Context) -> list[Row]:
        return self.judge(row, "2")


class OrderedWithRules(_Ordered, tg.KeyedBroadcastProcessFunction):
    """Rules are numbers too; each copy checks that it gets every one of each lane, in order."""

    name = "ruled"
    rules = tg.BroadcastState(int, int)

    def process_element(self, row: Row, ctx: tg.Context) -> list[Row]:
        return self.judge(row)

    def process_broadcast_element(self, row: Row, ctx: tg.BroadcastContext) -> list[Row]:
        lane, number, _ = row
        verdict = "" if number == self.rules.get(lane, -1) + 1 else " RULE OUT OF ORDER"
        self.rules[lane] = number
        return [(lane, number, f"rule at {ctx.subtask}{verdict}")]


def by_lane(stream: tg.DataStream) -> tg.KeyedStream:
    return stream.key_by(0)


def checked(stream: tg.DataStream, name: str) -> tg.DataStream:
    return (
        by_lane(stream)
        .process(Ordered(name), uid=name, returns=Row)
        .process(FailingMap(), uid=f"{name}-map", returns=Row)
    )


def out(stream: tg.DataStream) -> None:
    by_lane(stream).process(Ordered("last"), uid="last", returns=Row).sink_to(
        LedgerSink("out", flaky_commits=1), uid="out"
    )


def longs(env: tg.StreamEnvironment, source: int, polls: tuple[int, ...]) -> tg.DataStream:
    return env.from_source(Longs(source, SPLITS, PER_SPLIT, polls), uid=f"source-{source}", returns=Row)


def pipeline(env: tg.StreamEnvironment, polls: tuple[int, ...]) -> None:
    out(checked(longs(env, 0, polls), "first"))


def union(env: tg.StreamEnvironment, polls: tuple[int, ...]) -> None:
    out(checked(longs(env, 0, polls).union(longs(env, 1, polls), longs(env, 2, polls)), "first"))


def multi_input(env: tg.StreamEnvironment, polls: tuple[int, ...]) -> None:
    left, right = checked(longs(env, 0, polls), "first"), longs(env, 1, polls)
    out(by_lane(left).connect(by_lane(right)).process(OrderedPair(), uid="pair", returns=Row))


def keyed_broadcast(env: tg.StreamEnvironment, polls: tuple[int, ...]) -> None:
    numbers, rules = checked(longs(env, 0, polls), "first"), longs(env, 1, polls)
    ruled = by_lane(numbers).connect(rules.broadcast()).process(OrderedWithRules(), uid="ruled", returns=Row)
    ruled.sink_to(LedgerSink("out"), uid="out")


def diamond(env: tg.StreamEnvironment, polls: tuple[int, ...]) -> None:
    """The direct way from the source to the last operator skips two layers: it is relayed."""
    numbers = longs(env, 0, polls)
    out(by_lane(checked(numbers, "first")).process(Ordered("second"), uid="second", returns=Row).union(numbers))


TOPOLOGIES: dict[str, Callable[[tg.StreamEnvironment, tuple[int, ...]], None]] = {
    "pipeline": pipeline,
    "union": union,
    "multi_input": multi_input,
    "keyed_broadcast": keyed_broadcast,
    "diamond": diamond,
}
WAYS = {  #: sources, and the ways that each record of them must have taken
    "pipeline": {0: [">first>last"]},
    "union": {source: [">first>last"] for source in range(3)},
    "multi_input": {0: [">first1>pair>last"], 1: ["2>pair>last"]},
    "diamond": {0: [">first>second>last", ">last"]},
}


def expected(topology: str, parallelism: int) -> Counter[Row]:
    def numbers(source: int, way: str) -> list[Row]:
        return [(source * 10 + split, number, way) for split in range(SPLITS) for number in range(PER_SPLIT)]

    if topology == "keyed_broadcast":
        rules = [row for subtask in range(parallelism) for row in numbers(1, f"rule at {subtask}")]
        return Counter(numbers(0, ">first>ruled") + rules)
    return Counter(row for source, ways in WAYS[topology].items() for way in ways for row in numbers(source, way))


MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    **{f"{ms}ms": {"unaligned": True, "aligned_timeout": f"{ms}ms"} for ms in (1, 5, 20, 50)},
}


def build(
    topology: str, parallelism: int, mode: str, storage: str, polls: tuple[int, ...] = BUSY, resume: str | None = None
) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("mirror", parallelism=parallelism)
    env.checkpointing(every="10ms", storage=storage, resume=resume, **MODES[mode])
    env.restart_strategy("fixed-delay", attempts=100, delay="0s")
    TOPOLOGIES[topology](env, polls)
    return env


def assert_lost_doubled_and_out_of_order_are_none(topology: str, parallelism: int) -> None:
    found = Counter(map(tuple, ledger("out").rows()))
    wanted = expected(topology, parallelism)
    assert not found - wanted, f"too many or out of order: {list((found - wanted).items())[:5]}"
    assert not wanted - found, f"lost: {list((wanted - found).items())[:5]}"


def run_with_all_failures(topology: str, parallelism: int, mode: str, seed: int) -> None:
    forget_ledgers()
    to_come.clear()
    to_come.update(STAGES)
    storage = fresh_storage()
    result = InProcessRun(build(topology, parallelism, mode, storage), seed).run()
    assert result.status is JobStatus.FINISHED, result.error
    assert not to_come, f"these did not fail: {to_come}"
    assert result.view.restarts >= len(STAGES) - 1  # two may fall into one attempt
    assert logged_checkpoints(storage, "mirror")
    assert_lost_doubled_and_out_of_order_are_none(topology, parallelism)


def run_rescaled(topology: str, before: int, after: int, mode: str, seed: int, polls: tuple[int, ...] = BUSY) -> int:
    """The driver dies after its second checkpoint; the job continues at another parallelism. Bytes that were in flight."""
    forget_ledgers()
    to_come.clear()
    storage = fresh_storage()
    first = InProcessRun(
        build(topology, before, mode, storage, polls), seed, [Crash("driver.notified", nth=2)], max_drivers=1
    )
    with pytest.raises(AllDriversDied):
        first.run()
    done = [each for each in first.world.view.checkpoints.values() if each.status.value == "COMPLETED"]
    in_flight = sum(part.timings.in_flight_bytes for part in done[-1].acknowledged.values())
    result = InProcessRun(build(topology, after, mode, storage, polls, resume="latest"), seed + 1).run()
    assert result.status is JobStatus.FINISHED, result.error
    assert result.view.restored_from is not None
    if topology != "keyed_broadcast":  # where what comes out depends on the parallelism
        assert_lost_doubled_and_out_of_order_are_none(topology, after)
    else:
        rows = [row for row in ledger("out").rows() if row[0] < 10]
        assert Counter(map(tuple, rows)) == Counter(row for row in expected(topology, 1).elements() if row[0] < 10)
        assert not [row for row in ledger("out").rows() if "ORDER" in row[2]]
    return in_flight


@pytest.mark.parametrize(
    ("topology", "mode", "parallelism"), in_turn(product(TOPOLOGIES, ["aligned", "unaligned", "5ms"]), [2, 1])
)
def test_nothing_is_lost_doubled_or_out_of_order_whatever_fails(topology: str, parallelism: int, mode: str) -> None:
    run_with_all_failures(topology, parallelism, mode, seed=7)


@pytest.mark.parametrize(("topology", "before", "after"), in_turn(TOPOLOGIES, [(2, 3), (3, 2), (1, 2), (2, 1)]))
def test_nothing_is_lost_doubled_or_out_of_order_at_another_parallelism(topology: str, before: int, after: int) -> None:
    run_rescaled(topology, before, after, "unaligned", seed=before)


def test_at_another_parallelism_there_were_records_in_flight() -> None:
    assert sum(run_rescaled("pipeline", 2, 3, "unaligned", seed) > 0 for seed in range(5)) >= 3


@pytest.mark.parametrize("topology", ["pipeline", "diamond"])
def test_at_another_parallelism_with_almost_nothing_in_flight(topology: str) -> None:
    run_rescaled(topology, 2, 3, "unaligned", 1, ALMOST_NOTHING)
    run_rescaled(topology, 3, 2, "unaligned", 2, ALMOST_NOTHING)


@pytest.mark.parametrize(
    ("before", "after"), [("unaligned", "aligned"), ("aligned", "unaligned"), ("unaligned", "5ms")]
)
def test_a_checkpoint_of_one_mode_is_restored_in_another(before: str, after: str) -> None:
    for seed in range(3):
        forget_ledgers()
        to_come.clear()
        storage = fresh_storage()
        crash = [Crash("driver.notified", nth=2)]
        with pytest.raises(AllDriversDied):
            InProcessRun(build("diamond", 2, before, storage), seed, crash, max_drivers=1).run()
        assert InProcessRun(build("diamond", 2, after, storage, resume="latest"), seed).run().error is None
        assert_lost_doubled_and_out_of_order_are_none("diamond", 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_whole_table(topology: str) -> None:
    for number, (parallelism, mode) in enumerate(itertools.product([1, 2, 5], MODES)):
        run_with_all_failures(topology, parallelism, mode, seed=100 + number)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_whole_table_at_another_parallelism(topology: str) -> None:
    pairs = [(1, 2), (2, 1), (2, 5), (5, 2), (3, 4), (4, 3), (1, 5), (5, 1)]
    for number, ((before, after), mode) in enumerate(itertools.product(pairs, ["unaligned", "1ms", "20ms"])):
        run_rescaled(topology, before, after, mode, seed=200 + number)
        run_rescaled(topology, before, after, mode, 300 + number, ALMOST_NOTHING)
