"""Windows over columns beside Flink SQL's and Spark's: a count and a sum for each of 100,000 keys and each window.

    python benchmarks/windows.py [--records 8000000] [--rounds 3] [--only tumble,hop,session] [--no-peers] [--check]
                                   [--save NAME]

Tumbling windows of 1 s, sliding ones of 60 s by 1 s, sessions with a gap of half a second; 200,000 records for a second of
event time, up to 0.9 s out of order, the watermark a second behind. Parallelism 2, exactly-once checkpoints each second. Two
sizes, so that start-up is not in the speed; in turn. `--check` compares every window of a small run with plain Python,
Tidegate's and Flink's.

Last line, JSON: `tumble_vs_flink`, `tumble_vs_spark`, `session_vs_flink`, `hop_vs_flink`; `hop_cost` is how many times as
long sliding windows take as tumbling ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))

import compare
import harness
import numpy as np
import pyarrow as pa
import windows_work as work

import tidegate as tg

EVENTS = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.int64())])
ASSIGNERS = {
    "tumble": lambda: tg.TumblingEventTimeWindows("1s"),
    "hop": lambda: tg.SlidingEventTimeWindows("60s", "1s"),
    "session": lambda: tg.EventTimeSessionWindows("500ms"),
}
CHECKED = 6_000
CHECKED_KEYS, CHECKED_PER_S = 50, 120  #: as many records of a key in a second as with all keys
SPARK_BATCH = 400_000
Window = tuple[int, int, int, int]  #: key, time of its first record, count, sum


def times_of(indices: Any, per_s: int = work.PER_S) -> Any:
    """As `windows_work.time_ms` says it in SQL."""
    return indices * 1000 // per_s + 1000 - indices * 610839793 % work.DISORDER_MS


class Events:
    def __init__(self, keys: int, per_s: int) -> None:
        self.keys, self.per_s = keys, per_s

    def __call__(self, indices: np.ndarray) -> pa.RecordBatch:
        columns = [indices * 7919 % self.keys, 1 + indices % 9, times_of(indices, self.per_s)]
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=EVENTS)


class Nothing(tg.Sink):
    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return _NothingWriter()


class _NothingWriter(tg.SinkWriter):
    def write(self, batch: Any) -> None:
        return


def job(spark: Any, kind: str, records: int, keys: int = work.KEYS, per_s: int = work.PER_S) -> tuple[Any, Any]:
    """The environment, and the stream of results."""
    env = tg.StreamEnvironment(f"windows-{kind}", parallelism=2, spark=spark)
    env.checkpointing(every="1s", storage=harness.fresh_folder(f"windows-{kind}").as_uri())
    env.restart_strategy("none")
    source = tg.DataGenerator(Events(keys, per_s), count=records, vectorised=True, type=EVENTS, splits=2)
    behind = tg.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts")
    events = env.from_source(source, uid="events").assign_timestamps_and_watermarks(behind)
    windows = events.key_by("k").window(ASSIGNERS[kind]())
    return env, windows.aggregate(least=tg.min("ts"), n=tg.count(), total=tg.sum("v"), uid="windows")


def ours(spark: Any, kind: str, records: int) -> float:
    env, results = job(spark, kind, records)
    results.sink_to(Nothing(), uid="nothing")
    began = time.perf_counter()
    env.execute(quiet=True)
    return time.perf_counter() - began


def flinks(kind: str, records: int, *more: Any, answers: Path | None = None) -> float:
    keys, per_s = more or (work.KEYS, work.PER_S)
    candidate = compare.Candidate("Flink SQL", "apache-flink", "flink_windows.py", 0, 0)
    options = [kind, "--keys", str(keys), "--per-s", str(per_s)]
    return float(compare.run(candidate, records, options, answers)["seconds"])


def sparks(records: int) -> float:
    candidate = compare.Candidate("Spark", "pyspark", "spark_streaming.py", 0, 0)
    batches = max(records // SPARK_BATCH, 1) * SPARK_BATCH
    return float(compare.run(candidate, batches, ["windows", "--batch", str(SPARK_BATCH)])["seconds"])


# -- checking -----------------------------------------------------------------------------------------------------------------


def expected(kind: str, records: int, keys: int, per_s: int) -> Counter[Window]:
    """In plain Python, over the whole input."""
    of_key: dict[int, list[tuple[int, int]]] = {}
    for index in range(records):
        of_key.setdefault(index * 7919 % keys, []).append((int(times_of(index, per_s)), 1 + index % 9))
    found: Counter[Window] = Counter()
    for key, events in of_key.items():
        for window in _sessions(sorted(events)) if kind == "session" else _aligned(kind, events):
            found[key, min(window)[0], len(window), sum(value for _, value in window)] += 1
    return found


def _aligned(kind: str, events: list[tuple[int, int]]) -> Iterable[list[tuple[int, int]]]:
    size = work.SIZE_MS if kind == "tumble" else work.HOP_MS
    windows: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        start = event[0] // work.SLIDE_MS * work.SLIDE_MS
        for back in range(0, size, work.SLIDE_MS):
            windows.setdefault(start - back, []).append(event)
    return windows.values()


def _sessions(events: list[tuple[int, int]]) -> Iterable[list[tuple[int, int]]]:
    session = events[:1]
    for event in events[1:]:
        if event[0] - session[-1][0] > work.GAP_MS:
            yield session
            session = []
        session.append(event)
    yield session


def checked(spark: Any, kind: str, flink: bool) -> None:
    """:raises compare.work.WrongAnswer:"""
    few = (CHECKED, CHECKED_KEYS, CHECKED_PER_S)
    wanted = expected(kind, *few)
    env, results = job(spark, kind, *few)
    results.collect(uid="results")
    rows = env.execute(quiet=True).results("results")
    compare_with(
        wanted, Counter((row["k"], row["least"], row["n"], row["total"]) for row in rows), f"Tidegate's {kind}"
    )
    if flink:
        with tempfile.TemporaryDirectory(prefix="tidegate-windows-") as folder:
            flinks(kind, *few, answers=Path(folder))
            found = json.loads((Path(folder) / "rows.json").read_text())
        compare_with(wanted, Counter(tuple(row) for row in found), f"Flink's {kind}")


def compare_with(wanted: Counter[Window], found: Counter[Window], whose: str) -> None:
    if found != wanted:
        raise compare.work.WrongAnswer(
            f"{whose}: too many {list((found - wanted).items())[:3]}, missing {list((wanted - found).items())[:3]}"
        )
    harness.say(f"{whose}: all {sum(wanted.values()):,} windows are right")


# -- measuring ----------------------------------------------------------------------------------------------------------------


def speed(run: Any, records: int) -> float:
    small, large = (run(size) for size in (records // 4, records))
    if large <= small:
        raise SystemExit(f"{records:,} records took no longer than {records // 4:,}: give more --records")
    return float((records - records // 4) / (large - small))


def main(arguments: list[str] | None = None, spark: Any = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=8_000_000)
    parser.add_argument("--peer-records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="0: only the checks")
    parser.add_argument("--only", default=",".join(work.KINDS))
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--save", help="name of a file in benchmarks/results")
    options = parser.parse_args(arguments)
    spark = spark or harness.session(8)
    kinds = options.only.split(",")
    for kind in kinds if options.check else ():
        checked(spark, kind, not options.no_peers)
    runs: dict[str, Any] = {}
    for kind in kinds:
        runs[kind] = lambda kind=kind: speed(lambda records: ours(spark, kind, records), options.records)
        if not options.no_peers:
            runs[f"flink_{kind}"] = lambda kind=kind: speed(lambda records: flinks(kind, records), options.peer_records)
            if kind == "tumble":
                runs["spark_tumble"] = lambda: speed(sparks, 2 * options.peer_records)
    speeds = harness.interleave(options.rounds, runs) if options.rounds else {}
    result: dict[str, Any] = {f"{name}_records_per_s": int(harness.median(found)) for name, found in speeds.items()}
    pairs = {f"{kind}_vs_flink": (kind, f"flink_{kind}") for kind in kinds} | {
        "tumble_vs_spark": ("tumble", "spark_tumble")
    }
    for name, (over, under) in (pairs | {"hop_cost": ("tumble", "hop")}).items():
        if over in speeds and under in speeds:
            found = harness.ratios(speeds[over], speeds[under])
            result[name], result[f"{name}_spread"] = harness.median(found), harness.spread(found)
    result |= {"checked": options.check, "records": options.records, "machine": harness.machine()}
    if options.save:
        harness.save(options.save, result)
    harness.finish(result)


if __name__ == "__main__":
    main()
