"""Which subtasks get a stream's records: for each partitioning, and for unions of streams that each have their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.errors import GraphError
from tidegate.graph.logical import Partitioning
from tidegate.graph.plan import plan_job
from tidegate.testing.runner import run_in_process

PARALLELISM = 3
ROWS = 60


class WithPlace(tg.ProcessFunction):
    """Says in which subtask each record is."""

    def process_element(self, value: tuple[int, ...], ctx: tg.Context) -> Iterator[tuple[int, ...]]:
        yield (*value, ctx.subtask)


WAYS: dict[str, Callable[[tg.DataStream], tg.DataStream]] = {
    "forward": lambda stream: stream,
    "rebalance": lambda stream: stream.rebalance(),
    "broadcast": lambda stream: stream.broadcast(),
    "global": lambda stream: stream.global_(),
}


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
        case "rebalance":
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
