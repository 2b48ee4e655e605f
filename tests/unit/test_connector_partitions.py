"""Values that name folders: refused when they are written, or committed and found by readers that know nothing of us."""

from __future__ import annotations

import datetime
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from connector_kit import batch_of, writer_context
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tidegate as tg
from tidegate.connectors.contract import CommitOutcome
from tidegate.connectors.file_sink import FileCommittable, FileCommitter, FileSink
from tidegate.errors import ConfigurationError
from tidegate.testing.runner import InProcessRun

TEXTS = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.text(st.sampled_from("/\\=%._- \0\n'\"*?:<>|~üé日🌊"), max_size=30),
    st.sampled_from(["", ".", "..", "_", "_staging", "nul", "CON", "a" * 300, "日" * 40, "%2F", "null", "None"]),
    st.integers(200, 300).map(lambda length: "x" * length),
)


@dataclass(frozen=True)
class Row:
    place: str | None
    n: int


def read_files(folder: str) -> list[Any]:
    types = ds.partitioning(pa.schema([("place", pa.string())]), flavor="hive")
    return ds.dataset(folder, format="parquet", partitioning=types).to_table().to_pylist()


def read_table(folder: str) -> list[Any]:
    types = ds.partitioning(pa.schema([("place", pa.string())]), flavor="hive")
    base = f"{folder}/_data"
    files = tg.read_manifest(folder)
    return ds.dataset(files, format="parquet", partitioning=types, partition_base_dir=base).to_table().to_pylist()


def read_delta(folder: str) -> list[Any]:
    deltalake = pytest.importorskip("deltalake")
    return deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist()


def commit(sink: tg.Sink, committables: list[bytes]) -> None:
    if sink.commits_on_driver:
        sink.commit_on_driver([(1, data) for data in committables], restored=False)  # type: ignore[misc]
    committer = sink.committer(writer_context(Row)[0])
    assert committer is not None
    assert committer.commit(committables) == [CommitOutcome.DONE] * len(committables)


SINKS = {
    "files": (lambda folder: FileSink(folder, "parquet", partition_by="place"), read_files),
    "table": (lambda folder: tg.ParquetTableSink(folder, partition_by="place"), read_table),
    "delta": (lambda folder: tg.DeltaSink(folder, partition_by="place"), read_delta),
}


@pytest.mark.parametrize("kind", SINKS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(places=st.lists(TEXTS, min_size=1, max_size=4))
@example(places=["__HIVE_DEFAULT_PARTITION__"])
@example(places=["x" * 249])  # place=... has 255 bytes
@example(places=["x" * 250])
@example(places=["日" * 27, ""])
@example(places=["日" * 28])
def test_a_value_is_refused_when_it_is_written_or_found_when_it_is_committed(
    kind: str, places: list[str | None]
) -> None:
    make, read = SINKS[kind]
    folder = tempfile.mkdtemp()
    try:
        sink = make(folder)
        rows = [Row(place, n) for n, place in enumerate(places)]
        writer = sink.writer(writer_context(Row)[0])
        try:
            writer.write(batch_of(rows, Row))
        except ConfigurationError:
            writer.prepare(1)  # type: ignore[arg-type]
            writer.close()
            return
        committables = writer.prepare(1)  # type: ignore[arg-type]
        writer.close()
        commit(sink, committables)
        assert sorted((row["n"], row["place"]) for row in read(folder)) == [(row.n, row.place) for row in rows]
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Hidden:
    _day: str
    n: int


def test_a_field_whose_name_readers_would_skip_is_found_all_the_same(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "parquet", partition_by="_day")
    writer = sink.writer(writer_context(Hidden)[0])
    writer.write(batch_of([Hidden("monday", 1)], Hidden))
    commit(sink, writer.prepare(1))  # type: ignore[arg-type]
    writer.close()
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert table.to_pylist() == [{"n": 1, "_day": "monday"}]


@dataclass(frozen=True)
class Deep:
    a: str
    b: str
    n: int


def test_a_path_that_is_too_long_as_a_whole_is_refused_when_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path
    while len(str(folder)) < 3700:
        folder = folder / ("d" * 200)
    writer = FileSink(folder, "jsonl", partition_by=["a", "b"]).writer(writer_context(Deep)[0])
    with pytest.raises(ConfigurationError, match=r"would have paths of \d+ bytes; they may have 4095"):
        writer.write(batch_of([Deep("x" * 200, "y" * 200, 1)], Deep))


@pytest.mark.parametrize("place", ["s3://bucket/folder", "gs://bucket/folder"])
def test_a_key_that_a_store_does_not_take_is_refused_when_it_is_written(place: str) -> None:
    @dataclass(frozen=True)
    class Wide:
        a: str
        b: str
        c: str
        d: str
        n: int

    writer = FileSink(place, "jsonl", partition_by=["a", "b", "c", "d"]).writer(writer_context(Wide)[0])
    with pytest.raises(ConfigurationError, match=r"would have paths of \d+ bytes; they may have 1024"):
        writer.write(batch_of([Wide("a" * 250, "b" * 250, "c" * 250, "d" * 250, 1)], Wide))


@pytest.mark.parametrize("type", [pa.binary(), pa.list_(pa.int64()), pa.duration("s"), pa.struct([("a", pa.int64())])])
def test_a_type_whose_values_cannot_name_a_folder_is_refused_before_anything_is_written(
    type: Any, tmp_path: Path
) -> None:
    schema = pa.schema([("place", type), ("n", pa.int64())])
    with pytest.raises(
        ConfigurationError, match=r"partition_by names 'place', which is .*: its values cannot name a folder"
    ):
        FileSink(tmp_path, "parquet", partition_by="place").writer(writer_context(schema)[0])


def test_all_nans_are_one_partition(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl", partition_by="f0")
    writer = sink.writer(writer_context(tuple[float, int])[0])
    writer.write(batch_of([(float("nan"), n) for n in range(10)], tuple[float, int]))
    assert len(writer.prepare(1)) == 1  # type: ignore[arg-type]
    writer.close()


def test_a_job_says_at_once_which_record_has_no_folder(tmp_path: Path) -> None:
    env = tg.StreamEnvironment("job", parallelism=1)
    env.checkpointing(every="20ms", storage="memory://no-folder")
    rows = [Row("fine", n) for n in range(50)] + [Row("x" * 300, 50)]
    env.from_collection(rows, uid="rows").sink_to(FileSink(tmp_path, "jsonl", partition_by="place"), uid="out")

    result = InProcessRun(env, 1, max_actions=30_000).run()

    assert result.status.value == "FAILED"
    assert "a record has place='xxx" in str(result.error)
    assert "in FileSink (uid 'out'), subtask 0" in str(result.error)


# -- commits ----------------------------------------------------------------------------------------------------------


def committable(staged: Path, final: Path) -> bytes:
    staged.parent.mkdir(exist_ok=True, parents=True)
    staged.write_text("row\n")
    return msgspec.json.encode(FileCommittable(str(staged), str(final), 4, 1, "x"))


def test_a_part_that_can_never_be_published_ends_the_job_in_words(tmp_path: Path) -> None:
    """Of a checkpoint of an older release, which took any name."""
    data = committable(tmp_path / "_staging" / "a.jsonl", tmp_path / ("x" * 300) / "part-1.jsonl")
    with pytest.raises(ConfigurationError, match=r"a\.jsonl can never be published as .*File name too long.*1 rows"):
        FileCommitter().commit([data])


def test_a_part_that_cannot_be_published_keeps_no_other_waiting(tmp_path: Path) -> None:
    never = committable(tmp_path / "_staging" / "a.jsonl", tmp_path / ("x" * 300) / "part-1.jsonl")
    ready = committable(tmp_path / "_staging" / "b.jsonl", tmp_path / "fine" / "part-2.jsonl")
    with pytest.raises(ConfigurationError, match=r"a\.jsonl can never be published"):
        FileCommitter().commit([never, ready])
    assert (tmp_path / "fine" / "part-2.jsonl").read_text() == "row\n"


@pytest.mark.parametrize(
    ("staged", "final"),
    [
        ("home/precious.txt", "out/part-1.jsonl"),
        ("out/_staging/../../home/precious.txt", "out/part-1.jsonl"),
        ("out/_staging/a.jsonl", "home/part-1.jsonl"),
        ("out/_staging/a.jsonl", "out/../home/part-1.jsonl"),
        ("out/_staging/a.jsonl", "out/_staging/b.jsonl"),
    ],
)
def test_a_committable_of_somebody_else_moves_no_files_but_staged_ones(staged: str, final: str, tmp_path: Path) -> None:
    """A savepoint may have been made by anybody, and the job commits what it holds."""
    for folder in ("home", "out/_staging"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("home/precious.txt", "out/_staging/a.jsonl"):
        (tmp_path / name).write_text("row\n")
    data = msgspec.json.encode(FileCommittable(f"{tmp_path}/{staged}", f"{tmp_path}/{final}", 4, 1, "x"))
    committer = FileCommitter()

    assert committer.commit([data]) == [CommitOutcome.LOST]

    assert "no file sink writes that" in committer.lost_reason
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["a.jsonl", "precious.txt"]


def test_dates_and_times_are_partitions(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "jsonl", partition_by="f0")
    writer = sink.writer(writer_context(tuple[datetime.datetime, int])[0])
    moment = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    writer.write(batch_of([(moment, 1)], tuple[datetime.datetime, int]))
    commit(sink, writer.prepare(1))  # type: ignore[arg-type]
    writer.close()
    (folder,) = tmp_path.glob("f0=*")
    assert folder.name == "f0=2026-01-01 12%3A00%3A00%2B00%3A00"
