"""What state gives is what it gives after a restore, on either backend: also where the type says less than the value, as of
an int in the place of a float, the zone of a moment, and the fold of a naive one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Optional

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.testing import harness
from tidegate.types import NaiveDatetime, data_type

MOMENT = datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=13)))
IN_UTC = datetime(2026, 6, 30, 11, tzinfo=UTC)
FOLDED = datetime(2026, 10, 25, 2, 30, fold=1)


@dataclasses.dataclass
class Reading:
    level: float
    at: datetime


@dataclasses.dataclass(frozen=True)
class Frozen:
    level: Optional[float]  # noqa: UP045 - as users write it


CASES: dict[str, tuple[Any, Any, Any]] = {
    "float": (float, 3, 3.0),
    "moment": (datetime, MOMENT, IN_UTC),
    "perhaps a moment": (datetime | None, MOMENT, IN_UTC),
    "naive": (NaiveDatetime, FOLDED, FOLDED.replace(fold=0)),
    "tuple": (tuple[float, int], (3, 1), (3.0, 1)),
    "tuple of what may be None": (tuple[float | None, datetime | None], (3, None), (3.0, None)),
    "list": (list[float], [3, 1.5], [3.0, 1.5]),
    "list of moments": (list[datetime], [MOMENT, IN_UTC], [IN_UTC, IN_UTC]),
    "dict": (dict[str, list[float]], {"a": [3]}, {"a": [3.0]}),
    "dict by moments": (dict[datetime, float], {MOMENT: 3}, {IN_UTC: 3.0}),
    "dataclass": (Reading, Reading(3, MOMENT), Reading(3.0, IN_UTC)),
    "frozen": (Frozen, Frozen(3), Frozen(3.0)),
    "narrow float in a tuple": (tuple[pa.float32(), int], (0.1, 1), (0.10000000149011612, 1)),
}


def seen(value: Any) -> str:
    """With what equality does not look at."""
    return f"{value!r} {getattr(value, 'fold', '')}"


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("case", CASES)
def test_what_state_gives_is_what_it_gives_after_a_restore(case: str, backend: str) -> None:
    of, given, expected = CASES[case]

    class Kept(tg.KeyedProcessFunction):
        value = tg.ValueState(of)
        expiring = tg.ValueState(of, ttl=tg.Ttl("1d"))
        elements = tg.ListState(of)
        entries = tg.MapState(str, of)
        reduced = tg.ReducingState(of, lambda so_far, value: value)

        def process_element(self, value: str, ctx: tg.Context) -> Iterator[Any]:
            if value == "put":
                self.value.set(given)
                self.expiring.set(given)
                self.elements.add(given)
                self.entries["k"] = given
                self.reduced.add(given)
            found = [self.value.get(), self.expiring.get(), *self.elements.get(), self.entries["k"], self.reduced.get()]
            yield list(map(seen, found))

    running = harness(Kept(), key_by=lambda value: "all", backend=backend)
    running.process("put")
    running.restore(running.snapshot())
    running.process("look")

    assert running.output == [[seen(expected)] * 5] * 2


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_the_keys_of_a_map_are_those_that_it_has_after_a_restore(backend: str) -> None:
    class Kept(tg.KeyedProcessFunction):
        state = tg.MapState(datetime, int)

        def process_element(self, value: str, ctx: tg.Context) -> Iterator[Any]:
            self.state[MOMENT] = 1
            yield from map(seen, self.state.keys())

    running = harness(Kept(), key_by=lambda value: "all", backend=backend)

    assert running.process("put") == [seen(IN_UTC)]


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_stays_for_the_check_that_names_it(case: str) -> None:
    of, given, _ = CASES[case]
    declared = data_type(of)

    for odd in (object(), "3", [object()], (object(), object()), {"a": object()}, None):
        settled = declared.settled(odd)
        assert settled is odd or settled == odd
    if dataclasses.is_dataclass(given):
        unset = object.__new__(type(given))
        assert declared.settled(unset) is unset
