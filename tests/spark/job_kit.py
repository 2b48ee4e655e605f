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
    assert client.wait(PATIENCE) is tg.JobStatus.FINISHED
    return client


def newest(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """The last value of each key, for streams of updates that are in order for each key."""
    return dict(pairs)
