"""Runs of the product are behaviours of the specification; and a run in which one thing is not as it was, is not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from random_runs import BACKENDS, KINDS
from traced_runs import traced_run

import fetch
from services import had
from traces import Run, explained, refused

SEED = 50_000


def places(run: Run, name: str) -> list[int]:
    return [place for place, event in enumerate(run) if event[0] == name]


def without_the_last_answer(run: Run) -> None:
    """A checkpoint counts though a slot has not answered."""
    logged = places(run, "logged")[0]
    del run[max(place for place in places(run, "heard") if place < logged)]


def without_the_log(run: Run) -> None:
    """It is committed, and no record says that it counts."""
    del run[places(run, "logged")[0]]


def with_a_lost_record(run: Run) -> None:
    """The sender says of a channel that one more was sent before the barrier than its receiver has passed."""
    for place in places(run, "forward"):
        _, slot, _, _, _, _, sent = run[place]
        if sent:
            run[place][6] = [sent[0] + 1, *sent[1:]]
            for later in places(run, "taken"):
                if later > place and run[later][1] == slot:
                    run[later][3] = run[place][6]
                    return


def with_a_record_after_the_barrier(run: Run) -> None:
    """When the snapshot is taken, one record of a channel was passed that came after its barrier."""
    for place in places(run, "forward"):
        if run[place][4] and not run[place][3]:
            run[place][4] = [run[place][4][0] + 1, *run[place][4][1:]]
            return


def with_a_shorter_cut(run: Run) -> None:
    """A snapshot lacks one of the records that were under way."""
    for place in places(run, "acknowledge"):
        for channel, captured in enumerate(run[place][3]):
            if captured:
                run[place][3] = [count - (at == channel) for at, count in enumerate(run[place][3])]
                return


def with_a_forgotten_piece(run: Run) -> None:
    """Output that nobody has committed is in one snapshot and not in the next."""
    first = next(place for place in places(run, "taken") if run[place][4])
    run[first][4] = frozenset()


def with_records_forgotten_by_the_restore(run: Run) -> None:
    """One of the records that were under way is with nobody after the restore."""
    for place in places(run, "restore"):
        if run[place][3]:
            run[place][3] -= 1
            run[place][4] -= 1
            return


def with_an_older_checkpoint(run: Run) -> None:
    """An attempt continues from another checkpoint than the log names."""
    began = next(place for place in places(run, "attempt") if run[place][3])
    older = run[began][3] - 1
    for place in places(run, "restore"):
        if place > began and run[place][2] == run[began][3]:
            run[place][2] = older
    run[began][3] = older


def with_an_unfinished_end(run: Run) -> None:
    """FINISHED is in the log before the last output is committed."""
    last = run[places(run, "commit")[-1]][3]
    run[:] = [event for event in run if event[0] not in ("commit", "forget") or not event[-1] & last]


ALTERED: tuple[Callable[[Run], Any], ...] = (
    without_the_last_answer,
    without_the_log,
    with_a_lost_record,
    with_a_record_after_the_barrier,
    with_a_shorter_cut,
    with_a_forgotten_piece,
    with_records_forgotten_by_the_restore,
    with_an_older_checkpoint,
    with_an_unfinished_end,
)


@dataclass(frozen=True)
class Compared:
    """Runs, each with what was altered in it ("": nothing), and what TLC says of them; one start for all."""

    runs: list[tuple[str, Run]]
    refused: list[int]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    had("TLC", fetch.NotFetched, lambda: fetch.folder_of("tlc"))
    folder = str(tmp_path_factory.mktemp("rocksdb"))
    runs: list[tuple[str, Run]] = []
    for number, kind in enumerate(KINDS):
        run, wrong = traced_run(kind, BACKENDS[number % 2], SEED + number, folder)
        assert not wrong
        runs.append(("", run))
    altered = [(alter.__name__, first_altered([run for _, run in runs], alter)) for alter in ALTERED]
    return Compared(runs + altered, refused([run for _, run in runs + altered]))


def first_altered(runs: list[Run], alter: Callable[[Run], Any]) -> Run:
    for run in runs:
        other = copy.deepcopy(run)
        with contextlib.suppress(IndexError, StopIteration):
            alter(other)
            if other != run:
                return other
    raise AssertionError(f"no run has what {alter.__name__} alters")


def test_runs_of_every_kind_are_behaviours_of_the_specification(compared: Compared) -> None:
    wrong = [run for place, (altered, run) in enumerate(compared.runs) if place in compared.refused and not altered]
    assert not wrong, explained(wrong[0])


def test_a_run_in_which_one_thing_is_not_as_it_was_is_refused(compared: Compared) -> None:
    followed = [name for place, (name, _) in enumerate(compared.runs) if name and place not in compared.refused]
    assert not followed
