"""Partition folders, rolling by time, and files in a store without links."""

from __future__ import annotations

import gc
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from connector_kit import batch_of, writer_context

from tidegate.connectors.contract import CommitOutcome
from tidegate.connectors.file_sink import FileCommitter, FileSink
from tidegate.connectors.part_writer import MAX_OPEN
from tidegate.errors import ConfigurationError
from tidegate.ids import AttemptId
from tidegate.storage.memory_store import MemoryStore
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing import CrashCase, crash_matrix

DONE, ALREADY, LOST = CommitOutcome.DONE, CommitOutcome.ALREADY_DONE, CommitOutcome.LOST


@dataclass(frozen=True)
class Sale:
    day: date
    country: str | None
    amount: int


SALES = [
    Sale(date(2026, 1, 1), "de", 1),
    Sale(date(2026, 1, 2), "fr/ü=x", 2),
    Sale(date(2026, 1, 1), None, 3),
    Sale(date(2026, 1, 1), "de", 4),
]


def written(sink: FileSink, *batches: list[Any], record: Any = Sale, checkpoint: int = 1) -> list[bytes]:
    writer = sink.writer(writer_context(record)[0])
    for batch in batches:
        writer.write(batch_of(batch, record))
    committables = writer.prepare(checkpoint)
    writer.close()
    return committables


# -- partitions -----------------------------------------------------------------------------------------------------------


def test_records_go_to_the_folders_of_their_values_and_are_read_back_by_pyarrow(tmp_path: Path) -> None:
    committables = written(FileSink(tmp_path, "parquet", partition_by=["day", "country"]), SALES)
    assert list(tmp_path.glob("day=*")) == []

    assert FileCommitter().commit(committables) == [DONE] * 3

    folders = sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.glob("day=*/*/part-*"))
    assert folders == [
        "day=2026-01-01/country=__HIVE_DEFAULT_PARTITION__",
        "day=2026-01-01/country=de",
        "day=2026-01-02/country=fr%2F%C3%BC%3Dx",
    ]
    rows = ds.dataset(tmp_path, partitioning="hive", format="parquet").to_table().to_pylist()
    assert sorted((str(row["day"]), row["country"], row["amount"]) for row in rows if row["country"]) == [
        ("2026-01-01", "de", 1),
        ("2026-01-01", "de", 4),
        ("2026-01-02", "fr/ü=x", 2),
    ]
    assert [row["amount"] for row in rows if row["country"] is None] == [3]


def test_lines_keep_the_fields_that_name_their_folder(tmp_path: Path) -> None:
    FileCommitter().commit(written(FileSink(tmp_path, "jsonl", partition_by="country"), SALES[:1]))

    (part,) = tmp_path.glob("country=de/part-*")
    assert json.loads(part.read_text()) == {"day": "2026-01-01", "country": "de", "amount": 1}


def test_the_number_of_open_files_has_a_bound(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl", partition_by="f0")
    writer = sink.writer(writer_context(tuple[int, int])[0])
    for number in range(3 * MAX_OPEN):
        writer.write(batch_of([(number, 0)], tuple[int, int]))
    before = len(os.listdir("/proc/self/fd"))

    committables = writer.prepare(1)

    assert before - len(os.listdir("/proc/self/fd")) == MAX_OPEN
    assert len(committables) == 3 * MAX_OPEN
    assert FileCommitter().commit(committables) == [DONE] * 3 * MAX_OPEN
    lines = [line for part in tmp_path.glob("f0=*/part-*") for line in part.read_text().splitlines()]
    assert len(lines) == 3 * MAX_OPEN
    writer.close()


@pytest.mark.parametrize(("names", "record"), [("colour", Sale), ("value", None), (["day", "country", "amount"], Sale)])
def test_partitions_that_the_stream_cannot_give_are_refused(tmp_path: Path, names: Any, record: Any) -> None:
    format = "jsonl" if record is None else "parquet"
    with pytest.raises(ConfigurationError, match="partition_by"):
        FileSink(tmp_path, format, partition_by=names).writer(writer_context(record)[0])


# -- time -----------------------------------------------------------------------------------------------------------------


def test_a_part_is_closed_when_it_is_old(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "text", max_age="10s")
    context, _ = writer_context(str)
    writer = sink.writer(context)
    for pause in (0, 9, 2, 9, 9):
        context.clock.now += pause  # type: ignore[attr-defined]
        writer.write(batch_of(["x"], str))

    rows = [json.loads(committable)["rows"] for committable in writer.prepare(1)]

    assert rows == [2, 2, 1]


# -- stores without links -------------------------------------------------------------------------------------------------


_numbers = itertools.count(1)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    store = open_store(f"memory://parts-{next(_numbers)}")
    yield store
    store.delete_many(store.list(""))


def committed_lines(store: ObjectStore) -> list[str]:
    """All that a reader sees: names with "_" are hidden."""
    paths = [path for path in store.list("") if not path.startswith("_")]
    return [line for path in paths for line in store.get(path).decode().splitlines()]


def test_a_part_in_a_store_is_seen_after_its_commit_and_once(store: ObjectStore) -> None:
    sink = FileSink(store.location, "text")
    committables = written(sink, ["a"], ["b"], record=str)

    assert committed_lines(store) == []
    assert FileCommitter().commit(committables) == [DONE]
    assert committed_lines(store) == ["a", "b"]
    assert FileCommitter().commit(committables) == [ALREADY]
    assert store.list("_staging") == []


def test_a_commit_that_died_between_its_steps_is_finished_by_the_next(store: ObjectStore) -> None:
    committables = written(FileSink(store.location, "text"), ["a"], record=str)
    part = json.loads(committables[0])
    store.create(part["final"], store.get(part["staged"]))  # and there it died

    assert FileCommitter().commit(committables) == [ALREADY]
    assert store.list("") == [part["final"]]


@pytest.mark.parametrize("damage", ["both gone", "staged cut short", "another file under the final name"])
def test_what_can_neither_be_committed_nor_was_it_is_lost_and_said(store: ObjectStore, damage: str) -> None:
    committables = written(FileSink(store.location, "text"), ["a"], record=str)
    part = json.loads(committables[0])
    match damage:
        case "both gone":
            store.delete(part["staged"])
        case "staged cut short":
            store.put(part["staged"], b"")
        case _:
            store.put(part["final"], b"foreign")
    committer = FileCommitter()

    assert committer.commit(committables) == [LOST]

    assert part["staged"] in committer.lost_reason


def test_left_overs_of_earlier_attempts_go_and_what_is_named_stays(store: ObjectStore) -> None:
    sink = FileSink(store.location, "text")
    kept = written(sink, ["a"], record=str)
    written(sink, ["b"], record=str)
    assert len(store.list("_staging")) == 2

    sink.clean_up("orders", "out", AttemptId(1, 1), [])
    assert len(store.list("_staging")) == 2  # nothing is older than the first attempt
    sink.clean_up("orders", "out", AttemptId(1, 2), kept)

    assert store.list("_staging") == [json.loads(kept[0])["staged"]]


def test_files_in_a_store_keep_the_contract_wherever_a_process_dies() -> None:
    def read(place: str) -> list[int]:
        return [int(line) for line in committed_lines(MemoryStore(f"matrix-{place}"))]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the dead leave their files open
        crash_matrix(lambda place: FileSink(f"memory://matrix-{place}", "text"), read).check()
        gc.collect()


def test_partitioned_parquet_keeps_the_contract_when_processes_are_killed(tmp_path: Path) -> None:
    check_partitioned_parquet(str(tmp_path), True, lambda case: "prepare" in case.name or "commit" in case.name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", [False, True])
def test_partitioned_parquet_keeps_the_contract_in_all_cases(tmp_path: Path, kill: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the dead leave their files open
        check_partitioned_parquet(str(tmp_path), kill)
        gc.collect()


def check_partitioned_parquet(folder: str, kill: bool, only: Callable[[CrashCase], bool] | None = None) -> None:
    def read(place: str) -> list[int]:
        if not os.path.isdir(f"{folder}/{place}"):
            return []
        table = ds.dataset(f"{folder}/{place}", partitioning="hive", format="parquet").to_table()
        return table.column("f1").to_pylist() if table.num_rows else []

    report = crash_matrix(
        lambda place: FileSink(f"{folder}/{place}", "parquet", partition_by="f0", max_bytes=64),
        read,
        records=[(number % 3, number) for number in range(24)],
        type=tuple[int, int],
        expected=list(range(24)),
        kill=kill,
        only=only,
    )
    report.check()
