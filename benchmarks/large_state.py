"""State larger than memory, in a real job, beside Flink SQL on RocksDB: how fast, and how long a slot stands still.

    python benchmarks/large_state.py [--keys 20000000] [--updates 20000000] [--memory-mb 256] [--rounds 1]
                                     [--spreads uniform,zipf] [--no-flink] [--check] [--save NAME]
    python benchmarks/large_state.py --keys 200000 --updates 200000 --memory-mb 16       about two minutes

Each key gets a value of 100 bytes and a count, once each in a scattered order; then keys are updated at random, uniform or by
Zipf's law with exponent 1: one more, and the new value. Every new count is emitted. Parallelism 2, checkpoints each second,
incremental, in local files; the memory is that of one slot, Tidegate's and Flink's alike. In SQL:

    SELECT k, COUNT(*), LAST_VALUE(v) FROM writes GROUP BY k

`vs_flink_*` compare updates a second: what a run with updates takes longer than one without. That takes start-up out of both.

Pauses are of our job alone, at the keyed slots: the time from one batch's beginning to the next one's, while the sources make
records as fast as they are taken. A barrier that comes in between is not heard for so long, or less. Last line: JSON.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))

import compare
import harness
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import work

import tidegate as tg

WRITES = pa.schema([("k", pa.int64()), ("v", pa.string())])
COUNTS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
MODULUS = 1 << 30  #: a power of two, so that x * (2 * x + 1) is a permutation below it
SPREADS = ("uniform", "zipf")
CHECKED = (5_000, 20_000)  #: keys and updates, when every count is compared
LEAST_PAUSE_S = 0.001  #: shorter ones are not kept, only counted


def keys_of(indices: np.ndarray, keys: int, spread: str) -> np.ndarray:
    """The first `keys` indices are each key once; what follows is random. As in peers/flink_large_state.py, word for word."""
    x = indices * 610839793 % MODULUS
    mixed = x * (2 * x + 1) % MODULUS
    if spread == "uniform":
        then = mixed * keys // MODULUS
    else:
        then = np.exp(mixed / MODULUS * np.log(keys)).astype(np.int64) * 15485863 % keys
    return np.where(indices < keys, indices * 15485863 % keys, then)


class Writes:
    """For a generator."""

    def __init__(self, keys: int, spread: str) -> None:
        self.keys = keys
        self.spread = spread

    def __call__(self, indices: np.ndarray) -> pa.RecordBatch:
        digits = pc.utf8_lpad(pa.array(indices).cast(pa.string()), 20, "0")
        columns = [pa.array(keys_of(indices, self.keys, self.spread)), pc.binary_repeat(digits, 5)]
        return pa.RecordBatch.from_arrays(columns, schema=WRITES)


class Keep(tg.KeyedBatchFunction):
    """A count and a value for each key. Notes its pauses in a file of this process, in seconds, at its end."""

    n = tg.ValueState(int, default=0)
    value = tg.ValueState(str)

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def open(self, ctx: tg.Context) -> None:
        self.began = 0.0
        self.pauses: list[float] = []
        self.batches = 0

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> pa.RecordBatch:
        now = perf_counter()
        if self.began and now - self.began >= LEAST_PAUSE_S:
            self.pauses.append(now - self.began)
        self.began, self.batches = now, self.batches + 1
        self.value.update_many(keys, batch.column("v"))
        return pa.RecordBatch.from_arrays([keys, self.n.add_many(keys, 1, running=True)], schema=COUNTS)

    def end_input(self, ctx: tg.Context) -> Iterator[Any]:
        np.save(self.notes / f"pauses-{os.getpid()}.npy", np.array([self.batches, *self.pauses]))
        yield from ()


class Counts(tg.Sink):
    """Throws counts away, or writes them down."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return _CountsWriter(self.folder)


class _CountsWriter(tg.SinkWriter):
    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def write(self, batch: Any) -> None:
        if self.folder is not None:
            columns = batch.columns()
            work.write(self.folder, zip(columns.column(0).to_pylist(), columns.column(1).to_pylist()), os.getpid())


def ours(
    spark: Any, keys: int, updates: int, spread: str, memory_mb: int, answers: Path | None = None
) -> dict[str, Any]:
    """Seconds; pauses, and checkpoints, of one run."""
    folder = harness.fresh_folder("large-state")
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    env = tg.StreamEnvironment("large-state", parallelism=work.PARALLELISM, spark=spark)
    env.checkpointing(every=f"{work.CHECKPOINT_S}s", storage=(folder / "storage").as_uri())
    env.restart_strategy("none")
    env.state_backend("rocksdb", memory=f"{memory_mb}mb", folder=str(folder / "disk"))
    source = tg.DataGenerator(
        Writes(keys, spread), count=keys + updates, vectorised=True, type=WRITES, splits=work.PARALLELISM
    )
    (
        env.from_source(source, uid="writes")
        .key_by("k")
        .process_batches(Keep(notes), uid="keep", returns=COUNTS)
        .sink_to(Counts(answers), uid="counts")
    )
    checkpoints = harness.Checkpoints()
    began = perf_counter()
    client = env.execute_async()
    client.view.subscribe(checkpoints)
    client.wait()
    seconds = perf_counter() - began
    noted = [np.load(file) for file in notes.glob("pauses-*.npy")]
    return {
        "seconds": seconds,
        "pauses": np.concatenate([each[1:] for each in noted]),
        "batches": int(sum(each[0] for each in noted)),
        "slowest_checkpoint_s": max(checkpoints.completed_s(), default=0.0),
        "completed": len(checkpoints.completed_s()),
        "failed": checkpoints.failed(),
    }


def flinks(keys: int, updates: int, spread: str, memory_mb: int, answers: Path | None = None) -> float:
    options = ["--keys", str(keys), "--spread", spread, "--memory-mb", str(memory_mb)]
    candidate = compare.Candidate("Flink SQL, RocksDB", "apache-flink", "flink_large_state.py", 0, 0)
    return float(compare.run(candidate, keys + updates, options, answers)["seconds"])


def check(answers: Path, keys: int, updates: int, spread: str) -> None:
    """The counts of each key are 1, 2, ... to what it got. :raises work.WrongAnswer:"""
    expected = np.bincount(keys_of(np.arange(keys + updates), keys, spread), minlength=keys)
    got: dict[int, list[int]] = {}
    for file in answers.iterdir():
        for line in file.read_text().splitlines():
            key, _, n = line.partition(",")
            got.setdefault(int(key), []).append(int(n))
    for key, count in enumerate(expected.tolist()):
        if sorted(got.get(key, [])) != list(range(1, count + 1)):
            raise work.WrongAnswer(f"key {key}: {sorted(got.get(key, []))} instead of 1 to {count}")


def checked(spark: Any, spread: str, flink: bool) -> list[str]:
    """Few keys, every count compared."""
    (keys, updates), names = CHECKED, []
    for name in ("tidegate", "flink") if flink else ("tidegate",):
        with tempfile.TemporaryDirectory(prefix="tidegate-counts-") as folder:
            if name == "tidegate":
                ours(spark, keys, updates, spread, 16, Path(folder))
            else:
                flinks(keys, updates, spread, 64, Path(folder))
            check(Path(folder), keys, updates, spread)
        names.append(f"{name} {spread}")
        harness.say(f"{name}, {spread}: every count is right")
    return names


def pause_percentile_ms(runs: list[dict[str, Any]], fraction: float) -> float:
    """Of all batches; those without a pause worth keeping count as none."""
    pauses = sorted(float(pause) for run in runs for pause in run["pauses"])
    batches = sum(run["batches"] for run in runs)
    place = int(batches * fraction) - (batches - len(pauses))
    return 0.0 if place < 0 or not pauses else round(pauses[min(place, len(pauses) - 1)] * 1e3, 1)


def measure(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    every: list[dict[str, Any]] = []
    for spread in options.spreads.split(","):
        speeds: dict[str, list[float]] = {"tidegate": [], "flink": []}
        for number in range(options.rounds):
            for name in ("tidegate", "flink") if number % 2 == 0 else ("flink", "tidegate"):
                if name == "flink" and options.no_flink:
                    continue
                took = []
                for updates in (0, options.updates):
                    if name == "flink":
                        took.append(flinks(options.keys, updates, spread, options.memory_mb))
                    else:
                        run = ours(spark, options.keys, updates, spread, options.memory_mb)
                        every.append(run)
                        took.append(run["seconds"])
                    harness.say(f"{spread} {name}: {options.keys:,} keys, {updates:,} updates in {took[-1]:.1f} s")
                if took[1] <= took[0]:
                    raise SystemExit("the updates took no time that could be measured: give more of them")
                speeds[name].append(options.updates / (took[1] - took[0]))
        for name, found in speeds.items():
            if found:
                result[f"{name}_{spread}_updates_per_s"] = int(statistics.median(found))
        if speeds["flink"]:
            ratio = harness.ratios(speeds["tidegate"], speeds["flink"])
            result[f"vs_flink_{spread}"], result[f"vs_flink_{spread}_spread"] = (
                harness.median(ratio),
                harness.spread(ratio),
            )
    return result | {
        "longest_pause_ms": round(max(float(run["pauses"].max(initial=0.0)) for run in every) * 1e3, 1),
        "pause_p999_ms": pause_percentile_ms(every, 0.999),
        "slowest_checkpoint_s": round(max(run["slowest_checkpoint_s"] for run in every), 3),
        "checkpoints_completed": sum(run["completed"] for run in every),
        "checkpoints_failed": sum(run["failed"] for run in every),
    }


def main(arguments: list[str] | None = None, spark: Any = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--updates", type=int, default=20_000_000)
    parser.add_argument("--memory-mb", type=int, default=256, help="of a slot")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--spreads", default=",".join(SPREADS))
    parser.add_argument("--no-flink", action="store_true")
    parser.add_argument("--check", action="store_true", help="also the counts of a small run of each")
    parser.add_argument("--save", help="name of a file in benchmarks/results")
    options = parser.parse_args(arguments)
    spark = spark or harness.session(8)
    right = []
    for spread in options.spreads.split(",") if options.check else ():
        right += checked(spark, spread, not options.no_flink)
    result = measure(spark, options) | {
        "keys": options.keys,
        "updates": options.updates,
        "memory_mb": options.memory_mb,
        "rounds": options.rounds,
        "checked": right,
        "machine": harness.machine() | {"peers": compare.environments.RELEASES},
    }
    if options.save:
        harness.save(options.save, result)
    harness.finish(result)


if __name__ == "__main__":
    main()
