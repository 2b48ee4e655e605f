"""Stop the world against barriers: what checkpoints cost a job's throughput, done the naive way and done with barriers.

    python benchmarks/stop_the_world.py [rounds] [seconds]

The naive way, as a mode of this benchmark only: the input pauses, everything in the job is processed to the end, every
task stores its state, the input goes on. Here the sources take the pause (they read a shared signal), the job drains, one
checkpoint is asked for and waited for, and the pause ends. Both ways at intervals of 5 s, 1 s and 0.2 s, interleaved with
runs without checkpoints; each number is the median of throughput with / without, in one round (`barrier_1s`: bar 0.93).
Last line: JSON.
"""

from __future__ import annotations

import sys
import threading
import time
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
WARM_UP_S = 2.0


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


def run(spark: Any, way: str, interval_s: float | None, seconds: float) -> float:
    """Records a second at the last operator, over `seconds` after a warm-up."""
    folder = harness.fresh_folder("stop-the-world")
    say(folder, "go")
    env = tg.StreamEnvironment("stop-the-world", parallelism=bare.WIDTH, spark=spark)
    every = f"{interval_s}s" if way == "barriers" else None
    env.checkpointing(every=every, storage=harness.fresh_folder("stop-the-world-storage").as_uri())
    numbers = env.from_source(PausedGenerator(folder), uid="source")
    numbers.key_by("k").process_batches(Total(folder), uid="total", returns=int).sink_to(tg.PrintSink(), uid="none")
    client = env.execute_async()
    over = threading.Event()
    stopper = threading.Thread(target=stop_and_go, args=(client, folder, interval_s, over), daemon=True)
    try:
        while not seen(folder):
            client.wait(timeout="50ms")
        time.sleep(WARM_UP_S)
        if way == "stop":
            stopper.start()
        began, before = time.monotonic(), seen(folder)
        time.sleep(seconds)
        return (seen(folder) - before) / (time.monotonic() - began)
    finally:
        over.set()
        if stopper.is_alive():
            stopper.join()
        client.cancel()
        client.wait()


def stop_and_go(client: tg.JobClient, folder: Path, interval_s: float, over: threading.Event) -> None:
    """The naive way: pause the input, let everything drain, take a snapshot of all, go on."""
    while not over.wait(interval_s):
        say(folder, "pause")
        last, quiet_since = seen(folder), time.monotonic()
        while time.monotonic() - quiet_since < 0.02:
            time.sleep(0.002)
            now = seen(folder)
            if now != last:
                last, quiet_since = now, time.monotonic()
        done = client.view.completed
        client.checkpoint()
        while client.view.completed == done and not over.is_set():
            time.sleep(0.002)
        say(folder, "go")


def main(rounds: int = 5, seconds: int = 10) -> None:
    spark = harness.session()
    run(spark, "none", None, 3)
    candidates = {"none": lambda: run(spark, "none", None, seconds)}
    for interval_s in INTERVALS_S:
        for way in ("barriers", "stop"):
            candidates[f"{way} {interval_s:g}"] = lambda way=way, interval_s=interval_s: run(
                spark, way, interval_s, seconds
            )
    results = harness.interleave(rounds, candidates)
    found: dict[str, Any] = {}
    for interval_s in INTERVALS_S:
        for way, name in (("barriers", "barrier"), ("stop", "stop_the_world")):
            ratios = harness.ratios(results[f"{way} {interval_s:g}"], results["none"])
            found[f"{name}_{interval_s:g}s"] = harness.median(ratios)
            found[f"{name}_{interval_s:g}s_spread"] = harness.spread(ratios)
    found["without_checkpoints_records_per_s"] = int(harness.median(results["none"]))
    harness.finish(found)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
