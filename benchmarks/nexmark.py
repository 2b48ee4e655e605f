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


def flink_answered(names: list[str], count: int) -> dict[str, Counter[tuple[Any, ...]] | str]:
    """All of them in one JVM; in place of an answer, why there is none."""
    with tempfile.TemporaryDirectory(prefix="tidegate-nexmark-") as folder:
        flink(",".join(names), count, Path(folder))
        said = json.loads((Path(folder) / "rows.json").read_text())
    left = {name: what_is_left(rows, QUERIES[name].key) for name, rows in said["rows"].items()}
    return left | said["failed"]


def what_is_left(changes: list[tuple[str, list[str]]], key: tuple[int, ...] = ()) -> Counter[tuple[Any, ...]]:
    """Of a stream of changes: a row comes with +I and +U, and goes with -U and -D. Of an answer with a key the newest row of
    each stays: Flink does not say what a row takes the place of, where the key says it."""
    rows: Counter[tuple[Any, ...]] = Counter()
    newest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for change, cells in changes:
        row = answers.row(cells)
        if not key:
            rows[row] += -1 if change.startswith("-") else 1
        elif not change.startswith("-"):
            newest[tuple(row[place] for place in key)] = row
        elif newest.get(of := tuple(row[place] for place in key)) == row:
            del newest[of]
    return Counter(newest.values()) if key else +rows


def equal(name: str, query: Query, spark: Any, count: int) -> bool:
    wanted = answers.by_duckdb(query, count)
    is_equal = answered(name, count, spark) == wanted
    harness.say(f"{name}: {'equal to' if is_equal else 'NOT'} DuckDB's, {sum(wanted.values()):,} rows")
    return is_equal


def flink_is_equal(names: list[str], count: int) -> dict[str, bool]:
    comparable = [name for name in names if name not in BY_THE_CLOCK]
    found = flink_answered(comparable, count)
    result = {}
    for name in comparable:
        wanted = answers.by_duckdb(QUERIES[name], count)
        result[name] = found[name] == wanted
        if isinstance(found[name], str):
            harness.say(f"{name}: Flink has no answer: {found[name]}")
        elif not result[name]:
            harness.say(f"{name}: Flink's answer is another one, so its speed says nothing")
    return result


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
    equals = {name: equal(name, QUERIES[name], spark, options.checked_events) for name in names}
    result: dict[str, Any] = {"all_equal": all(equals.values()), "equal": equals, "events": options.events}
    if not options.no_flink:
        result["flink_equal"] = flink_is_equal(names, options.checked_events)
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
