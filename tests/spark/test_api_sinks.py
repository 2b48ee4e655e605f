"""Every sink: what is committed, read by an independent reader, is what was written, each record once."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from job_kit import ORDERS, Order, finish

import tidegate as tg
from tidegate.batch import Batch

pytestmark = pytest.mark.spark


# -- a sink of your own, in a few lines ---------------------------------------------------------------------------


class JsonArrays(tg.Sink):
    """One file for each subtask and checkpoint. Exactly-once: a commit that comes again replaces the file by itself."""

    guarantee = "exactly-once"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return JsonArraysWriter(context.subtask)

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return JsonArraysCommitter(self.folder)


class JsonArraysWriter(tg.SinkWriter):
    def __init__(self, subtask: int) -> None:
        self.subtask = subtask
        self.rows: list[Any] = []

    def write(self, batch: Batch) -> None:
        self.rows += batch.rows()

    def prepare(self, checkpoint: int) -> list[bytes]:
        rows, self.rows = self.rows, []
        if not rows:
            return []
        return [json.dumps({"name": f"{checkpoint}-{self.subtask}.json", "rows": rows}).encode()]


class JsonArraysCommitter(tg.Committer):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def commit(self, committables: list[bytes]) -> list[tg.CommitOutcome]:
        for committable in committables:
            part = json.loads(committable)
            final = os.path.join(self.folder, part["name"])
            with open(f"{final}.tmp", "w") as file:
                json.dump(part["rows"], file)
            os.replace(f"{final}.tmp", final)
        return [tg.CommitOutcome.DONE] * len(committables)


# -- all of them in one job ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sinks")
    (folder / "own").mkdir()
    env = tg.StreamEnvironment("sinks", parallelism=2)
    env.checkpointing(every="500ms", storage=f"file://{folder}/storage")
    orders = env.from_collection(ORDERS, uid="orders")
    orders.write_files(str(folder / "jsonl"), format="jsonl", uid="to-jsonl")
    orders.write_files(f"file://{folder}/csv", format="csv", uid="to-csv")
    orders.write_files(str(folder / "parquet"), format="parquet", uid="to-parquet", parallelism=1)
    items = orders.map(lambda order: order.item, returns=str)
    items.sink_to(tg.FileSink(folder / "text", "text"), uid="to-text", parallelism=3)
    items.sink_to(JsonArrays(str(folder / "own")), uid="to-own")
    finish(env)
    return folder


def parts(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("_"))
    assert found, f"{folder} is empty"
    return found


def test_json_lines_hold_each_record_once(written: Path) -> None:
    lines = [line for part in parts(written / "jsonl") for line in part.read_text().splitlines()]
    assert Counter(Order(**json.loads(line)) for line in lines) == Counter(ORDERS)


def test_csv_files_hold_each_record_once(written: Path) -> None:
    rows: list[dict[str, str]] = []
    for part in parts(written / "csv"):
        with open(part, newline="") as file:
            rows += csv.DictReader(file)
    assert Counter(tuple(row.items()) for row in rows) == Counter(
        tuple((name, str(value)) for name, value in asdict(order).items()) for order in ORDERS
    )


def test_parquet_files_hold_each_record_once(written: Path) -> None:
    rows = pq.read_table(parts(written / "parquet")).to_pylist()
    assert Counter(Order(**row) for row in rows) == Counter(ORDERS)


def test_text_files_hold_each_record_once(written: Path) -> None:
    lines = [line for part in parts(written / "text") for line in part.read_text().splitlines()]
    assert Counter(lines) == Counter(order.item for order in ORDERS)


def test_a_sink_of_ones_own_is_a_few_lines(written: Path) -> None:
    rows = [row for part in parts(written / "own") for row in json.loads(part.read_text())]
    assert Counter(rows) == Counter(order.item for order in ORDERS)


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet", "text"])
def test_nothing_stays_in_the_staging_folder(written: Path, format: str) -> None:
    assert list((written / format / "_staging").glob("*")) == []


def test_a_job_without_checkpoints_prints_and_collects(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line says which subtask printed it, counted from 1."""
    env = tg.StreamEnvironment("no-checkpoints", parallelism=2)
    numbers = env.from_sequence(1, 20, uid="numbers")
    numbers.print("number")
    numbers.collect()

    client = finish(env)

    lines = [line.partition("> ") for line in capsys.readouterr().out.splitlines() if line.startswith("number:")]
    assert Counter(text for _, _, text in lines) == Counter(str(n) for n in range(1, 21))
    assert {mark for mark, _, _ in lines} == {"number:1", "number:2"}
    assert sorted(client.results()) == list(range(1, 21))
