"""The judge of first sightings finds rows that were seen too early."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from endtoend.sightings import FirstSightings
from faults.jobs.tally import Settings


def logged(settings: Settings, checkpoint: int, attempt: int, at: float) -> None:
    log = Path(settings.log)
    log.mkdir(parents=True, exist_ok=True)
    file = log / f"{checkpoint:08}.json"
    latest = {"id": checkpoint, "generation": 1, "attempt": attempt}
    file.write_text(json.dumps({"record": {"kind": "checkpoint", "latest": latest}}))
    os.utime(file, (at, at))


def prepared(settings: Settings, checkpoint: int, attempt: int, rows: list[list[int]]) -> None:
    Path(settings.epochs).mkdir(exist_ok=True)
    (Path(settings.epochs) / f"{checkpoint}.g1-a{attempt}.0.json").write_text(json.dumps(rows))


def test_a_row_is_early_before_the_record_of_an_attempt_that_prepared_it(tmp_path: Path) -> None:
    settings = Settings("seen", str(tmp_path))
    prepared(settings, 1, 1, [[1], [2]])
    prepared(settings, 2, 1, [[3]])  # of an attempt that died: this checkpoint was completed by the next one
    prepared(settings, 2, 2, [[4]])
    logged(settings, 1, 1, at=100.0)
    logged(settings, 2, 2, at=200.0)
    sightings = FirstSightings(list, settings)

    sightings.seen = {(1,): 100.0, (2,): 150.0, (4,): 201.0}
    sightings.assert_none_was_early()
    for row, at in {(2,): 99.0, (4,): 150.0, (3,): 900.0, (5,): 900.0}.items():
        sightings.seen = {(1,): 100.0, row: at}
        with pytest.raises(AssertionError, match="1 of 2 rows were seen too early"):
            sightings.assert_none_was_early()


def test_a_reader_that_never_saw_anything_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nothing was ever seen"):
        FirstSightings(list, Settings("blind", str(tmp_path))).assert_none_was_early()
