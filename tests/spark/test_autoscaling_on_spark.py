"""A job whose load goes times four, and back: it grows, shrinks, and counts each record once. Real Spark."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from job_kit import told_by

import tidegate as tg
from tidegate.coordinator.moving import ScalingDecided
from tidegate.coordinator.observing import JobEvent

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEYS = 128
COST_S = 0.005  #: a record makes its subtask busy for so long, without a core
RATE = 60.0  #: records a second in the quiet phases
FACTOR = 4
PHASES = ((20.0, 1), (45.0, FACTOR), (45.0, 1))  #: seconds, and times RATE
TOTAL = int(sum(seconds * times * RATE for seconds, times in PHASES))


def due(index: int) -> float:
    """When a record comes, in seconds since the beginning."""
    at = 0.0
    for seconds, times in PHASES:
        there = int(seconds * times * RATE)
        if index < there:
            return at + index / (times * RATE)
        index, at = index - there, at + seconds
    return at


class Load(tg.Source):
    """Numbers, each at its time. What waits is told, as a Kafka source does."""

    record_type = int

    def __init__(self, began: float) -> None:
        self.began = began

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split("all", 0)]

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return _LoadReader(context, self.began)


class _LoadReader(tg.SourceReader):
    def __init__(self, context: tg.ReaderContext, began: float) -> None:
        self._context, self._began = context, began
        self._next: int | None = None
        self._come = 0  #: so many were there when somebody looked

    def add_splits(self, splits: Sequence[tg.Split]) -> None:
        for split in splits:
            self._next = split.position

    def splits(self) -> list[tg.Split]:
        return [] if self._next is None else [tg.Split("all", self._next, finished=self._next == TOTAL)]

    def metrics(self) -> dict[str, float]:
        while self._come < TOTAL and due(self._come) <= time.time() - self._began:
            self._come += 1
        return {"pendingRecords": self._come - (self._next or 0)}

    def poll(self, deadline: float) -> list[int] | None:
        if self._next is None or self._next == TOTAL:
            return None
        if due(self._next) > time.time() - self._began:
            self._context.sleep(max(0.0, min(0.01, deadline - self._context.clock())))
            return None
        self._next += 1
        return [self._next - 1]


class Count(tg.KeyedProcessFunction):
    seen = tg.ValueState(int, default=0)

    def process_element(self, value: int, ctx: tg.Context) -> Any:
        time.sleep(COST_S)
        self.seen.set(self.seen.get() + 1)
        yield (value, self.seen.get())


def test_it_follows_a_load_that_goes_times_four_and_back_and_nothing_is_lost(tmp_path: Path) -> None:
    env = tg.StreamEnvironment("growing", parallelism=1)
    env.checkpointing(every="500ms", storage=str(tmp_path / "state"))
    env.autoscaling(max_parallelism=4, stabilization="1s", window="4s", scale_down="8s", catch_up="10s")
    numbers = env.from_source(Load(time.time()), uid="load", returns=int)
    counted = numbers.key_by(lambda n: n % KEYS, key_type=int).process(Count(), uid="count", returns=tuple[int, int])
    counted.write_files(str(tmp_path / "out"), format="jsonl", uid="files")
    decided: list[ScalingDecided] = []

    def note(event: JobEvent) -> None:
        if isinstance(event, ScalingDecided):
            decided.append(event)

    client = env.execute_async()
    client.subscribe(note)
    assert client.wait("200s") is tg.JobStatus.FINISHED, told_by(client)

    rescales = [each.parallelism["count"] for each in decided if "count" in each.parallelism]
    ups = [b > a for a, b in zip([1, *rescales], rescales)]
    assert True in ups, told_by(client)
    assert False in ups, told_by(client)
    assert len(rescales) <= 6, [each.reason for each in decided]
    rows = [json.loads(line) for file in (tmp_path / "out").glob("[!_.]*") for line in file.read_text().splitlines()]
    assert sorted(number for number, _ in rows) == list(range(TOTAL))
    assert all(count == number // KEYS + 1 for number, count in rows), (
        "the state of each key was neither lost nor doubled"
    )
    assert any("autoscaler: rescaling: Count" in line.message for line in client.view.lines)
