"""The user's own counters: what they refuse, and that the subtasks of a job add up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tidegate as tg
from tidegate.functions.counters import MAX_COUNTERS, Counters
from tidegate.testing import run_in_process


class Parity(tg.ProcessFunction):
    def open(self, ctx: tg.Context) -> None:
        self.odd = ctx.counter("odd")

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        if value % 2:
            self.odd.inc()
        else:
            ctx.counter("even sum").inc(value)
        yield value


def test_the_counters_of_all_subtasks_are_in_the_view_to_the_last_record() -> None:
    env = tg.StreamEnvironment("parity", parallelism=3)
    env.checkpointing(storage="memory://parity")
    env.from_sequence(1, 1000, uid="numbers").rebalance().process(Parity(), uid="parity").collect(uid="all")

    result = run_in_process(env)

    assert sorted(result.collected.rows("all")) == list(range(1, 1001))
    found = [m for beat in result.view.heartbeats.values() for m in beat.operators if m.uid == "parity"]
    assert len(found) == 3
    assert sum(m.counters["odd"] for m in found) == 500
    assert sum(m.counters["even sum"] for m in found) == sum(range(2, 1001, 2))
    assert sum(m.records_in for m in found) == 1000


def test_a_name_gives_the_same_counter() -> None:
    counters = Counters()
    counters.get("a").inc(3)
    counters.get("a").dec()
    counters.get("b").inc(np.int64(4))

    assert counters.values() == {"a": 2, "b": 4}
    assert type(counters.values()["b"]) is int, "it travels as a plain number"


@pytest.mark.parametrize("name", ["", "x" * 201, 7])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a counter needs a name"):
        Counters().get(name)


def test_there_is_a_bound_on_names() -> None:
    counters = Counters()
    for number in range(MAX_COUNTERS):
        counters.get(str(number)).inc()

    with pytest.raises(ValueError, match="State is the place to count for each key"):
        counters.get("one more")
    counters.get("7").inc()
    assert len(counters.values()) == MAX_COUNTERS
