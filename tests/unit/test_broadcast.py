"""The broadcast pattern up close: who may write, functions applied to the state of all keys, graphs that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from rocksdb_kit import NONE, rocks_backends
from state_kit import backend_for

import tidegate as tg
from tidegate.batch import Batch
from tidegate.errors import ConfigurationError, GraphError, TypeDeclarationError
from tidegate.graph.plan import plan_job
from tidegate.ids import CheckpointId
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.broadcast import broadcast_states
from tidegate.state.keys import key_type
from tidegate.task.operators.broadcast import BroadcastOperator, KeyedBroadcastOperator
from tidegate.task.operators.timers import Time
from tidegate.testing.clock import ManualClock
from tidegate.types import record_type
from tidegate.wire.control import SubtaskRestore

PAIR = tuple[str, int]


class Limits(tg.KeyedBroadcastProcessFunction):
    """Counts each user's records; rules say what to do with all counts, or try what is not allowed."""

    count = tg.ValueState(int, default=0)
    limits = tg.BroadcastState(str, int)

    def process_element(self, record: tuple[str, int], ctx: tg.Context) -> Iterator[tuple[str, int]]:
        self.count.set(self.count.get() + record[1])
        if record[1] < 0:
            self.limits["x"] = 1
        yield (ctx.key, self.limits.get("max", 0))

    def process_broadcast_element(
        self, rule: tuple[str, int], ctx: tg.BroadcastContext
    ) -> Iterator[tuple[str, int]] | None:
        name, amount = rule
        seen: list[tuple[str, int]] = []
        if name == "multiply":
            ctx.apply_to_keyed_state(self.count, lambda key, count: count.set(count.get() * amount))
        elif name == "list":
            ctx.apply_to_keyed_state("count", lambda key, count: seen.append((ctx.key, count.get())))
        elif name == "forget":
            ctx.apply_to_keyed_state(self.count, lambda key, count: count.clear())
        elif name == "timer":
            ctx.timer_service()
        elif name == "wrong":
            ctx.apply_to_keyed_state(self.limits, lambda key, state: None)
        elif name == "read":
            self.count.get()
        else:
            self.limits[name] = amount
        return iter(sorted(seen))

    def on_timer(self, timestamp: int, ctx: tg.Context) -> None:
        pass


class Expiring(Limits):
    count = tg.ValueState(int, default=0, ttl=tg.Ttl("10s"))


class Driven:
    """One subtask of the operator, without a slot."""

    def __init__(self, function: Any, backend: KeyedStateBackend | None, clock: ManualClock) -> None:
        env = tg.StreamEnvironment("broadcast")
        rules = env.from_collection([("a", 1)], uid="rules", type=PAIR).broadcast()
        records: Any = env.from_collection([("a", 1)], uid="records", type=PAIR)
        if backend is not None:
            records = records.key_by(0)
        records.connect(rules).process(function, uid="limits", returns=PAIR).print()
        plan = plan_job("broadcast", env._graph, 1)
        (planned,) = [operator for operator in plan.operators if operator.uid == "limits"]
        if backend is None:
            self.operator: Any = BroadcastOperator(planned, 0, "broadcast", function, None)
        else:
            time = Time(clock, clock)
            keys = (planned.operator.spec.key,)  # type: ignore[union-attr]
            self.operator = KeyedBroadcastOperator(planned, 0, "broadcast", function, backend, keys, time)
        self.out: list[Any] = []
        self.operator.emit = lambda batch: self.out.extend(batch.rows())

    def record(self, *record: Any) -> list[Any]:
        return self._run(record, 0)

    def rule(self, *rule: Any) -> list[Any]:
        return self._run(rule, 1)

    def _run(self, row: Any, input_index: int) -> list[Any]:
        self.out.clear()
        self.operator.process(Batch(record_type(PAIR), [row], timestamps=np.array([5])), input_index)
        return list(self.out)


BACKENDS = ["heap", "rocksdb"]


@contextmanager
def driven(backend: str, function: Any = Limits, clock: ManualClock | None = None) -> Iterator[Driven]:
    clock = ManualClock() if clock is None else clock
    with rocks_backends(NONE) as rocks:
        keys = key_type(str)
        made = backend_for(keys, wall_clock=clock) if backend == "heap" else rocks.backend(keys, wall_clock=clock)
        subtask = Driven(function(), made, clock)
        subtask.operator.open(None)
        yield subtask


@pytest.mark.parametrize("backend", BACKENDS)
def test_records_read_what_rules_have_written(backend: str) -> None:
    with driven(backend) as subtask:
        assert subtask.record("ann", 1) == [("ann", 0)]
        subtask.rule("max", 7)
        assert subtask.record("ann", 1) == [("ann", 7)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_cannot_write_broadcast_state(backend: str) -> None:
    with driven(backend) as subtask:
        with pytest.raises(ConfigurationError, match=r"broadcast state 'limits' .* process_broadcast_element only"):
            subtask.record("ann", -1)
        assert subtask.record("ann", 1) == [("ann", 0)]
        subtask.rule("x", 3)  # and the broadcast side still can


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_is_applied_to_the_state_of_every_key(backend: str) -> None:
    with driven(backend) as subtask:
        for n in range(300):
            subtask.record(f"user-{n % 100}", 1)
        subtask.operator.backend.set_current_key("user-1")
        subtask.operator.backend.set_current_namespace(b"window")
        subtask.operator._function.count.set(50)  # a window's: not touched
        subtask.rule("multiply", 10)

        assert subtask.rule("list", 0) == sorted((f"user-{n}", 30) for n in range(100))
        subtask.rule("forget", 0)
        assert subtask.rule("list", 0) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_is_not_applied_to_what_has_expired(backend: str) -> None:
    clock = ManualClock()
    with driven(backend, Expiring, clock) as subtask:
        subtask.record("old", 1)
        clock.advance(6)
        subtask.record("new", 2)
        clock.advance(6)

        assert subtask.rule("list", 0) == [("new", 2)]


@pytest.mark.parametrize(
    ("rule", "error", "words"),
    [
        ("timer", TypeError, "timers in process_broadcast_element"),
        ("wrong", ConfigurationError, "not a keyed state of Limits"),
        ("read", ConfigurationError, "no key is current"),
    ],
)
def test_what_needs_a_key_is_refused_on_the_broadcast_side(rule: str, error: type[Exception], words: str) -> None:
    with driven("heap") as subtask, pytest.raises(error, match=words):
        subtask.rule(rule, 0)


def test_each_subtask_stores_its_copy_and_gets_it_back() -> None:
    with driven("heap") as subtask:
        subtask.rule("max", 7)
        (section,) = subtask.operator.snapshot_sync(CheckpointId(1)).operator.sections()
    again = Driven(Limits(), backend_for(key_type(str)), ManualClock())
    again.operator.operator_state.restore(section.state, section.kind, section.key_group, [section.rows])
    again.operator.open(SubtaskRestore("limits", 0, False, old_parallelism=1))

    assert (section.state, section.kind) == ("limits", "operator-broadcast")
    assert again.record("ann", 1) == [("ann", 7)]


def test_a_stored_copy_of_another_type_is_refused_with_the_users_line() -> None:
    with driven("heap") as subtask:
        subtask.rule("max", 7)
        (section,) = subtask.operator.snapshot_sync(CheckpointId(1)).operator.sections()

    class Changed(Limits):
        limits = tg.BroadcastState(str, bytes)  # type: ignore[assignment]

    again = Driven(Changed(), backend_for(key_type(str)), ManualClock())
    again.operator.operator_state.restore(section.state, section.kind, section.key_group, [section.rows])
    with pytest.raises(TypeDeclarationError, match=r"'limits' \(.*test_broadcast.py"):
        again.operator.open(SubtaskRestore("limits", 0, False, old_parallelism=1))


class Plain(tg.BroadcastProcessFunction):
    rules = tg.BroadcastState(str, int)

    def process_element(self, value: Any, ctx: tg.Context) -> None: ...

    def process_broadcast_element(self, value: Any, ctx: tg.BroadcastContext) -> None:
        ctx.apply_to_keyed_state("count", print)


def test_without_keys_there_is_no_keyed_state_to_apply_to() -> None:
    subtask = Driven(Plain(), None, ManualClock())
    subtask.operator.open(None)
    with pytest.raises(ConfigurationError, match="has no keys"):
        subtask.rule("x", 1)


def test_an_inherited_broadcast_state_can_be_hidden() -> None:
    class Bare(Plain):
        rules = None  # type: ignore[assignment]

    assert list(broadcast_states(Plain())) == ["rules"]
    assert broadcast_states(Bare()) == {}
    with pytest.raises(ConfigurationError, match=r"Plain\.rules .*outside a running job"):
        Plain().rules.get("x")


def streams() -> tuple[tg.DataStream, tg.DataStream]:
    env = tg.StreamEnvironment("broadcast")
    return env.from_collection([("a", 1)], uid="a", type=PAIR), env.from_collection([("b", 1)], uid="b", type=PAIR)


def test_graphs_that_cannot_be_are_refused_in_words() -> None:
    a, b = streams()
    with pytest.raises(GraphError, match=r"connect\(other\.broadcast\(\)\)"):
        a.connect(b).process(Plain(), uid="x")
    with pytest.raises(GraphError, match="or to a broadcast one"):
        a.key_by(0).connect(b)
    with pytest.raises(GraphError, match="needs a keyed stream"):
        a.connect(b.broadcast()).process(Limits(), uid="x")
    with pytest.raises(GraphError, match="needs a KeyedBroadcastProcessFunction"):
        a.key_by(0).connect(b.broadcast()).process(Plain(), uid="x")
    with pytest.raises(GraphError, match="connect the other way"):
        a.connect(b.key_by(0))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="write Plain"):
        a.connect(b.broadcast()).process(Plain, uid="x")  # type: ignore[arg-type]
    a.connect(b.broadcast()).process(Plain())
    with pytest.raises(GraphError, match="needs a uid"):
        a._env._graph.check_uids()


def test_map_keys_that_can_change_are_refused_at_the_declaration() -> None:
    with pytest.raises(TypeDeclarationError, match=r"test_broadcast.py"):
        tg.BroadcastState(list[int], int)
