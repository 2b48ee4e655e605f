"""Small bounded jobs, and how the tests on Spark run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tidegate as tg

PATIENCE = "120s"  #: for a job of a second or two, on a busy machine


@dataclass(frozen=True)
class Order:
    customer: str
    item: str
    amount: int


ORDERS = [Order(f"customer-{n % 5}", f"item-{n % 3}", n * n % 37) for n in range(60)]


@dataclass(frozen=True)
class Case:
    """One branch of a job, and the answer that plain Python gives. Many branches make one job: a start costs seconds."""

    name: str
    build: Callable[[tg.DataStream], tg.DataStream]  #: from the stream that all cases share
    expected: Any  #: records in any order, or what `of` makes of them
    of: Callable[[list[Any]], Any] | None = None

    def check(self, rows: list[Any]) -> None:
        if self.of is None:
            assert Counter(rows) == Counter(self.expected)
        else:
            assert self.of(rows) == self.expected


def add_cases(stream: tg.DataStream, cases: Iterable[Case]) -> None:
    for case in cases:
        case.build(stream).collect(uid=case.name)


def finish(env: tg.StreamEnvironment, **options: Any) -> tg.JobClient:
    """Run the job to its end."""
    client = env.execute_async(**options)
    assert client.wait(PATIENCE) is tg.JobStatus.FINISHED, told_by(client)
    return client


def told_by(client: tg.JobClient) -> str:
    """What the job has said of itself, for a test that fails: its log, and the newest of each slot."""
    seen = client.view.snapshot()
    said = [f"{line.at:.2f} {line.attempt} {line.slot} {line.message}" for line in client.view.lines][-60:]
    slots = [f"{slot}: {heartbeat}" for slot, heartbeat in sorted(seen.heartbeats.items())]
    return "\n".join([f"{seen.status} {seen.status_detail}", *said, *slots, f"workers: {client.workers()}"])


def newest(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """The last value of each key, for streams of updates that are in order for each key."""
    return dict(pairs)
