"""Savepoints on real Spark: taken while the job runs, read by others, stopped with, rescaled, gone on from elsewhere."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from job_kit import PATIENCE, finish
from test_job_client import KEYS, TOTAL, counting, rows_in, wait_until

import tidegate as tg
from tidegate.coordinator.observing import JobStatus

pytestmark = pytest.mark.spark


def assert_counted_exactly(out: Path) -> None:
    rows = rows_in(out)
    assert Counter(value for _, _, value in rows) == Counter(range(TOTAL))
    for key in range(KEYS):
        counts = sorted(count for of, count, _ in rows if of == key)
        assert counts == list(range(1, len(counts) + 1))


def running(storage: str, out: Path) -> tg.JobClient:
    client = counting(storage, out, rate=2000).execute_async()
    wait_until(client, lambda: client.view.completed >= 1)
    return client


def test_a_savepoint_of_a_running_job_is_read_by_duckdb_and_pandas_alone(storage: str, tmp_path: Path) -> None:
    client = running(storage, tmp_path / "out")
    path = client.savepoint(str(tmp_path / "savepoints"))
    assert client.wait(PATIENCE) is JobStatus.FINISHED

    folder = Path(path.removeprefix("file://"))
    table = duckdb.sql(f"SELECT key, value FROM '{folder}/keyed/counts/count/*.parquet'").fetchall()
    seen = pd.read_parquet(folder / "keyed" / "counts" / "count")
    assert dict(table) == dict(zip(seen["key"], seen["value"], strict=True))
    assert dict(table) == _counts_up_to(pd.read_parquet(folder / "sources.parquet"))
    assert_counted_exactly(tmp_path / "out")


def _counts_up_to(positions: pd.DataFrame) -> dict[int, int]:
    """What the state must be, worked out from where the source was: split k of n has the numbers k, k+n, k+2n ..."""
    counts: Counter[int] = Counter()
    for split, position in zip(positions["split"], positions["position"], strict=True):
        number, of = map(int, split.split("-of-"))
        counts.update(value % KEYS for value in range(number, json.loads(position) or 0, of))
    return dict(counts)


def test_a_stopped_job_goes_on_from_a_copy_of_its_savepoint(storage: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    client = running(storage, out)
    path = client.stop(str(tmp_path / "savepoints"))
    assert client.status is JobStatus.FINISHED
    assert 0 < len(rows_in(out)) < TOTAL
    moved = tmp_path / "elsewhere"
    shutil.move(path.removeprefix("file://"), moved)

    finish(counting(str(tmp_path / "other-storage"), out, rate=None), resume=str(moved))

    assert_counted_exactly(out)


def test_a_running_job_is_rescaled_in_one_step(storage: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    client = running(storage, out)
    rescaled = client.rescale(1)

    assert rescaled.gap_s > 0
    assert {slot.index for slot in client.workers()} == {0}
    assert client.wait(PATIENCE) is JobStatus.FINISHED
    assert client.view.restarts == 1
    assert_counted_exactly(out)
