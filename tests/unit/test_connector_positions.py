"""Every source continues exactly where its splits say, whoever reads next and however often it is restored."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from connector_kit import assert_each_record_once_and_in_order, read_all
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.connectors.collection import Collection
from tidegate.connectors.files_source import Files
from tidegate.connectors.generator import DataGenerator
from tidegate.connectors.sequence import NumberSequence

ROUNDS = st.lists(
    st.integers(1, 4).flatmap(lambda width: st.tuples(st.just(width), st.lists(st.integers(0, 6), min_size=width))),
    max_size=4,
)
ENDINGS = ["\n", "\r\n"]
TEXTS = ["", "plain", "zwölf Boxkämpfer", "日本語", "a,b", '"quoted"', "\U0001f30a tide", "  spaces "]


@dataclass(frozen=True)
class Reading:
    number: int
    text: str


def lines(file: int) -> list[str]:
    return [f"{file}/{number} {TEXTS[number % len(TEXTS)]}" for number in range(40 + file)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("input")
    for kind in ("text", "csv", "jsonl", "parquet"):
        (root / kind).mkdir()
    for file in range(3):
        end = ENDINGS[file % 2]
        text = lines(file)
        (root / "text" / f"{file}.txt").write_bytes((end.join(text) + (end if file else "")).encode())
        json_lines = [json.dumps({"number": n, "text": line}, ensure_ascii=file == 1) for n, line in enumerate(text)]
        (root / "jsonl" / f"{file}.jsonl").write_bytes((end.join(json_lines) + (end if file else "")).encode())
        with open(root / "csv" / f"{file}.csv", "w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out, lineterminator=end)
            writer.writerow(["number", "text"])
            writer.writerows((n, f"{line}\nand {n} below" if n % 3 == 0 else line) for n, line in enumerate(text))
        table = pa.table({"number": list(range(len(text))), "text": text})
        pq.write_table(table, root / "parquet" / f"{file}.parquet", row_group_size=7)
    return root


def sources(folder, batch_rows):
    yield Collection(range(100))
    yield Collection([("a", 1), ("b", 2)])
    yield NumberSequence(-5, 500, splits=5, batch_rows=batch_rows)
    yield DataGenerator(lambda index: index, count=101, splits=7)
    yield DataGenerator(lambda indices: [indices], count=5000, splits=3, type=int, vectorised=True)
    yield Files(folder / "text", batch_rows=batch_rows)
    yield Files(folder / "csv", "csv", batch_rows=batch_rows)
    yield Files(folder / "csv", "csv", type=Reading, batch_rows=batch_rows)
    yield Files(folder / "jsonl", "jsonl", batch_rows=batch_rows)
    yield Files(folder / "jsonl", "jsonl", type=Reading, batch_rows=batch_rows)
    yield Files(folder / "parquet", "parquet", batch_rows=batch_rows)


@pytest.mark.parametrize("which", range(11))
@settings(derandomize=True, deadline=None, max_examples=40)
@given(rounds=ROUNDS, batch_rows=st.sampled_from([1, 3, 5, 7, 1000]))
def test_restored_readers_go_on_without_gap_or_repetition(folder, which, rounds, batch_rows):
    assert_each_record_once_and_in_order(list(sources(folder, batch_rows))[which], rounds)


def test_the_whole_input_is_what_was_put_in(folder):
    """The property above compares a source with itself; this one compares it with the input."""
    texts = [line for file in range(3) for line in lines(file)]
    readings = [(n, line) for file in range(3) for n, line in enumerate(lines(file))]
    in_csv = [(n, f"{line}\nand {n} below" if n % 3 == 0 else line) for n, line in readings]
    expected = [
        list(range(100)),
        [("a", 1), ("b", 2)],
        list(range(-5, 501)),
        list(range(101)),
        list(range(5000)),
        texts,
        [{"number": str(n), "text": text} for n, text in in_csv],
        [Reading(n, text) for n, text in in_csv],
        [{"number": n, "text": text} for n, text in readings],
        [Reading(n, text) for n, text in readings],
        [{"number": n, "text": text} for n, text in readings],
    ]
    for source, rows in zip(sources(folder, 4), expected, strict=True):
        assert read_all(source) == rows, source
        assert sorted(read_all(source, parallelism=3), key=repr) == sorted(rows, key=repr)


def test_the_ids_of_splits_do_not_depend_on_the_parallelism(folder):
    for source in sources(folder, 10):
        assert source.discover_splits(1) == source.discover_splits(7)
