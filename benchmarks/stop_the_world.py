"""Stop the world against barriers: what checkpoints cost a job's throughput, done the naive way and done with barriers.

    python benchmarks/stop_the_world.py [rounds] [seconds]

The naive way, as a mode of this benchmark only: the input pauses, everything in the job is processed to the end, every
task stores its state, the input continues. Here the sources take the pause (they read a shared signal), the job drains, one
checkpoint is asked for and waited for, and the pause ends. Both ways at intervals of 5 s, 1 s and 0.2 s.

One job runs all the time, so that what differs between two starts (JIT, memory, cores) does not stand in the numbers. A
stretch with checkpoints lies between two halves of one without, and each number is the median of the ratios of their
throughput (`barrier_1s`: bar 0.93). Last line: JSON.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bare
import harness
import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split

NUMBERS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS = 65536
INTERVALS_S = (5.0, 1.0, 0.2)
WARM_UP_S = 15.0
QUIET_S = 0.02  #: without a record at the last operator: all have arrived


class PausedGenerator(Source):
    """Numbers without end, until a file says "pause" (no records) or "end"; it also says how many each reader made."""

    bounded = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record_type = NUMBERS

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split(str(number)) for number in range(bare.WIDTH)]

    def reader(self, context: ReaderContext) -> SourceReader:
        return _PausedReader(self.folder)


class _PausedReader(SourceReader):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next: dict[str, int] = {}
        self._looked = 0.0
        self._word = ""

    def add_splits(self, splits: Any) -> None:
        self._next |= {split.id: int(split.position or 0) for split in splits}

    def poll(self, deadline: float) -> pa.RecordBatch | None:
        now = time.monotonic()
        if now - self._looked > 0.002:
            self._looked = now
            self._word = (self._folder / "word").read_text()
        if self._word != "go" or not self._next:
            if self._word == "pause":
                time.sleep(0.001)
            return None
        split = min(self._next, key=self._next.__getitem__)
        start = self._next[split]
        self._next[split] = start + ROWS
        indices = np.arange(start, start + ROWS)
        columns = [pa.array(indices % bare.KEYS), pa.array(np.ones(ROWS, np.int64))]
        return pa.RecordBatch.from_arrays(columns, schema=NUMBERS)

    def splits(self) -> list[Split]:
        return [Split(id, at, self._word == "end") for id, at in self._next.items()]


class Total(tg.KeyedBatchFunction):
    """Adds up, and leaves behind how many records it has seen so far."""

    total = tg.ValueState(int, default=0)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, ctx: tg.Context) -> None:
        self.seen = 0
        self.file = (self.folder / f"seen-{ctx.subtask}").open("wb", buffering=0)

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> None:
        self.total.add_many(keys, batch.column("v"))
        self.seen += len(keys)
        self.file.seek(0)
        self.file.write(self.seen.to_bytes(8, "little"))


def seen(folder: Path) -> int:
    return sum(int.from_bytes(path.read_bytes(), "little") for path in folder.glob("seen-*"))


def say(folder: Path, word: str) -> None:
    (folder / "new").write_text(word)
    (folder / "new").rename(folder / "word")


def start(spark: Any, folder: Path) -> tg.JobClient:
    say(folder, "go")
    env = tg.StreamEnvironment("stop-the-world", parallelism=bare.WIDTH, spark=spark)
    env.checkpointing(every=None, storage=harness.fresh_folder("stop-the-world-storage").as_uri())
    numbers = env.from_source(PausedGenerator(folder), uid="source")
    numbers.key_by("k").process_batches(Total(folder), uid="total", returns=int).sink_to(tg.PrintSink(), uid="none")
    client = env.execute_async()
    while not seen(folder):
        with contextlib.suppress(TimeoutError):
            client.wait(timeout="50ms")
    return client


class Windows:
    """Stretches of one running job: with checkpoints of some kind, or without."""

    def __init__(self, client: tg.JobClient, folder: Path) -> None:
        self._client = client
        self._folder = folder

    def speed(self, interval_s: float | None, take: Callable[[], None], at_least_s: float) -> float:
        """Records a second at the last operator. Whole intervals, so that each has its checkpoint."""
        began, before = time.monotonic(), seen(self._folder)
        if interval_s is None:
            time.sleep(at_least_s)
        else:
            for nth in range(1, max(1, math.ceil(at_least_s / interval_s)) + 1):
                due = began + (nth - 0.5) * interval_s
                time.sleep(max(0.0, due - time.monotonic()))
                take()
            time.sleep(max(0.0, began + nth * interval_s - time.monotonic()))
        return (seen(self._folder) - before) / (time.monotonic() - began)

    def barriers(self) -> None:
        self._client.checkpoint_now()

    def stop_the_world(self) -> None:
        """The naive way: pause the input, let everything drain, take a snapshot of all, continue."""
        say(self._folder, "pause")
        last, quiet_since = seen(self._folder), time.monotonic()
        while time.monotonic() - quiet_since < QUIET_S:
            time.sleep(0.002)
            now = seen(self._folder)
            if now != last:
                last, quiet_since = now, time.monotonic()
        self._client.checkpoint_now()
        say(self._folder, "go")


def main(rounds: int = 7, seconds: int = 5) -> None:
    spark = harness.session()
    folder = harness.fresh_folder("stop-the-world")
    client = start(spark, folder)
    windows = Windows(client, folder)
    ways = {"barrier": windows.barriers, "stop_the_world": windows.stop_the_world}
    modes = [(f"{name}_{interval_s:g}s", take, interval_s) for interval_s in INTERVALS_S for name, take in ways.items()]
    ratios: dict[str, list[float]] = {name: [] for name, _, _ in modes}
    plain: list[float] = []
    try:
        windows.speed(None, windows.barriers, WARM_UP_S)
        for number in range(rounds):
            for name, take, interval_s in modes[number % len(modes) :] + modes[: number % len(modes)]:
                length_s = max(seconds, 2 * interval_s)
                before = windows.speed(None, take, length_s / 2)
                with_them = windows.speed(interval_s, take, length_s)
                after = windows.speed(None, take, length_s / 2)
                plain.append((before + after) / 2)
                ratios[name].append(with_them / plain[-1])
                harness.say(
                    f"round {number + 1}/{rounds}  {name}: {ratios[name][-1]:.3f} of {plain[-1]:,.3g} records/s"
                )
    finally:
        client.cancel()
        client.wait()
    found: dict[str, Any] = {}
    for name, of_mode in ratios.items():
        found[name] = harness.median(of_mode)
        found[f"{name}_spread"] = harness.spread(of_mode)
    found["without_checkpoints_records_per_s"] = int(harness.median(plain))
    found["checkpoints"] = client.view.completed
    harness.finish(found)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
