"""What docs/failure-scenarios.md says of crashes while a savepoint is taken is what happens: its table is read, and tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_savepoint_jobs import AtTheSavepoint, job, request

from tidegate.coordinator.observing import AttemptStarted, JobEvent, JobStatus
from tidegate.ids import SlotId
from tidegate.protocol.checkpoint_events import Purpose, StopMode
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import Crash, SimulatedCrash
from tidegate.testing.ledger_sink import forget_ledgers
from tidegate.testing.runner import Ask, InProcessRun

PAGE = Path(__file__).parents[2] / "docs" / "failure-scenarios.md"
PURPOSES = {None: (Purpose.SAVEPOINT,), StopMode.SUSPEND: (Purpose.SUSPEND,), StopMode.DRAIN: (Purpose.DRAIN,)}


def scenes() -> list[tuple[str, StopMode | None, str, str]]:
    """(crash point, what was asked for, what the job continues from, what is in the folder), from the page's table."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").split("A savepoint passes the same points")[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            words = [re.findall(r"\*\*(.+?)\*\*", cell) for cell in cells[3:]]
            stops = [None] if cells[1] == "a savepoint" else [StopMode.SUSPEND, StopMode.DRAIN]
            found += [(cells[0].strip("`"), stop, words[0][0], words[1][0]) for stop in stops]
    return found


class Noting(AtTheSavepoint):
    """Remembers at which checkpoint the process died."""

    died_at: int = 0

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        try:
            super().reach(point, slot, checkpoint)
        except SimulatedCrash:
            self.died_at = checkpoint or 0
            raise


def test_the_page_has_a_line_for_each_point() -> None:
    assert len(scenes()) == 4 + 2 * 5


@pytest.mark.parametrize(("point", "stop", "goes_on_from", "folder"), scenes())
def test_recovery_sees_what_the_page_says(point: str, stop: StopMode | None, goes_on_from: str, folder: str) -> None:
    for seed in range(30):  # not every order of events comes to every point
        forget_ledgers()
        ask, points, attempts = Ask(request(stop), after_checkpoints=1), Noting([Crash(point)]), []

        def on(event: JobEvent, attempts: list[AttemptStarted] = attempts) -> None:
            if isinstance(event, AttemptStarted):
                attempts.append(event)

        run = InProcessRun(job(), seed, asks=[ask], crash_points=points, zombies=False)
        points.run = run
        points.purposes = frozenset(purpose.value for purpose in PURPOSES[stop])
        run.world.view.subscribe(on)
        assert run.run().status is JobStatus.FINISHED
        if points.died_at:
            break
    else:
        raise AssertionError(f"{point} was never reached")

    n, restored = points.died_at, attempts[1].restored_from or 0
    assert ("n-1" if restored < n else "n" if restored == n else "a newer checkpoint") == goes_on_from
    directory = ask.request.directory
    assert directory is not None
    paths = [path for path in open_store(directory).list("") if f"-{n}-" in path.partition("/")[0]]
    whole = any(path.endswith("/_metadata.json") for path in paths)
    assert ("nothing" if not paths else "the savepoint" if whole else "rubbish") == folder
