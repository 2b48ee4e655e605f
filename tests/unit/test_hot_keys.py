"""The hottest keys: never counted too high, found when they are hot, and looked for at a bounded cost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.coordinator.hottest import OperatorKey, hottest
from tidegate.overrides import overriding
from tidegate.state.keys import key_type
from tidegate.task import hot_keys
from tidegate.task.hot_keys import (
    ENOUGH,
    FADE_EVERY_S,
    KEY_LENGTH,
    MAX_LOOKS,
    ONE_IN,
    PAUSE_S,
    HeavyHitters,
    KeySampler,
    shown,
)
from tidegate.testing import run_in_process
from tidegate.testing.clock import ManualClock
from tidegate.wire.control import Heartbeat, HotKey, HotKeys, OperatorMetrics


@given(st.lists(st.integers(0, 60)), st.integers(1, 8))
def test_counts_are_lower_bounds_and_nothing_frequent_is_lost(values: list[int], capacity: int) -> None:
    found = HeavyHitters(capacity)
    for value in values:
        found.add(value, 1.0)
        assert len(found) <= 2 * capacity
    counted = dict(found.top(1000))
    for value, count in Counter(values).items():
        assert count - len(values) / capacity <= counted.get(value, 0.0) <= count
    assert found.total == len(values)


class Counted(Sequence[int]):
    """Keys of a slice, and how often one was looked at."""

    def __init__(self, keys: list[int]) -> None:
        self.keys = keys
        self.looks = 0

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return self.keys[place]


class Looked:
    """A sampler over `number % keys`, and how often it has looked at a key."""

    def __init__(self, keys: int = 1000) -> None:
        self.clock = ManualClock()
        self.looks = 0
        self._keys = keys
        self.sampler = KeySampler(key_type(int), self.clock, seed=1)

    def over(
        self, numbers: list[int], size: int = 100, step_s: float = 0.01, columns: bool = False
    ) -> dict[str, float]:
        """The parts that the hottest keys have."""
        for start in range(0, len(numbers), size):
            keys = Counted([number % self._keys for number in numbers[start : start + size]])
            if columns:
                self.sampler.note_column(pa.array(keys.keys))
            else:
                self.sampler.note(keys)
            self.looks += keys.looks
            self.clock.advance(step_s)
        hot = self.sampler.hottest()
        return {entry.key: entry.records / hot.records for entry in hot.keys}


@pytest.mark.parametrize("columns", [False, True])
def test_a_key_with_half_of_the_records_is_found_with_about_half(columns: bool) -> None:
    chance = random.Random(5)
    numbers = [7 if chance.random() < 0.5 else chance.randrange(1000) for _ in range(100_000)]
    (first, part), *others = Looked().over(numbers, columns=columns).items()
    assert first == "7"
    assert 0.4 < part < 0.6
    assert all(part < 0.05 for _, part in others)


def test_a_rhythm_in_the_stream_does_not_mislead() -> None:
    parts = Looked(keys=ONE_IN).over(list(range(100_000)))
    assert len(parts) == 5
    assert all(0.05 < part < 0.25 for part in parts.values()), "each of eight keys has an eighth"


def test_the_cost_is_bounded_in_time_and_in_records() -> None:
    quick = Looked()
    quick.over(list(range(1_000_000)), size=1000, step_s=PAUSE_S / 10)
    assert 0 < quick.looks <= 101 * MAX_LOOKS
    slow = Looked()
    slow.over(list(range(1000)), size=1, step_s=PAUSE_S)
    assert 0 < slow.looks <= 1000 // ONE_IN


def test_a_key_is_called_hot_only_when_enough_was_seen() -> None:
    looked = Looked()
    assert looked.over([1] * ONE_IN * (ENOUGH - 1), size=ONE_IN, step_s=PAUSE_S) == {}
    assert looked.over([1] * ONE_IN, size=ONE_IN) == {"1": 1.0}


def test_what_was_hot_fades() -> None:
    looked = Looked()
    assert looked.over([1] * 10_000)["1"] == 1.0
    looked.clock.advance(FADE_EVERY_S)
    parts = looked.over([2] * 20_000, step_s=0.5)  # ten fadings
    assert parts["2"] > 0.8


def test_a_key_that_cannot_be_read_costs_a_look_and_not_the_job() -> None:
    looked = Looked()
    looked.sampler.note_column(pa.array(["not", "an", "int"] * 100))
    assert looked.sampler.hottest() == HotKeys(0, [])
    assert looked.over([1] * 10_000) == {"1": 1.0}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("plain", "plain"),
        ("two\nlines", "'two\\nlines'"),
        (b"\x00x", "b'\\x00x'"),
        ((1, "a"), "(1, 'a')"),
        ("x" * 1_000_000, "x" * (KEY_LENGTH - 1) + "…"),
        (None, "None"),
        pytest.param(10**5000, "int, too long to be written", id="long int"),
        pytest.param(("a", 10**5000), "tuple, too long to be written", id="long tuple"),
        pytest.param("\ud83d", "'\\ud83d'", id="lone surrogate"),
    ],
)
def test_keys_are_shown_short_and_on_one_line(key: Any, text: str) -> None:
    assert shown(key) == text


def test_subtasks_are_put_together_and_the_largest_part_comes_first() -> None:
    def beat(uid: str, subtask: int, records: int, *keys: HotKey) -> Heartbeat:
        return Heartbeat(0, 0, 0, 0, 0, [OperatorMetrics(uid, subtask, 0, 0, hot_keys=HotKeys(records, list(keys)))])

    beats = [
        beat("sums", 0, 100, HotKey("a", 90)),
        beat("sums", 1, 300, HotKey("b", 100)),
        beat("rare", 0, 10_000, HotKey("c", 9), HotKey("d", 10)),
        Heartbeat(0, 0, 0, 0, 0, [OperatorMetrics("map", 0, 5, 5)]),
        beat("silent", 0, 0),
    ]
    assert hottest(beats, 10) == (
        OperatorKey("sums", 1, "b", 0.25, 100),
        OperatorKey("sums", 0, "a", 0.225, 90),
        OperatorKey("rare", 0, "d", 0.001, 10),
    )
    assert len(hottest(beats, 2)) == 2


@pytest.mark.parametrize("is_on", [True, False])
def test_a_job_tells_hot_keys_and_bytes_of_its_operators(is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_keys, "PAUSE_S", 0.0)  # the job takes next to no time of the runner's clock
    env = tg.StreamEnvironment("hot", parallelism=2)
    env.checkpointing(storage=f"memory://hot-{is_on}")
    keyed = env.from_sequence(1, 2000, uid="numbers").key_by(lambda n: n if n % 2 else 0, key_type=int)
    keyed.count(uid="counts").collect(uid="out")

    with overriding(lambda config: replace(config, hot_keys=is_on)):
        result = run_in_process(env)

    all_of_it = [metrics for beat in result.view.heartbeats.values() for metrics in beat.operators]
    found = {uid: [m for m in all_of_it if m.uid == uid] for uid in ("numbers", "counts")}
    sent, received = (sum(m.bytes_out for m in found["numbers"]), sum(m.bytes_in for m in found["counts"]))
    assert sent == received > 2000
    assert all(m.bytes_in == 0 for m in found["numbers"])
    assert all(m.bytes_out == 0 for m in found["counts"]), "nothing leaves the last layer"
    assert all((m.hot_keys is not None) == is_on for m in found["counts"])
    assert all(m.hot_keys is None for m in found["numbers"])
    if is_on:
        (latest,) = [c for c in result.view.checkpoints.values() if c.purpose == "final"]
        assert (latest.hot_keys[0].uid, latest.hot_keys[0].key) == ("counts", "0")


class TakesItsKeyOut(tg.KeyedProcessFunction):
    """Right: the key is in the context."""

    def process_element(self, value: dict[str, int], ctx: tg.Context) -> Iterator[tuple[Any, int]]:
        del value["id"]
        yield ctx.key, value["number"]


def test_sampling_asks_no_user_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_keys, "PAUSE_S", 0.0)
    env = tg.StreamEnvironment("hot", parallelism=2)
    env.checkpointing(storage="memory://hot-changed-records")
    records = env.from_collection([{"id": n % 3, "number": n} for n in range(100)], uid="numbers")
    records.key_by(lambda record: record["id"]).process(TakesItsKeyOut(), uid="take").collect(uid="out")

    result = run_in_process(env)

    assert sorted(result.collected.rows("out"), key=itemgetter(1)) == [(n % 3, n) for n in range(100)]


def test_a_key_function_that_takes_the_key_out_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one subtask nobody else asks it: the sender need not know where the record goes."""
    monkeypatch.setattr(hot_keys, "PAUSE_S", 0.0)
    env = tg.StreamEnvironment("hot", parallelism=1)
    env.checkpointing(storage="memory://hot-key-taken-out")
    records = env.from_collection([{"id": n % 3} for n in range(100)], uid="numbers")
    records.key_by(lambda record: record.pop("id")).count(uid="counts").collect(uid="out")

    result = run_in_process(env)

    assert Counter(key for key, _ in result.collected.rows("out")) == Counter(n % 3 for n in range(100))
