"""Memory stays flat: an endless source into a slow sink, and one source that stands still during an alignment.

    python benchmarks/memory.py [minutes]

Resident size of the JVM and of all Python workers, sampled each second; the mean of minute 3 over the mean of minute 1.
Last line: JSON, `slow_sink_ratio` and `standing_source_ratio`.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import harness
import numpy as np
import psutil

import tidegate as tg

Row = tuple[int, int]


class SlowSink(tg.Sink):
    """Takes 20 ms for each batch that it is given."""

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return _SlowWriter()


class _SlowWriter(tg.SinkWriter):
    def write(self, batch: Any) -> None:
        time.sleep(0.02)


class StandingSource(tg.DataGenerator):
    """Like a generator, but its second split stands still for 20 s of each 30 s, so that barriers wait for it."""

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return _StandingReader(super().reader(context), context)


class _StandingReader(tg.SourceReader):
    def __init__(self, inner: tg.SourceReader, context: tg.ReaderContext) -> None:
        self._inner = inner
        self._stands = context.subtask == 1

    def add_splits(self, splits: Any) -> None:
        self._inner.add_splits(splits)

    def poll(self, deadline: float) -> Any:
        if self._stands and time.time() % 30 < 20:
            time.sleep(5.0)  # a bad source: it does not return at its deadline, so its barrier comes late
        return self._inner.poll(deadline)

    def splits(self) -> Any:
        return self._inner.splits()


def numbers(indices: np.ndarray) -> Any:
    return [indices % 1000, indices]


def resident_bytes() -> int:
    me = psutil.Process(os.getpid())
    total = 0
    for process in me.children(recursive=True):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


class Keep(tg.KeyedProcessFunction):
    last = tg.ValueState(int, default=0)

    def process_element(self, row: Row, ctx: tg.Context) -> list[Row]:
        self.last.set(row[1])
        return [row]


def run(spark: Any, name: str, source: tg.Source, sink: tg.Sink, minutes: int) -> list[float]:
    env = tg.StreamEnvironment(name, parallelism=2, spark=spark)
    env.checkpointing(every="1s", storage=harness.fresh_folder(name).as_uri(), tolerable_failures=1000)
    env.from_source(source, uid="source").key_by(0).process(Keep(), uid="keep", returns=Row).sink_to(sink, uid="sink")
    client = env.execute_async()
    means = []
    for minute in range(minutes):
        samples = []
        for _ in range(60):
            time.sleep(1)
            samples.append(resident_bytes())
        means.append(sum(samples) / len(samples))
        harness.say(
            f"{name} minute {minute + 1}: {means[-1] / 1e6:.0f} MB, {client.status.value}, {client.view.completed} done"
        )
    client.cancel()
    client.wait()
    return means


class Nothing(tg.Sink):
    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return _NothingWriter()


class _NothingWriter(tg.SinkWriter):
    def write(self, batch: Any) -> None:
        return


def main(minutes: int = 3) -> None:
    spark = harness.session()
    endless = tg.DataGenerator(numbers, vectorised=True, type=Row, splits=2)
    slow = run(spark, "slow-sink", endless, SlowSink(), minutes)
    standing = StandingSource(numbers, vectorised=True, type=Row, splits=2, rate=200_000)
    still = run(spark, "standing-source", standing, Nothing(), minutes)
    harness.finish(
        {
            "slow_sink_ratio": round(slow[-1] / slow[0], 4),
            "slow_sink_mb": [round(mean / 1e6) for mean in slow],
            "standing_source_ratio": round(still[-1] / still[0], 4),
            "standing_source_mb": [round(mean / 1e6) for mean in still],
        }
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
