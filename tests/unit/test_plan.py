"""From the logical graph to layers of slots: chaining, layers, relays, offsets, refusals. Pure: nothing runs."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.errors import ConfigurationError, GraphError
from tidegate.graph.logical import Partitioning
from tidegate.graph.plan import MAX_LAYER_WIDTH, Chain, JobPlan, PlannedEdge, plan_job
from tidegate.ids import SlotId
from tidegate.testing.ledger_sink import LedgerSink

sys.path.insert(0, str(Path(__file__).parents[1] / "protocol"))
from random_graphs import build, random_graph


class Nothing(tg.ProcessFunction):
    def process_element(self, value: int, ctx: tg.Context) -> None: ...


class NothingKeyed(tg.KeyedProcessFunction):
    def process_element(self, value: int, ctx: tg.Context) -> None: ...


class NothingTwice(tg.CoProcessFunction):
    def process_element1(self, value: int, ctx: tg.Context) -> None: ...
    def process_element2(self, value: int, ctx: tg.Context) -> None: ...


def job(parallelism: int = 2) -> tg.StreamEnvironment:
    return tg.StreamEnvironment("job", parallelism=parallelism)


def source(env: tg.StreamEnvironment, uid: str = "source", parallelism: int | None = None) -> tg.DataStream:
    return env.from_collection([1, 2, 3], uid=uid, parallelism=parallelism)


def sink(stream: tg.DataStream, uid: str = "out", **options: Any) -> None:
    stream.sink_to(LedgerSink(uid), uid=uid, **options)


def planned(env: tg.StreamEnvironment, stored: dict[str, int] | None = None) -> JobPlan:
    return plan_job("job", env._graph, env.parallelism, stored)


def chains(plan: JobPlan) -> list[list[tuple[str, ...]]]:
    """The uids of each chain, by layer."""
    return [[tuple(op.uid for op in chain.operators) for chain in layer.chains] for layer in plan.layers]


def chain_of(plan: JobPlan, uid: str) -> Chain:
    return next(
        chain for layer in plan.layers for chain in layer.chains for operator in chain.operators if operator.uid == uid
    )


def network(plan: JobPlan) -> list[PlannedEdge]:
    """The edges that cross slots; those inside a chain are there for a restore only."""
    return [edge for edge in plan.edges if not edge.is_chained]


def edge_to(plan: JobPlan, uid: str, upstream: str | None = None) -> PlannedEdge:
    (edge,) = [e for e in network(plan) if e.edge.downstream == uid and upstream in (None, e.edge.upstream)]
    return edge


# -- chains -----------------------------------------------------------------------------------------------------------


def test_forward_edges_of_equal_parallelism_become_one_chain_and_need_no_exchange() -> None:
    env = job()
    sink(source(env).map(lambda v: v, uid="a", returns=int).filter(bool, uid="b"))
    plan = planned(env)

    assert chains(plan) == [[("source", "a", "b", "out")]]
    assert network(plan) == []
    assert plan.slots == [SlotId(0, 0), SlotId(0, 1)]


def test_a_chain_may_be_a_tree() -> None:
    env = job()
    numbers = source(env)
    sink(numbers.map(lambda v: v, uid="a", returns=int), "out-a")
    sink(numbers.map(lambda v: v, uid="b", returns=int), "out-b")
    plan = planned(env)

    assert chains(plan) == [[("source", "a", "out-a", "b", "out-b")]]
    links = {op.uid: [link.downstream for link in op.chained] for op in plan.operators}
    assert links == {"source": ["a", "b"], "a": ["out-a"], "b": ["out-b"], "out-a": [], "out-b": []}


@pytest.mark.parametrize("how", ["key", "rebalance", "broadcast", "parallelism"])
def test_any_other_edge_cuts_the_chain(how: str) -> None:
    env = job()
    numbers = source(env)
    match how:
        case "key":
            out = numbers.key_by(lambda v: v, key_type=int).process(NothingKeyed(), uid="next")
        case "rebalance":
            out = numbers.rebalance().process(Nothing(), uid="next")
        case "broadcast":
            out = numbers.broadcast().process(Nothing(), uid="next")
        case "parallelism":
            out = numbers.process(Nothing(), uid="next", parallelism=3)
    sink(out, parallelism=3 if how == "parallelism" else None)
    plan = planned(env)

    assert chains(plan) == [[("source",)], [("next", "out")]]
    kinds = {"key": Partitioning.HASH, "broadcast": Partitioning.BROADCAST}
    assert edge_to(plan, "next").partitioning is kinds.get(how, Partitioning.REBALANCE)


def test_an_operator_with_two_inputs_begins_a_chain_even_when_both_are_forward() -> None:
    env = job()
    a, b = source(env, "a"), source(env, "b")
    sink(a.union(b).process(Nothing(), uid="both"))
    plan = planned(env)

    assert chains(plan) == [[("a",), ("b",)], [("both", "out")]]
    assert {edge.partitioning for edge in network(plan)} == {Partitioning.FORWARD}


def test_a_stream_may_be_both_inputs_of_one_operator() -> None:
    env = job()
    numbers = source(env)
    sink(numbers.connect(numbers).process(NothingTwice(), uid="both"))
    plan = planned(env)

    assert [(edge.edge.upstream, edge.edge.input_index) for edge in network(plan)] == [("source", 0), ("source", 1)]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("disable_chaining", [[("source", "a")], [("b",)], [("c", "out")]]),
        ("start_new_chain", [[("source", "a")], [("b", "c", "out")]]),
    ],
)
def test_a_chain_is_cut_where_the_program_says_so(option: str, expected: list[Any]) -> None:
    env = job()
    before = source(env).map(lambda v: v, uid="a", returns=int)
    cut = getattr(before.map(lambda v: v, uid="b", returns=int), option)()
    sink(cut.map(lambda v: v, uid="c", returns=int))
    plan = planned(env)

    assert chains(plan) == expected
    assert {edge.partitioning for edge in network(plan)} == {Partitioning.FORWARD}, "records stay in their subtask"


# -- layers and relays ------------------------------------------------------------------------------------------------


def skipping() -> JobPlan:
    """source -> a -> b -> both, and source -> both: an edge that skips two layers."""
    env = job(1)
    numbers = source(env)
    deep = numbers.rebalance().map(lambda v: v, uid="a", returns=int).rebalance().map(lambda v: v, uid="b", returns=int)
    sink(deep.rebalance().connect(numbers.rebalance()).process(NothingTwice(), uid="both", parallelism=4))
    return planned(env)


def test_a_chain_is_one_layer_below_the_lowest_that_it_reads_from() -> None:
    assert [[chain[0] for chain in layer] for layer in chains(skipping())] == [
        ["source"],
        ["a"],
        ["b"],
        ["both"],
        ["out"],
    ]


def test_a_layer_is_as_wide_as_the_widest_edge_that_it_relays() -> None:
    assert [layer.width for layer in skipping().layers] == [1, 4, 4, 4, 1]


def test_the_relaying_slot_is_a_fixed_function_of_edge_and_target() -> None:
    plan = skipping()
    edge = edge_to(plan, "both", "source")
    assert (edge.from_layer, edge.to_layer) == (0, 3)
    ways = {
        target: tuple(plan.next_slot(edge, target, layer) for layer in range(edge.from_layer, edge.to_layer))
        for target in range(4)
    }

    assert ways == {t: tuple(plan.next_slot(edge, t, layer) for layer in range(3)) for t in range(4)}
    assert {way[-1] for way in ways.values()} == {0, 1, 2, 3}
    for layer in (0, 1):  # the load of relaying is spread
        assert {way[layer] for way in ways.values()} == {0, 1, 2, 3}
    receiver = chain_of(plan, "both")
    assert all(way[-1] == plan.slot_of(receiver, target).index for target, way in ways.items())


# -- slots ------------------------------------------------------------------------------------------------------------


def test_narrow_chains_of_one_layer_sit_in_different_slots() -> None:
    env = job(1)
    wide = source(env, "wide", parallelism=4)
    for name in "abc":
        sink(source(env, name), f"out-{name}")
    sink(wide, "out-wide", parallelism=4)
    plan = planned(env)

    assert plan.layers[0].width == 4
    narrow = [plan.slot_of(chain_of(plan, name), 0) for name in "abc"]
    assert len(set(narrow)) == 3


def test_offsets_wrap_around() -> None:
    env = job(1)
    for name, parallelism in [("a", 3), ("b", 2), ("c", 2)]:
        sink(source(env, name, parallelism), f"out-{name}", parallelism=parallelism)
    plan = planned(env)

    assert [plan.slot_of(chain_of(plan, "b"), s).index for s in range(2)] == [0, 1]
    assert [plan.slot_of(chain_of(plan, "c"), s).index for s in range(2)] == [2, 0]


@pytest.mark.parametrize("seed", range(60))
def test_in_any_graph_every_subtask_has_one_slot_and_every_frame_arrives_where_it_is_for(seed: int) -> None:
    env = build(random_graph(random.Random(seed)))
    plan = plan_job("job", env._graph, 1)

    for layer_index, layer in enumerate(plan.layers):
        for chain in layer.chains:
            assert chain.layer == layer_index
            assert chain.parallelism <= layer.width
            hosts = [plan.slot_of(chain, subtask) for subtask in range(chain.parallelism)]
            assert len(set(hosts)) == chain.parallelism
            for index in range(layer.width):
                slot = SlotId(layer_index, index)
                subtask = plan.subtask_in(chain, slot)
                assert (hosts.index(slot) if slot in hosts else None) == subtask
    assert Counter(op.uid for op in plan.operators) == Counter(list(env._graph.operators))
    for edge in network(plan):
        assert edge.to_layer > edge.from_layer
        receiver = chain_of(plan, edge.edge.downstream)
        assert receiver.head.uid == edge.edge.downstream
        for target in range(edge.down_parallelism):
            for layer_index in range(edge.from_layer, edge.to_layer):
                assert plan.next_slot(edge, target, layer_index) < plan.layers[layer_index + 1].width
            last = plan.next_slot(edge, target, edge.to_layer - 1)
            assert SlotId(edge.to_layer, last) == plan.slot_of(receiver, target)
    linked = {(op.uid, link.downstream) for op in plan.operators for link in op.chained}
    wired = {(edge.edge.upstream, edge.edge.downstream) for edge in network(plan)}
    assert linked | wired == {(edge.upstream, edge.downstream) for edge in env._graph.edges}
    assert not linked & wired
    assert {(edge.edge.upstream, edge.edge.downstream) for edge in plan.edges if edge.is_chained} == linked
    assert [edge.index for edge in plan.edges] == list(range(len(plan.edges)))


# -- key groups -------------------------------------------------------------------------------------------------------


def keyed(max_parallelism: int | None = None, parallelism: int = 2) -> tg.StreamEnvironment:
    env = job(parallelism)
    out = source(env).key_by(lambda v: v, key_type=int)
    sink(out.process(NothingKeyed(), uid="keyed", returns=int, max_parallelism=max_parallelism))
    return env


def test_the_number_of_key_groups_is_the_users_else_the_checkpoints_else_derived() -> None:
    assert edge_to(planned(keyed(256)), "keyed").down_max_parallelism == 256
    assert edge_to(planned(keyed(256), {"keyed": 512}), "keyed").down_max_parallelism == 256
    assert edge_to(planned(keyed(), {"keyed": 512}), "keyed").down_max_parallelism == 512
    assert edge_to(planned(keyed()), "keyed").down_max_parallelism == 128


def test_more_subtasks_than_key_groups_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="parallelism 4 but max_parallelism 3; raise the latter"):
        planned(keyed(3, parallelism=4))


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_job_without_operators_or_without_a_sink_is_refused() -> None:
    with pytest.raises(GraphError, match="no operators"):
        planned(job())
    env = job()
    source(env).map(lambda v: v, returns=int)
    with pytest.raises(GraphError, match="no sink"):
        planned(env)


def test_a_layer_that_is_too_wide_is_refused_with_the_limit() -> None:
    env = job(1)
    sink(source(env, parallelism=MAX_LAYER_WIDTH + 1))
    with pytest.raises(ConfigurationError, match=r"129 slots wide.*the limit is 128"):
        planned(env)


def test_a_layer_that_becomes_too_wide_by_relaying_is_refused() -> None:
    env = job(1)
    numbers = source(env)
    deep = numbers.rebalance().map(lambda v: v, uid="a", returns=int)
    sink(deep.rebalance().union(numbers.rebalance()).map(lambda v: v, uid="b", returns=int, parallelism=200))
    with pytest.raises(ConfigurationError, match="layer 1 of the job is 200 slots wide"):
        planned(env)


def test_a_uid_that_is_given_twice_is_refused_with_both_lines() -> None:
    env = job()
    source(env, "same")
    with pytest.raises(GraphError, match="is given twice") as caught:
        source(env, "same")
    assert str(caught.value).count(Path(__file__).name) == 2


def test_a_stream_that_is_connected_twice_to_one_input_is_refused() -> None:
    env = job()
    numbers = source(env)
    with pytest.raises(GraphError, match="connected twice to the same input"):
        numbers.union(numbers).map(lambda v: v, uid="a", returns=int)


def test_state_that_is_stored_without_a_uid_is_refused() -> None:
    class Counts(tg.KeyedProcessFunction):
        count = tg.ValueState(int, default=0)

        def process_element(self, value: int, ctx: tg.Context) -> None: ...

    env = job()
    counts = source(env).key_by(lambda v: v, key_type=int).process(Counts())
    with pytest.raises(
        GraphError, match=r'^Counts at .* needs a uid.* write uid="counts" in the call, or \.uid\("counts"\)'
    ):
        env._graph.check_uids()
    counts.uid("counts")
    env._graph.check_uids()


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, "2"])
def test_a_parallelism_that_is_none_is_refused(parallelism: Any) -> None:
    with pytest.raises(ConfigurationError, match="positive integer"):
        source(job(), parallelism=parallelism)


@pytest.mark.parametrize("operation", ["count", "sum", "min", "max", "reduce", "aggregate"])
def test_a_misspelt_option_of_a_built_in_operation_is_refused(operation: str) -> None:
    keyed = tg.StreamEnvironment("job").from_sequence(1, 9, uid="numbers").key_by(lambda n: n % 3, key_type=int)
    given = {"sum": (0,), "min": (0,), "max": (0,), "reduce": (max,), "aggregate": (None,)}.get(operation, ())

    with pytest.raises(TypeError, match="paralelism"):
        getattr(keyed, operation)(*given, uid="c", paralelism=7)
