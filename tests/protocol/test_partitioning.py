"""Which subtasks get a stream's records: for each partitioning, and for unions of streams that each have their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.errors import ConfigurationError, GraphError, UserCodeFailed
from tidegate.graph.logical import Partitioning
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, Ask, InProcessRun, run_in_process

PARALLELISM = 3
ROWS = 60


class WithPlace(tg.ProcessFunction):
    """Says in which subtask each record is."""

    def process_element(self, value: tuple[int, ...], ctx: tg.Context) -> Iterator[tuple[int, ...]]:
        yield (*value, ctx.subtask)


WAYS: dict[str, Callable[[tg.DataStream], tg.DataStream]] = {
    "forward": lambda stream: stream,
    "rebalance": lambda stream: stream.rebalance(),
    "shuffle": lambda stream: stream.shuffle(),
    "custom": lambda stream: stream.partition_custom(by_last_digit, 0),
    "broadcast": lambda stream: stream.broadcast(),
    "global": lambda stream: stream.global_(),
}


def by_last_digit(number: int, receivers: int) -> int:
    return number % 10 % receivers


def numbers(env: tg.StreamEnvironment, uid: str, start: int) -> tg.DataStream:
    """Records (number, the subtask that read it)."""
    stream = env.from_source(tg.NumberSequence(start, start + ROWS - 1), uid=uid).map(
        lambda n: (n,), returns=tuple[int]
    )
    return stream.process(WithPlace(), returns=tuple[int, int])


def assert_placed(way: str, found: list[tuple[int, int, int]], start: int) -> None:
    """`found` are (number, subtask before, subtask after)."""
    wanted = range(start, start + ROWS)
    if way == "broadcast":
        assert sorted((n, after) for n, _, after in found) == sorted(itertools.product(wanted, range(PARALLELISM)))
        return
    assert sorted(n for n, _, _ in found) == list(wanted)
    match way:
        case "forward":
            assert all(before == after for _, before, after in found)
        case "global":
            assert {after for _, _, after in found} == {0}
        case "custom":
            assert all(after == n % 10 % PARALLELISM for n, _, after in found)
        case "rebalance" | "shuffle":
            assert {after for _, _, after in found} == set(range(PARALLELISM))
            assert any(before != after for _, before, after in found)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(WAYS, WAYS)))
def test_each_stream_of_a_union_keeps_its_own_partitioning(first: str, second: str) -> None:
    env = tg.StreamEnvironment("union", parallelism=PARALLELISM)
    env.checkpointing(every="20ms", storage=fresh_storage())
    one, other = WAYS[first](numbers(env, "one", 0)), WAYS[second](numbers(env, "other", 1000))
    both = one.union(other)
    both.process(WithPlace(), uid="after", returns=tuple[int, int, int]).collect(uid="out")

    result = run_in_process(env)

    assert result.error is None
    rows = result.collected.rows("out")
    assert_placed(first, [row for row in rows if row[0] < 1000], 0)
    assert_placed(second, [row for row in rows if row[0] >= 1000], 1000)


def test_a_partitioning_given_to_a_union_holds_for_all_of_it() -> None:
    env = tg.StreamEnvironment("union", parallelism=PARALLELISM)
    both = numbers(env, "one", 0).union(numbers(env, "other", 1000).broadcast())
    both.rebalance().process(WithPlace(), uid="after").collect(uid="out")

    edges = [edge for edge in plan_job("union", env._graph, PARALLELISM).edges if edge.edge.downstream == "after"]

    assert [edge.partitioning for edge in edges] == [Partitioning.REBALANCE, Partitioning.REBALANCE]


def test_a_union_that_is_broadcast_in_part_is_no_broadcast_side() -> None:
    env = tg.StreamEnvironment("union", parallelism=PARALLELISM)
    records, rules = numbers(env, "records", 0), numbers(env, "rules", 1000)
    in_part = rules.broadcast().union(numbers(env, "more rules", 2000))

    with pytest.raises(GraphError, match="broadcast"):
        records.key_by(0).connect(in_part)
    records.key_by(0).connect(in_part.broadcast())


def test_all_records_come_to_one_subtask_without_a_key() -> None:
    env = tg.StreamEnvironment("global", parallelism=PARALLELISM)
    env.checkpointing(every="20ms", storage=fresh_storage())
    numbers(env, "in", 0).global_().process(WithPlace(), returns=tuple[int, int, int], parallelism=1).collect(uid="out")

    result = run_in_process(env)

    assert_placed("global", result.collected.rows("out"), 0)


# -- rescale: each sender has receivers of its own ---------------------------------------------------------------------


def plan_of(before: int, after: int, way: Callable[[tg.DataStream], tg.DataStream]) -> JobPlan:
    env = tg.StreamEnvironment("widths")
    stream = way(env.from_sequence(1, 10, uid="in", parallelism=before))
    stream.map(lambda n: n, uid="after", returns=int, parallelism=after).collect(uid="out").set_parallelism(after)
    return plan_job("widths", env._graph, 1)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(range(1, 8), repeat=2)))
def test_of_a_rescale_each_sender_has_its_part_of_the_receivers_or_shares_one(before: int, after: int) -> None:
    (edge,) = [e for e in plan_of(before, after, lambda s: s.rescale()).edges if e.edge.downstream == "after"]

    reached = [list(edge.receivers_of(origin)) for origin in range(before)]

    if before <= after:
        assert [target for targets in reached for target in targets] == list(range(after)), "each has one sender"
        assert max(map(len, reached)) - min(map(len, reached)) <= 1
    else:
        assert {len(targets) for targets in reached} == {1}
        shares = [len(edge.senders_to(target)) for target in range(after)]
        assert sum(shares) == before
        assert max(shares) - min(shares) <= 1
    assert all(origin in edge.senders_to(target) for origin, targets in enumerate(reached) for target in targets)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 3), (3, 3)])
def test_a_rescale_sends_where_the_plan_says_and_every_subtask_ends(before: int, after: int) -> None:
    env = tg.StreamEnvironment("rescaled")
    env.checkpointing(every="20ms", storage=fresh_storage())
    read = env.from_sequence(0, 199, uid="in", parallelism=before).map(lambda n: (n,), returns=tuple[int])
    placed = read.set_parallelism(before).process(WithPlace(), returns=tuple[int, int], parallelism=before)
    placed.rescale().process(WithPlace(), uid="after", returns=tuple[int, int, int], parallelism=after).collect(
        uid="out"
    )

    rows = run_in_process(env).collected.rows("out")

    (edge,) = [e for e in plan_job("rescaled", env._graph, 1).edges if e.edge.downstream == "after"]
    assert sorted(row[0] for row in rows) == list(range(200))
    assert {(row[1], row[2]) for row in rows} == {(o, t) for o in range(before) for t in edge.receivers_of(o)}


# -- the user's own ----------------------------------------------------------------------------------------------------


class Misplaced(tg.ProcessFunction):
    """Says which records are not where the partitioner sends them, now that there are so many subtasks."""

    def process_element(self, number: int, ctx: tg.Context) -> Iterator[tuple[int, bool]]:
        yield (number, ctx.subtask != by_last_digit(number, ctx.parallelism))


def custom_job(storage: str, parallelism: int, resume: str | None = None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("custom", parallelism=parallelism)
    env.checkpointing(every="10ms", storage=storage, resume=resume, unaligned=True)
    numbers = env.from_sequence(0, 399, uid="in", parallelism=2)
    placed = numbers.partition_custom(by_last_digit, lambda n: n).process(
        Misplaced(), uid="placed", returns=tuple[int, bool]
    )
    placed.sink_to(LedgerSink("placed"), uid="out")
    return env


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4)])
def test_records_in_flight_find_their_subtask_anew_at_another_parallelism(before: int, after: int) -> None:
    resumed = 0
    for seed in range(6):
        forget_ledgers()
        storage = fresh_storage()
        try:
            crash = [Crash("driver.notified", nth=1 + seed % 4)]
            InProcessRun(custom_job(storage, before), seed, crash, max_drivers=1).run()
        except AllDriversDied:
            resumed += 1
            run_in_process(custom_job(storage, after, resume="latest"), seed)
        assert sorted(ledger("placed").rows()) == [(n, False) for n in range(400)]
    assert resumed, "no run was cut short"


@pytest.mark.parametrize("wrong", [3, -1, "1", None, True])
def test_a_partitioner_that_gives_no_subtask_is_told_so(wrong: object) -> None:
    env = tg.StreamEnvironment("wrong", parallelism=2)
    env.from_sequence(0, 9, uid="in").partition_custom(lambda key, receivers: wrong, lambda n: n).collect(uid="out")  # type: ignore[arg-type,return-value]

    error = run_in_process(env).error

    assert isinstance(error, UserCodeFailed)
    assert f"the function of partition_custom gave {wrong!r}; it must give the number of a subtask, 0 to 1 here" in str(
        error
    )


# -- forward, when it is asked for --------------------------------------------------------------------------------------


def forward_job(storage: str, parallelism: int) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("forward", parallelism=parallelism)
    env.checkpointing(every="20ms", storage=storage)
    read = env.from_sequence(0, 999, uid="in")
    read.forward().map(lambda n: n, uid="fixed", returns=int, parallelism=2).sink_to(LedgerSink("out"), uid="out")
    return env


def test_forward_between_different_widths_is_refused_with_both_lines() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"sequence \(uid in\) at .*:\d+ has 3 and map \(uid fixed\) at .*:\d+ has 2\. Give both the same one, or leave",
    ):
        plan_job("forward", forward_job(fresh_storage(), 3)._graph, 3)


def test_a_rescale_that_forward_forbids_is_refused_and_the_job_goes_on() -> None:
    forget_ledgers()
    request = SavepointRequest(None, stop=StopMode.RESCALE, parallelism=3)

    result = run_in_process(forward_job(fresh_storage(), 2), asks=[Ask(request, after_checkpoints=1)])

    with pytest.raises(ConfigurationError, match=r"forward\(\) hands each record to the subtask of the same number"):
        request.future.result(0)
    assert result.status is tg.JobStatus.FINISHED
    assert sorted(ledger("out").rows()) == list(range(1000))
