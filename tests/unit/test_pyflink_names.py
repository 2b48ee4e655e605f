"""What a program for PyFlink may say as it stands: names of settings, types, keys and times. Nothing runs here."""

from __future__ import annotations

import sys
from datetime import timedelta
from decimal import Decimal

import pytest

import tidegate as tg
from tidegate import pyflink as pf
from tidegate.errors import ConfigurationError, GraphError, TypeDeclarationError
from tidegate.graph.logical import Chaining, Operator
from tidegate.graph.plan import plan_job
from tidegate.storage.store import DRIVER_MEMORY
from tidegate.testing.ledger_sink import LedgerSink


def environment() -> tg.StreamEnvironment:
    return tg.StreamEnvironment("names")


def operator(env: tg.StreamEnvironment, uid: str) -> Operator:
    return {str(key): value for key, value in env._graph.operators.items()}[uid]


# -- options of an operator, after it was made ----------------------------------------------------------------------------


def test_options_that_follow_say_what_keywords_say() -> None:
    said, followed = environment(), environment()
    said.from_sequence(1, 9, uid="in").map(str, uid="text", name="to text", parallelism=3).sink_to(
        LedgerSink("x"), uid="out", name="the end", parallelism=2
    )
    stream = followed.from_sequence(1, 9).uid("in").map(str).uid("text").name("to text").set_parallelism(3)
    stream.sink_to(LedgerSink("x")).uid("out").name("the end").set_parallelism(2)

    assert said.explain() == followed.explain()
    followed._graph.check_uids()


def test_every_option_reaches_the_operator() -> None:
    env = environment()
    stream = env.from_sequence(1, 9).uid("in").key_by(lambda n: n % 2, key_type=int).count().uid("counts")

    assert stream.set_max_parallelism(7).start_new_chain() is stream
    assert operator(env, "counts").max_parallelism == 7
    assert operator(env, "counts").chaining is Chaining.HEAD
    stream.disable_chaining()
    assert operator(env, "counts").chaining is Chaining.NEVER


def test_streams_that_were_made_before_an_operator_got_its_uid_still_come_from_it() -> None:
    env = environment()
    numbers = env.from_sequence(1, 9).uid("in")
    doubled = numbers.map(lambda n: 2 * n, returns=int)
    spread, late = doubled.rebalance(), doubled.side_output(tg.OutputTag("late", int))
    before = doubled.map(str)
    doubled.uid("doubled")
    for uid, stream in (("a", spread), ("b", late), ("c", before), ("d", doubled)):
        stream.sink_to(LedgerSink(uid), uid=uid)
    other = numbers.map(lambda n: 3 * n, returns=int)  # would have been called as the first one was
    other.sink_to(LedgerSink("e"), uid="e")

    upstream = {edge.downstream: edge.upstream for edge in env._graph.edges}
    assert upstream["a"] == upstream["b"] == upstream["d"] == "doubled"
    assert upstream[upstream["c"]] == "doubled"
    assert upstream["e"] not in ("doubled", "in")
    assert len(plan_job("names", env._graph, 1).operators) == len(env._graph.operators) == 9


def test_a_uid_that_is_taken_is_refused_with_both_lines() -> None:
    env = environment()
    env.from_sequence(1, 9, uid="mine")
    stream = env.from_sequence(1, 9)

    with pytest.raises(GraphError, match=r"'mine' is given twice: to sequence at .*:\d+ and to sequence at .*:\d+"):
        stream.uid("mine")
    stream.uid("another")
    stream.uid("another")
    assert sorted(env._graph.operators) == ["another", "mine"]


def test_an_option_of_several_operators_or_of_none_is_refused() -> None:
    env = environment()
    one, other = env.from_sequence(1, 9).uid("one"), env.from_sequence(1, 9).uid("other")

    for stream in (one.union(other), one.rebalance(), one.side_output(tg.OutputTag("late"))):
        with pytest.raises(GraphError, match=r"uid\(\) belongs to one operator: call it right after map"):
            stream.uid("both")


@pytest.mark.parametrize("wrong", [0, -1, "2", 1.5, True])
def test_a_parallelism_that_cannot_be_is_refused(wrong: int) -> None:
    env = environment()
    stream = env.from_sequence(1, 9).uid("in")

    with pytest.raises(ConfigurationError, match="parallelism of in must be a positive integer"):
        stream.set_parallelism(wrong)
    with pytest.raises(ConfigurationError, match="max_parallelism of in must be a positive integer"):
        stream.set_max_parallelism(wrong)


# -- types -------------------------------------------------------------------------------------------------------------


def test_types_are_annotations() -> None:
    types = pf.Types

    assert types.TUPLE([types.STRING(), types.LONG(), types.FLOAT()]) == tuple[str, int, float]
    assert types.ROW([types.BOOLEAN(), types.BIG_DEC()]) == tuple[bool, Decimal]
    assert types.MAP(types.STRING(), types.LIST(types.INT())) == dict[str, list[int]]
    assert types.PRIMITIVE_ARRAY(types.DOUBLE()) == types.OBJECT_ARRAY(types.DOUBLE()) == list[float]
    assert types.PICKLED_BYTE_ARRAY() is tg.Pickled
    assert pf.Row("a", 1) == ("a", 1)


def test_rows_with_names_are_told_to_be_dataclasses() -> None:
    with pytest.raises(TypeDeclarationError, match="@dataclass"):
        pf.Row(name="a")
    with pytest.raises(TypeDeclarationError, match="@dataclass"):
        pf.Types.ROW_NAMED(["name"], [pf.Types.STRING()])


def test_a_type_may_be_said_in_pyflinks_words_and_places() -> None:
    env = environment()
    pairs = env.from_collection([("a", 1)], type_info=pf.Types.TUPLE([pf.Types.STRING(), pf.Types.INT()]))
    same = env.from_collection(collection=[("a", 1)], type=tuple[str, int])

    assert pairs.type.equals(same.type)
    assert pairs.map(lambda p: p[0], pf.Types.STRING()).type.name == "str"
    assert pairs.flat_map(lambda p: [p], output_type=tuple[str, int]).type.equals(same.type)
    with pytest.raises(ConfigurationError, match="returns= and output_type= say the same"):
        pairs.map(lambda p: p[0], str, returns=str)
    with pytest.raises(ConfigurationError, match="type= and type_info= say the same"):
        env.from_collection([1], int, type=int)


def test_a_key_may_be_said_in_pyflinks_way() -> None:
    class ByName(pf.KeySelector):
        def get_key(self, value: tuple[str, int]) -> str:
            return value[0]

    pairs = environment().from_collection([("a", 1)], type=tuple[str, int])

    assert pairs.key_by(lambda p: p[0], pf.Types.STRING())._key.key_annotation is str
    assert pairs.key_by(lambda p: p, tuple[str, int])._key.key_annotation == tuple[str, int]
    assert pairs.key_by(ByName())._key.row_key()(("a", 1)) == "a"
    assert pairs.key_by(0, 1)._key.fields == ("f0", "f1"), "names and positions are as they were"
    with pytest.raises(ConfigurationError, match="one function"):
        pairs.key_by(lambda p: p[0], 1)


# -- event time --------------------------------------------------------------------------------------------------------


class At(pf.TimestampAssigner):
    def extract_timestamp(self, value: tuple[int, str], record_timestamp: int) -> int:
        assert record_timestamp == -(2**63), "it had none before"
        return value[0]


def test_a_watermark_strategy_may_be_said_in_pyflinks_way() -> None:
    strategy = (
        pf.WatermarkStrategy.for_bounded_out_of_orderness(pf.Duration.of_seconds(2))
        .with_timestamp_assigner(At())
        .with_idleness(pf.Duration.of_minutes(1))
    )
    growing = pf.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, before: value[0])

    assert (strategy.out_of_orderness_ms, strategy.idle_after_s) == (2000, 60.0)
    assert callable(strategy.timestamp)
    assert callable(growing.timestamp)
    assert strategy.timestamp((7, "a")) == growing.timestamp((7, "a")) == 7
    assert pf.Time.milliseconds(1500) == timedelta(seconds=1.5) == pf.Duration.of_millis(1500)


def test_a_strategy_that_does_not_say_where_timestamps_are_is_refused_where_it_is_used() -> None:
    numbers = environment().from_sequence(1, 9)

    with pytest.raises(ConfigurationError, match=r"does not say where .* add \.with_timestamp_assigner"):
        numbers.assign_timestamps_and_watermarks(tg.WatermarkStrategy.for_monotonous_timestamps())


# -- the environment ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "name"), [("/home/me/word_count.py", "word_count"), ("my job.py", "my-job"), ("", "job"), ("-c", "c")]
)
def test_a_job_without_a_name_is_called_like_its_program(
    program: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program])

    assert tg.StreamExecutionEnvironment.get_execution_environment().name == name


def test_settings_of_the_environment() -> None:
    env = tg.StreamExecutionEnvironment("names").set_parallelism(3)
    env.enable_checkpointing(1000, pf.CheckpointingMode.AT_LEAST_ONCE)

    assert env.parallelism == 3
    assert (env.config().interval_s, env.config().mode, env.config().storage) == (1.0, "at-least-once", DRIVER_MEMORY)
    env.checkpointing(every="5s", storage="file:///tmp/names").enable_checkpointing(2000)
    assert (env.config().interval_s, env.config().storage) == (2.0, "file:///tmp/names")
    with pytest.raises(ConfigurationError, match="positive integer"):
        env.set_parallelism(0)


def test_a_name_that_cannot_be_a_folder_is_refused_before_anything_starts() -> None:
    env = environment()
    env.from_sequence(1, 9).print()

    with pytest.raises(ConfigurationError, match="'word count' cannot be the name of a job"):
        env.execute("word count")


def test_every_name_of_the_module_is_there() -> None:
    assert all(getattr(pf, name) is not None for name in pf.__all__)
    assert tg.StreamExecutionEnvironment is tg.StreamEnvironment is pf.StreamExecutionEnvironment
