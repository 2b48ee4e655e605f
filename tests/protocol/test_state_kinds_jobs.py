"""Every kind of keyed state in whole jobs on both backends: full and incremental checkpoints, crashes, other parallelisms.

A record is one operation on the state of its key. At the end each key says what it has, and plain Python says the same.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from matrices import in_turn
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

RNG = random.Random(11)
KINDS = ["value", "tags", "list", "map", "reducing", "mean", "ttl_value", "ttl_list", "ttl_map", "timer"]
OPERATIONS = [(f"key-{RNG.randint(0, 8)}", RNG.choice(KINDS), RNG.randint(-4, 9)) for _ in range(400)]
END = 2**62
OPERATION = tuple[str, str, int]
HOUR = tg.Ttl("1h")


class Mean(tg.AggregateFunction):
    accumulator_type = tuple[int, int]

    def create_accumulator(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class Everything(tg.KeyedProcessFunction):
    value = tg.ValueState(int)
    tags = tg.ValueState(dict[str, int])
    list = tg.ListState(int)
    map = tg.MapState(int, str)
    reducing = tg.ReducingState(int, operator.add)
    mean = tg.AggregatingState(Mean())
    ttl_value = tg.ValueState(int, ttl=HOUR)
    ttl_list = tg.ListState(int, ttl=tg.Ttl("1h", update="read_and_write"))
    ttl_map = tg.MapState(int, str, ttl=HOUR)
    fired = tg.ListState(int)

    def process_element(self, operation: tuple[str, str, int], ctx: tg.Context) -> None:
        _, kind, number = operation
        ctx.timer_service().register_event_time_timer(END)
        if kind == "timer":
            if number < 0:
                ctx.timer_service().delete_event_time_timer(1000 - number)
            else:
                ctx.timer_service().register_event_time_timer(1000 + number)
            return
        state: Any = getattr(self, kind)
        if number < -2:
            state.clear()
        elif kind == "tags":
            tags = state.get() or {}
            tags[str(number)] = tags.get(str(number), 0) + 1
            state.set(tags)
        elif kind in ("value", "ttl_value"):
            state.set((state.get() or 0) * 2 % 1000 + number)
        elif kind in ("map", "ttl_map"):
            state[number] = state.get(number, "") + "x"
        else:
            state.add(number)

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[tuple[str, str]]:
        if timestamp < END:
            self.fired.add(timestamp)
            return
        held = {
            "value": self.value.get(),
            "tags": sorted((self.tags.get() or {}).items()),
            "list": self.list.get(),
            "map": sorted(self.map.items()),
            "reducing": self.reducing.get(),
            "mean": self.mean.get(),
            "ttl_value": self.ttl_value.get(),
            "ttl_list": self.ttl_list.get(),
            "ttl_map": sorted(self.ttl_map.items()),
            "fired": self.fired.get(),
        }
        yield (ctx.key, repr(held))


def plain_answer() -> dict[str, str]:
    answers = {}
    for key in {key for key, _, _ in OPERATIONS}:
        held: dict[str, Any] = dict.fromkeys(KINDS)
        timers: set[int] = set()
        for kind, number in [(kind, number) for k, kind, number in OPERATIONS if k == key]:
            if kind == "timer":
                timers.discard(1000 - number) if number < 0 else timers.add(1000 + number)
            elif number < -2:
                held[kind] = None
            elif kind == "tags":
                tags = held[kind] = held[kind] or {}
                tags[str(number)] = tags.get(str(number), 0) + 1
            elif kind in ("value", "ttl_value"):
                held[kind] = (held[kind] or 0) * 2 % 1000 + number
            elif kind in ("map", "ttl_map"):
                entries = held[kind] = held[kind] or {}
                entries[number] = entries.get(number, "") + "x"
            else:
                held[kind] = [*(held[kind] or []), number]
        del held["timer"]
        for kind in ("tags", "map", "ttl_map"):
            held[kind] = sorted((held[kind] or {}).items())
        for kind in ("list", "ttl_list"):
            held[kind] = held[kind] or []
        if held["reducing"] is not None:
            held["reducing"] = sum(held["reducing"])
        if held["mean"] is not None:
            held["mean"] = sum(held["mean"]) / len(held["mean"])
        answers[key] = repr(held | {"fired": sorted(timers)})
    return answers


EXPECTED = plain_answer()


def job(
    storage: str, parallelism: int, backend: str, incremental: bool, folder: Path, resume: str | None = None
) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("kinds", parallelism=parallelism)
    env.checkpointing(every="10ms", storage=storage, resume=resume)
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    env.state_backend(backend, incremental=incremental, memory="4mb", folder=str(folder))
    stream = env.from_collection(OPERATIONS, uid="operations", type=OPERATION, parallelism=1)
    dumped = stream.key_by(0).process(Everything(), uid="everything", returns=tuple[str, str])
    dumped.sink_to(LedgerSink("out"), uid="out")
    return env


def check() -> None:
    rows = ledger("out").rows()
    assert dict(rows) == EXPECTED
    assert len(rows) == len(EXPECTED)


BACKENDS = [("hashmap", False), ("hashmap", True), ("rocksdb", False), ("rocksdb", True)]
POINTS = ["slot.before-store", "slot.before-ack", "slot.after-ack", "driver.before-metadata", "driver.notified"]


@pytest.mark.parametrize(("point", "backend", "incremental"), in_turn(POINTS, BACKENDS))
def test_every_kind_of_keyed_state_survives_a_crash(
    point: str, backend: str, incremental: bool, tmp_path: Path
) -> None:
    forget_ledgers()
    run_in_process(job(fresh_storage(), 2, backend, incremental, tmp_path), 3, [Crash(point, nth=3, times=2)])
    check()


@pytest.mark.parametrize(
    ("before", "after", "backend", "incremental"), in_turn([(2, 3), (3, 2), (1, 5), (4, 1)], BACKENDS)
)
def test_every_kind_of_keyed_state_follows_its_keys(
    before: int, after: int, backend: str, incremental: bool, tmp_path: Path
) -> None:
    resumed = 0
    for seed in range(2):
        forget_ledgers()
        storage = fresh_storage()
        try:
            crash = [Crash("driver.notified", nth=3)]
            InProcessRun(job(storage, before, backend, incremental, tmp_path), seed, crash, max_drivers=1).run()
        except AllDriversDied:
            resumed += 1
            run_in_process(job(storage, after, backend, incremental, tmp_path, resume="latest"), seed)
        check()
    assert resumed


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize(("before", "after"), [("hashmap", "rocksdb"), ("rocksdb", "hashmap")])
def test_a_job_may_change_its_backend(before: str, after: str, incremental: bool, tmp_path: Path) -> None:
    forget_ledgers()
    storage = fresh_storage()
    first = job(storage, 2, before, incremental, tmp_path)
    with pytest.raises(AllDriversDied):
        InProcessRun(first, 1, [Crash("driver.notified", nth=3)], max_drivers=1).run()
    run_in_process(job(storage, 3, after, incremental, tmp_path, resume="latest"), 1)
    check()
