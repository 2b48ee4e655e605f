"""An exception in each method that a user can write, once each, in one job. Real Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.jobs.faulty import FATAL, HARMLESS
from faults.jobs.tally import Settings
from faults.kit import assert_exact, watched
from tidegate.coordinator.observing import JobStatus

pytestmark = [pytest.mark.spark, pytest.mark.faults]

#: Where the failure is said to be. The slot that is still being built has no operators yet.
UIDS = {
    "source function": "readings",
    "filter function": "keep",
    "open": "of-source",
    "process_element": "of-source",
    "end_input": "of-source",
    "map function": "same",
    "key function": "of-bucket",  # whose keys they are, though the sender calls it
    "write": "files",
    "flush": "files",
    "prepare": "files",
    "sink end_input": "files",
}


def test_an_exception_in_each_user_method_changes_nothing(tmp_path: Path, spark_session: SparkSession) -> None:
    settings = Settings(name="exceptions", folder=str(tmp_path), trips=True)

    with watched(settings, spark_session) as job:
        assert job.await_end() is JobStatus.FINISHED
        errors = [failure.error for failure in job.failures()]

    tripped = {name.removeprefix("tripped ") for name in os.listdir(settings.notes)}
    assert tripped == {*FATAL, *HARMLESS}
    assert_exact(settings)
    assert len(errors) == len(FATAL), errors
    for error, place in zip(errors, FATAL):
        assert error.startswith(f"Tripped: {place}")
        if place in UIDS:
            assert f"(uid {UIDS[place]!r})" in error
            assert "tally.py:" in error or "faulty.py:" in error, f"the user's line is missing: {error}"
