"""Nexmark: every query's answer beside DuckDB's over the same events, and records/s beside Flink SQL's, in turn.

    python benchmarks/nexmark.py [--queries q0,q3] [--events 1000000] [--rounds 3] [--no-flink] [--save NAME]

The queries are jobs of the public API (nexmark/jobs.py), in SQL they are in nexmark/queries.py; events come out of order from
a fixed seed (nexmark/events.py). Parallelism 2, exactly-once checkpoints each second. First each answer is compared over few
events, ours and Flink's; then both are timed, with answers thrown away, at two sizes, so that start-up is not in the speed.
Flink does not fire windows of the clock when its input ends, so its answer to q12 is not compared.

Last line, JSON: `all_equal`, `least_vs_flink_of_six` (q3, q4, q5, q7, q8, q11), `least_vs_flink`, and each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent / name) for name in ("peers", "nexmark")]

import answers
import compare
import environments
import events
import harness
import jobs
from queries import QUERIES, Query

import tidegate as tg

SIX = ("q3", "q4", "q5", "q7", "q8", "q11")
CHECKED_EVENTS = 20_000
BY_THE_CLOCK = ("q12",)


class Nothing(tg.Sink):
    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return _NothingWriter()


class _NothingWriter(tg.SinkWriter):
    def write(self, batch: Any) -> None:
        return


def environment(name: str, spark: Any) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment(f"nexmark-{name}", parallelism=jobs.PARALLELISM, spark=spark)
    env.checkpointing(every="1s", storage=harness.fresh_folder(f"nexmark-{name}").as_uri())
    return env.restart_strategy("none")


def answered(name: str, count: int, spark: Any) -> Counter[tuple[Any, ...]]:
    env = environment(name, spark)
    jobs.JOBS[name](env, count).collect(uid="answers")
    return answers.newest(QUERIES[name], env.execute(quiet=True).results("answers"))


def seconds(name: str, count: int, spark: Any) -> float:
    env = environment(name, spark)
    jobs.JOBS[name](env, count).sink_to(Nothing(), uid="nothing")
    began = time.perf_counter()
    env.execute(quiet=True)
    return time.perf_counter() - began


def flink(name: str, count: int, folder: Path | None = None) -> float:
    candidate = compare.Candidate("Flink SQL", "apache-flink", "../nexmark/flink.py", 0, 0)
    return float(compare.run(candidate, count, [name], folder)["seconds"])


def flink_answered(name: str, count: int) -> Counter[tuple[Any, ...]]:
    with tempfile.TemporaryDirectory(prefix="tidegate-nexmark-") as folder:
        flink(name, count, Path(folder))
        return what_is_left(json.loads((Path(folder) / "rows.json").read_text()))


def what_is_left(changes: list[tuple[str, list[str]]]) -> Counter[tuple[Any, ...]]:
    """Of a stream of changes: a row comes with +I and +U, and goes with -U and -D."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for change, cells in changes:
        rows[answers.row(cells)] += -1 if change.startswith("-") else 1
    return +rows


def equal(name: str, query: Query, spark: Any, with_flink: bool, count: int) -> bool:
    wanted = answers.by_duckdb(query, count)
    ours = answered(name, count, spark) == wanted
    harness.say(f"{name}: {'equal to' if ours else 'NOT'} DuckDB's, {sum(wanted.values()):,} rows")
    theirs = True
    if with_flink and name not in BY_THE_CLOCK:
        theirs = flink_answered(name, count) == wanted
        if not theirs:
            harness.say(f"{name}: Flink's answer is another one, so its speed says nothing")
    return ours and theirs


def speed(run: Any, name: str, count: int, *more: Any) -> float:
    sizes = [max(count * part // 5 // events.TOTAL, 1) * events.TOTAL for part in (1, 5)]
    small, large = (run(name, size, *more) for size in sizes)
    if large <= small:
        raise SystemExit(f"{name}: {sizes[1]} events took no longer than {sizes[0]}: give more --events")
    return float((sizes[1] - sizes[0]) / (large - small))


def main(arguments: list[str] | None = None, spark: Any = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--queries", default=",".join(jobs.JOBS))
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--checked-events", type=int, default=CHECKED_EVENTS)
    parser.add_argument("--rounds", type=int, default=3, help="0: only the answers")
    parser.add_argument("--no-flink", action="store_true")
    parser.add_argument("--save", help="name of a file in benchmarks/results")
    options = parser.parse_args(arguments)
    spark = spark or harness.session(24)
    names = options.queries.split(",")
    if not options.no_flink:
        environments.python_of("apache-flink")
    equals = {name: equal(name, QUERIES[name], spark, not options.no_flink, options.checked_events) for name in names}
    result: dict[str, Any] = {"all_equal": all(equals.values()), "equal": equals, "events": options.events}
    ratios: dict[str, float] = {}
    for name in names if options.rounds else ():
        runs = {"tidegate": lambda: speed(seconds, name, options.events, spark)}  # noqa: B023
        if not options.no_flink:
            runs["flink"] = lambda: speed(flink, name, options.events)  # noqa: B023
        speeds = harness.interleave(options.rounds, runs)
        found = {f"{who}_events_per_s": int(harness.median(values)) for who, values in speeds.items()}
        if "flink" in speeds:
            each = harness.ratios(speeds["tidegate"], speeds["flink"])
            ratios[name] = harness.median(each)
            found |= {"vs_flink": ratios[name], "spread": harness.spread(each)}  # type: ignore[dict-item]
        result[name] = found
    if ratios:
        result["least_vs_flink"] = min(ratios.values())
    if all(name in ratios for name in SIX):
        result["least_vs_flink_of_six"] = min(ratios[name] for name in SIX)
    result |= {
        "missing": [name for name in QUERIES if name not in names],
        "machine": harness.machine() | {"peers": compare.environments.RELEASES},
    }
    if options.save:
        harness.save(options.save, result)
    harness.finish(result)


if __name__ == "__main__":
    main()
