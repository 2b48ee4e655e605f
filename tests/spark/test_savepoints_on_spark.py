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
from pyspark.sql import SparkSession
from test_job_client import KEYS, TOTAL, CountByKey, counting, rows_in, wait_until

import tidegate as tg
from tidegate.coordinator.observing import CheckpointStatus, JobStatus

pytestmark = pytest.mark.spark


def assert_counted_exactly(out: Path) -> None:
    rows = rows_in(out)
    assert Counter(value for _, _, value in rows) == Counter(range(TOTAL))
    for key in range(KEYS):
        counts = sorted(count for of, count, _ in rows if of == key)
        assert counts == list(range(1, len(counts) + 1))


def running(storage: str, out: Path) -> tg.JobClient:
    """It does not end before `gate_of(out)` is made."""
    client = counting(storage, out, rate=2000, gate=gate_of(out)).execute_async()
    wait_until(client, lambda: client.view.completed >= 1)
    return client


def gate_of(out: Path) -> Path:
    return out.parent / "gate"


def test_a_savepoint_of_a_running_job_is_read_by_duckdb_and_pandas_alone(storage: str, tmp_path: Path) -> None:
    client = running(storage, tmp_path / "out")
    path = client.savepoint(str(tmp_path / "savepoints"))
    gate_of(tmp_path / "out").touch()
    assert client.wait(PATIENCE) is JobStatus.FINISHED

    folder = Path(path.removeprefix("file://"))
    table = duckdb.sql(f"SELECT key, value FROM '{folder}/keyed/counts/count/*.parquet'").fetchall()
    seen = pd.read_parquet(folder / "keyed" / "counts" / "count")
    assert dict(table) == dict(zip(seen["key"], seen["value"], strict=True))
    assert dict(table) == _counts_up_to(pd.read_parquet(folder / "sources.parquet"))
    assert_counted_exactly(tmp_path / "out")


def test_state_is_a_dataframe_and_a_dataframe_becomes_state(
    storage: str, tmp_path: Path, spark_session: SparkSession
) -> None:
    out = tmp_path / "out"
    client = running(storage, out)
    native = tg.Savepoint.load(client.savepoint(str(tmp_path / "folder with a space"), format="native"))
    path = client.stop(str(tmp_path / "folder with a space"))
    canonical = tg.Savepoint.load(path)

    # Read by Spark itself from the canonical tables, through Arrow from the others.
    for savepoint in (canonical, native, tg.Savepoint.load(newest_checkpoint(client))):
        frame = savepoint.keyed_state("counts", "count").to_spark(spark_session)
        counted = {row["key"]: row["value"] for row in frame.select("key", "value").collect()}
        assert counted == _counts_up_to(savepoint.sources().to_pandas())

    # Replaced and added from DataFrames; what was dropped is gone; the rest is as it was.
    frame = canonical.keyed_state("counts", "count").to_spark(spark_session)
    edit = canonical.edit().replace_state("counts", "count", frame.selectExpr("key", "value + 100000 AS value"))
    edit.add_state("counts", "note", frame.selectExpr("key", "'seen' AS value"), kind="value", type="str")
    edited = edit.write(str(tmp_path / "edited"))
    (count, note) = canonical.diff(edited)
    assert (count.name, count.changed, count.same) == ("count", KEYS, 0)
    assert (note.name, note.added) == ("note", KEYS)
    again = edited.edit().drop_state("counts", "note").write(str(tmp_path / "again"))
    assert [state.name for state in again.states()] == ["count"]

    finish(counting(str(tmp_path / "other"), out, rate=None), resume=again.path)

    rows = rows_in(out)
    assert Counter(value for _, _, value in rows) == Counter(range(TOTAL))
    for key in range(KEYS):
        counts = sorted(count for of, count, _ in rows if of == key)
        before = [count for count in counts if count < 100_000]
        assert counts == [*range(1, len(before) + 1), *range(100_001 + len(before), 100_001 + len(counts))]


def newest_checkpoint(client: tg.JobClient) -> str:
    done = [
        each
        for each in client.checkpoints()
        if each.status is CheckpointStatus.COMPLETED and "savepoint" not in each.path
    ]
    return done[-1].path


def test_a_job_is_bootstrapped_from_a_dataframe(storage: str, tmp_path: Path, spark_session: SparkSession) -> None:
    """History in Spark: how often each key was seen before the job was thought of."""
    history = spark_session.range(KEYS).selectExpr("id AS key", "1000 * id AS value")
    new = tg.Savepoint.new("counting").add_operator("counts", CountByKey, key_type=int)
    new.add_state("counts", "count", history).write(str(tmp_path / "history"))
    out = tmp_path / "out"

    finish(counting(storage, out, rate=None), resume=str(tmp_path / "history"))

    for key in range(KEYS):
        counts = sorted(count for of, count, _ in rows_in(out) if of == key)
        assert counts == list(range(1000 * key + 1, 1000 * key + len(counts) + 1))


def test_a_canceled_job_keeps_its_checkpoints_or_deletes_them_as_was_said(storage: str, tmp_path: Path) -> None:
    """Savepoints are the user's, and stay in any case."""
    out = tmp_path / "out"
    client = counting(storage, out, rate=1000, gate=gate_of(out), delete_on_cancel=True).execute_async()
    wait_until(client, lambda: client.view.completed >= 2)
    path = client.savepoint(str(tmp_path / "savepoints"))
    client.cancel()
    assert client.wait(PATIENCE) is JobStatus.CANCELED

    job = Path(storage.removeprefix("file://")) / "counting"
    assert not list(job.rglob("_metadata.json"))
    assert not list(job.rglob("*.snapshot"))
    assert tg.Savepoint.load(path).checkpoint > 0
    # The next run begins at the beginning, and its ids continue.
    used = max(each.checkpoint for each in client.checkpoints())
    again = finish(counting(storage, tmp_path / "again", rate=None, resume="latest"))
    assert again.view.restored_from is None
    assert min(each.checkpoint for each in again.checkpoints()) > used - 1
    assert_counted_exactly(tmp_path / "again")


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
    gate_of(out).touch()

    assert rescaled.gap_s > 0
    assert {slot.index for slot in client.workers()} == {0}
    assert client.wait(PATIENCE) is JobStatus.FINISHED
    assert client.view.restarts == 1
    assert_counted_exactly(out)
