"""What windows must give, worked out over the whole input in plain Python or by DuckDB, and inputs to try them on."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tidegate as tg

Record = tuple[str, int, int]  #: key, time in ms, number
Result = tuple[str, int, int, int, int]  #: key, window start, window end, how many records, their sum
TYPE = tuple[str, int, int]


@dataclass(frozen=True)
class Step:
    """Records that come together, and the watermark after them."""

    records: list[Record]
    watermark: int


def random_steps(
    seed: int, count: int = 120, span_ms: int = 60_000, disorder_ms: int = 4000, late: int = 0
) -> list[Step]:
    """Out of order by up to `disorder_ms`, which watermarks allow for; `late` more records come long after that."""
    rng = random.Random(seed)
    times = sorted(rng.randrange(span_ms) for _ in range(count))
    records = [(rng.choice("abcd"), time, rng.randrange(100)) for time in times]
    records.sort(key=lambda record: record[1] + rng.randrange(disorder_ms))
    for _ in range(late):
        place = rng.randrange(count // 2, len(records))
        records.insert(
            place, (rng.choice("abcd"), max(0, records[place][1] - rng.randrange(30_000)), rng.randrange(100))
        )
    steps, watermark = [], -(2**63)
    while records:
        size = rng.randrange(1, 12)
        part, records = records[:size], records[size:]
        steps.append(Step(part, watermark))
        watermark = max(watermark, max(time for _, time, _ in part) - disorder_ms)
        steps[-1] = Step(part, watermark)
    return steps


def answer(assigner: tg.WindowAssigner, records: list[Record]) -> list[Result]:
    """`SELECT key, start, end, count(*), sum(number) FROM input GROUP BY key, window`, of records that are all on time."""
    groups: dict[Any, list[int]] = defaultdict(list)
    if isinstance(assigner, tg.EventTimeSessionWindows):
        for key, start, end, numbers in sessions(assigner, records):
            groups[key, start, end] += numbers
    else:
        for key, time, number in records:
            for start, end in assigner.assign_windows(None, time):
                groups[key, start, end].append(number)
    return sorted((*group, len(numbers), sum(numbers)) for group, numbers in groups.items())


def sessions(assigner: tg.EventTimeSessionWindows, records: list[Record]) -> Iterator[tuple[str, int, int, list[int]]]:
    gap = assigner.gap_ms
    assert gap is not None
    by_key: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_key[record[0]].append(record)
    for key, mine in by_key.items():
        open_session: tuple[int, int, list[int]] | None = None
        for _, time, number in sorted(mine, key=lambda record: record[1]):
            if open_session is not None and time <= open_session[1]:
                open_session = (open_session[0], time + gap, [*open_session[2], number])
                continue
            if open_session is not None:
                yield (key, *open_session)
            open_session = (time, time + gap, [number])
        if open_session is not None:
            yield (key, *open_session)


def on_time(assigner: tg.WindowAssigner, steps: list[Step], lateness_ms: int = 0) -> tuple[list[Result], list[Record]]:
    """The answer over what each window of an aligned assigner accepts, and the records that none accepts."""
    groups: dict[Any, list[int]] = defaultdict(list)
    late, watermark = [], -(2**63)
    for step in steps:
        for record in step.records:
            key, time, number = record
            windows = list(assigner.assign_windows(None, time))
            taken = [window for window in windows if window.end - 1 + lateness_ms > watermark]
            for window in taken:
                groups[key, *window].append(number)
            if windows and not taken:
                late.append(record)
        watermark = step.watermark
    return sorted((*group, len(numbers), sum(numbers)) for group, numbers in groups.items()), late
