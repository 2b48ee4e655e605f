"""Runs of the product are behaviours of the specification; and a run in which one thing is not as it was, is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from random_runs import BACKENDS, KINDS
from traced_runs import traced_run

import fetch
from services import had
from traces import Run, explained, refused

SEED = 50_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    had("TLC", fetch.NotFetched, lambda: fetch.folder_of("tlc"))
    folder = str(tmp_path_factory.mktemp("rocksdb"))
    found = []
    for number, kind in enumerate(KINDS):
        run, wrong = traced_run(kind, BACKENDS[number % 2], SEED + number, folder)
        assert not wrong
        found.append(run)
    return found


def test_runs_of_every_kind_are_behaviours_of_the_specification(runs: list[Run]) -> None:
    wrong = refused(runs)
    assert not wrong, explained(runs[wrong[0]])


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


def test_a_run_in_which_one_thing_is_not_as_it_was_is_refused(runs: list[Run]) -> None:
    altered: list[tuple[str, Run]] = []
    for alter in ALTERED:
        for run in runs:
            other = copy.deepcopy(run)
            try:
                alter(other)
            except (IndexError, StopIteration):
                continue
            if other != run:
                altered.append((alter.__name__, other))
                break
    assert [name for name, _ in altered] == [alter.__name__ for alter in ALTERED], "no run has what is to be altered"
    wrong = refused([run for _, run in altered])
    followed = [name for place, (name, _) in enumerate(altered) if place not in wrong]
    assert not followed
