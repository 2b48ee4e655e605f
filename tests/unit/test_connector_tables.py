"""Tables of Parquet files: a manifest, and Delta. Read back by pyarrow and by deltalake's own reader."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from connector_kit import batch_of, writer_context
from deltalake import DeltaTable, write_deltalake

import tidegate as tg
from matrices import chosen
from tidegate.connectors.contract import CommitOutcome
from tidegate.connectors.tables.sink import TableSink
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import CommitLost, ConfigurationError
from tidegate.ids import AttemptId
from tidegate.testing import CrashCase, crash_matrix
from tidegate.testing.runner import run_in_process

pytestmark = pytest.mark.usefixtures("the_dead_leave_files_open")

DONE, RETRY = CommitOutcome.DONE, CommitOutcome.RETRY


@dataclass(frozen=True)
class Sale:
    country: str | None
    amount: int


def read_parquet_table(path: str) -> list[dict[str, Any]]:
    files = tg.read_manifest(path)
    if not files:
        return []
    base = f"{path}/_data"
    return (
        ds.dataset(files, format="parquet", partitioning=ds.partitioning(flavor="hive"), partition_base_dir=base)
        .to_table()
        .to_pylist()
    )


def read_delta_table(path: str) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(path):
        return []
    return DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist()


KINDS: dict[str, tuple[type[TableSink], Callable[[str], list[dict[str, Any]]]]] = {
    "manifest": (tg.ParquetTableSink, read_parquet_table),
    "delta": (tg.DeltaSink, read_delta_table),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return KINDS[request.param]


def prepared(
    sink: TableSink, rows: list[Any], checkpoint: int = 1, record: Any = Sale, **about: Any
) -> list[tuple[Any, bytes]]:
    writer = sink.writer(writer_context(record, **about)[0])
    writer.write(batch_of(rows, record))
    committables = writer.prepare(checkpoint)  # type: ignore[arg-type]
    writer.close()
    return [(checkpoint, committable) for committable in committables]


def test_an_epoch_of_all_subtasks_appears_at_once_and_once_however_often_it_is_asked(kind: Any, tmp_path: Path) -> None:
    sink, read = kind[0](tmp_path), kind[1]
    first = prepared(sink, [Sale("de", 1)]) + prepared(sink, [Sale("fr", 2)], subtask=1)
    second = prepared(sink, [Sale("de", 3)], checkpoint=2)
    committer = sink.committer(writer_context(Sale)[0])

    assert read(str(tmp_path)) == []
    assert committer.commit([data for _, data in first]) == [RETRY, RETRY]
    sink.commit_on_driver(first, restored=False)
    assert sorted(row["amount"] for row in read(str(tmp_path))) == [1, 2]
    assert committer.commit([data for _, data in first + second]) == [DONE, DONE, RETRY]
    for _ in range(2):
        sink.commit_on_driver(first + second, restored=False)

    assert sorted(row["amount"] for row in read(str(tmp_path))) == [1, 2, 3]


def test_a_job_of_another_incarnation_adds_and_does_not_take_the_numbers_of_the_old_one_for_its_own(
    kind: Any, tmp_path: Path
) -> None:
    sink, read = kind[0](tmp_path), kind[1]
    old = prepared(sink, [Sale("de", 1)], checkpoint=5, incarnation="old")
    sink.commit_on_driver(old, restored=False)

    sink.commit_on_driver(prepared(sink, [Sale("de", 2)], checkpoint=1, incarnation="new"), restored=False)
    sink.commit_on_driver(old, restored=True)  # a third one continues the old one's savepoint

    assert sorted(row["amount"] for row in read(str(tmp_path))) == [1, 2]


def test_what_was_prepared_on_a_line_that_the_job_has_left_is_committed_when_it_comes_back(
    kind: Any, tmp_path: Path
) -> None:
    """A start from an older checkpoint leaves checkpoint 6 behind, uncommitted; a larger number is not a sign of it."""
    sink, read = kind[0](tmp_path), kind[1]
    five, six = prepared(sink, [Sale("de", 5)], checkpoint=5), prepared(sink, [Sale("de", 6)], checkpoint=6)
    sink.commit_on_driver(five, restored=False)
    sink.commit_on_driver(prepared(sink, [Sale("de", 7)], checkpoint=7, attempt="g2-a1"), restored=False)
    committer = sink.committer(writer_context(Sale, attempt="g3-a1")[0])
    assert committer.commit([data for _, data in five + six]) == [DONE, RETRY]

    for _ in range(2):
        sink.commit_on_driver(five + six, restored=True)

    assert committer.commit([data for _, data in five + six]) == [DONE, DONE]
    assert sorted(row["amount"] for row in read(str(tmp_path))) == [5, 6, 7]


def test_what_was_prepared_and_is_gone_is_lost_and_not_a_hole_in_the_table(kind: Any, tmp_path: Path) -> None:
    sink, read = kind[0](tmp_path), kind[1]
    sink.commit_on_driver(prepared(sink, [Sale("de", 1)]), restored=False)
    gone = prepared(sink, [Sale("de", 2), Sale("fr", 3)], checkpoint=2)
    (tmp_path / json.loads(gone[0][1])["path"]).unlink()

    with pytest.raises(CommitLost, match="1 files with 2 rows that were prepared for checkpoint 2 are not part"):
        sink.commit_on_driver(gone, restored=True)

    assert [row["amount"] for row in read(str(tmp_path))] == [1]


def test_partitions_are_folders_and_come_back_as_columns(kind: Any, tmp_path: Path) -> None:
    sink, read = kind[0](tmp_path, partition_by="country"), kind[1]
    rows = [Sale("de", 1), Sale("fr/ü=%", 2), Sale(None, 3), Sale("de", 4)]

    sink.commit_on_driver(prepared(sink, rows), restored=False)

    found = {(row["country"], row["amount"]) for row in read(str(tmp_path))}
    assert found == {("de", 1), ("fr/ü=%", 2), (None, 3), ("de", 4)}


def check_matrix(kind: Any, folder: str, kill: bool, only: Callable[[CrashCase], bool] | None = None) -> None:
    make, read = kind
    crash_matrix(
        lambda place: make(f"{folder}/{place}"),
        lambda place: [row["value"] for row in read(f"{folder}/{place}")],
        kill=kill,
        only=only,
    ).check()


def test_tables_keep_the_contract_wherever_a_process_dies(kind: Any, tmp_path: Path) -> None:
    check_matrix(
        kind,
        str(tmp_path),
        kill=False,
        only=lambda case: "prepare" in case.name or "commit" in case.name or case.name.startswith("driver."),
    )


@pytest.mark.parametrize("kind", chosen({"delta"}, KINDS), indirect=True)
def test_tables_keep_the_contract_when_processes_are_killed(kind: Any, tmp_path: Path) -> None:
    check_matrix(
        kind,
        str(tmp_path),
        kill=True,
        only=lambda case: case.name.startswith("driver.") or case.name == "after prepare",
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", [False, True])
def test_tables_keep_the_contract_in_all_cases(kind: Any, tmp_path: Path, kill: bool) -> None:
    check_matrix(kind, str(tmp_path), kill)


def test_a_driver_that_cannot_commit_tries_again_in_the_next_attempt(tmp_path: Path) -> None:
    class Unlucky(tg.ParquetTableSink):
        def commit_on_driver(self, *about: Any) -> None:
            notes = tmp_path / "tries"
            tries = len(notes.read_text()) if notes.exists() else 0
            notes.write_text("x" * (tries + 1))
            if tries < 7:
                raise OSError("the store does not answer")
            super().commit_on_driver(*about)

    env = tg.StreamEnvironment("unlucky", parallelism=2)
    env.checkpointing(every="20ms", storage="memory://unlucky-table")
    env.restart_strategy("fixed-delay", attempts=10, delay="0s")
    env.from_sequence(1, 200, uid="numbers").sink_to(Unlucky(tmp_path / "table"), uid="table")
    result = run_in_process(env, seed=1)

    assert result.status is JobStatus.FINISHED
    assert result.attempts > 1
    assert sorted(row["value"] for row in read_parquet_table(f"{tmp_path}/table")) == list(range(1, 201))


def test_files_of_dead_attempts_are_removed_from_a_manifest_table(tmp_path: Path) -> None:
    sink = tg.ParquetTableSink(tmp_path)
    committed, named = prepared(sink, [Sale("de", 1)]), prepared(sink, [Sale("de", 2)], checkpoint=2)
    sink.commit_on_driver(committed, restored=False)
    prepared(sink, [Sale("de", 3)], checkpoint=3)
    prepared(sink, [Sale("de", 4)], checkpoint=3, attempt="g2-a1")
    prepared(sink, [Sale("de", 5)], checkpoint=3, uid="another")
    assert len(os.listdir(tmp_path / "_data")) == 5

    sink.clean_up("orders", "out", AttemptId(1, 2), [data for _, data in named])  # type: ignore[arg-type]

    assert len(os.listdir(tmp_path / "_data")) == 4
    sink.commit_on_driver(named, restored=False)
    assert sorted(row["amount"] for row in read_parquet_table(str(tmp_path))) == [1, 2]


def test_two_jobs_that_name_other_files_for_one_checkpoint_are_told_apart(tmp_path: Path) -> None:
    sink = tg.ParquetTableSink(tmp_path)
    sink.log().append("app", 1, [], [])
    data = json.loads(prepared(sink, [Sale("de", 1)])[0][1])
    from tidegate.connectors.tables.sink import decode_file
    from tidegate.errors import ConnectorError

    with pytest.raises(ConnectorError, match="two jobs share this table"):
        sink.log().append("app", 1, [decode_file(json.dumps(data).encode())], [])


def test_a_stream_that_does_not_fit_the_delta_table_is_refused_with_its_columns(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"country": ["de"], "amount": [1.5]}))

    with pytest.raises(ConfigurationError, match="does not fit the Delta table") as raised:
        tg.DeltaSink(tmp_path).writer(writer_context(Sale)[0])

    assert "amount" in str(raised.value)
    with pytest.raises(ConfigurationError, match="no type"):
        tg.DeltaSink(tmp_path).writer(writer_context(None)[0])
    with pytest.raises(ConfigurationError, match="Delta cannot hold"):
        tg.DeltaSink(tmp_path / "x").writer(writer_context(pa.schema([("length", pa.duration("us"))]))[0])


def test_a_stream_that_does_not_fit_the_files_of_a_manifest_table_is_refused_with_their_columns(tmp_path: Path) -> None:
    sink = tg.ParquetTableSink(tmp_path, partition_by="country")
    sink.commit_on_driver(prepared(sink, [Sale("de", 1)]), restored=False)

    sink.writer(writer_context(Sale)[0]).close()  # the same type still fits
    with pytest.raises(
        ConfigurationError, match=r"does not fit the table.*country string, amount int64.*another table"
    ):
        sink.writer(writer_context(tuple[str, float])[0])


def test_values_that_parquet_holds_in_their_own_way_come_back_from_delta(tmp_path: Path) -> None:
    record = tuple[UUID, Decimal, datetime, list[int]]
    row = (UUID(int=7), Decimal("1.50"), datetime(2026, 1, 1, tzinfo=UTC), [1, 2])
    sink = tg.DeltaSink(tmp_path)

    sink.commit_on_driver(prepared(sink, [row], record=record), restored=False)

    (found,) = read_delta_table(str(tmp_path))
    assert found == {"f0": row[0].bytes, "f1": "1.50", "f2": row[2], "f3": [1, 2]}


def test_a_delta_table_that_others_write_too_keeps_all_of_it(tmp_path: Path) -> None:
    sink = tg.DeltaSink(tmp_path)
    sink.commit_on_driver(prepared(sink, [Sale("de", 1)]), restored=False)
    write_deltalake(str(tmp_path), pa.table({"country": ["it"], "amount": [9]}), mode="append")
    sink.commit_on_driver(prepared(sink, [Sale("de", 2)], checkpoint=2), restored=False)

    assert sorted(row["amount"] for row in read_delta_table(str(tmp_path))) == [1, 2, 9]


def test_without_deltalake_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[delta\]'"):
        tg.DeltaSink(tmp_path).writer(writer_context(Sale)[0])
