"""Every source, read to its end on Spark, against what was put in."""

from __future__ import annotations

import csv
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_kit import ORDERS, Order, finish

import tidegate as tg
from tidegate.spark.dataframes import DataFrameSource

pytestmark = pytest.mark.spark

TEXT = ["the tide comes in", "the tide goes out", "ébb and flow", ""]
READINGS = [(n, datetime(2020, 1, 1, n % 24, tzinfo=UTC), f"sensor-{n % 3}" if n % 4 else None) for n in range(50)]
FAR_AWAY = datetime(9999, 12, 31, tzinfo=UTC)


# -- a source of your own, in a few lines -------------------------------------------------------------------------

STARTS = {"from ten": 10, "from five": 5, "from three": 3}


class Countdown(tg.Source):
    record_type = int

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split(id) for id in STARTS]

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return CountdownReader()


class CountdownReader(tg.SourceReader):
    def __init__(self) -> None:
        self.next: dict[str, int] = {}

    def add_splits(self, splits: Sequence[tg.Split]) -> None:
        for split in splits:
            self.next[split.id] = STARTS[split.id] if split.position is None else split.position

    def poll(self, deadline: float) -> list[int] | None:
        for id, number in self.next.items():
            if number > 0:
                self.next[id] = number - 1  # the position *after* the record
                return [number]
        return None

    def splits(self) -> list[tg.Split]:
        return [tg.Split(id, number, finished=number == 0) for id, number in self.next.items()]


# -- all of them in one job ---------------------------------------------------------------------------------------


@dataclass
class Finished:
    client: tg.JobClient
    storage: Path


def squares(indices: Any) -> list[Any]:
    return [indices, indices * indices]


@pytest.fixture(scope="module")
def finished(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("sources")
    write_inputs(folder)
    env = tg.StreamEnvironment("sources", parallelism=2, spark=spark_session)
    env.checkpointing(every="500ms", storage=f"file://{folder}/storage")
    env.from_collection(ORDERS, uid="collection").collect(uid="from collection")
    env.from_sequence(-500, 500, uid="sequence").collect(uid="from sequence")
    env.from_sequence(1, 40, uid="in-order", parallelism=1).map(int, parallelism=1).key_by(
        lambda n: 0, key_type=int
    ).process(Arrivals(), uid="order-of-arrival").collect(uid="from sequence in order")
    generator = tg.DataGenerator(lambda i: (i, f"record {i}"), count=1000, type=tuple[int, str])
    env.from_source(generator, uid="generator").collect(uid="from generator")
    vectorised = tg.DataGenerator(squares, count=10_000, type=tuple[int, int], vectorised=True)
    env.from_source(vectorised, uid="vectorised").collect(uid="from vectorised generator")
    files = {
        "text": tg.Files(folder / "text"),
        "csv": tg.Files(folder / "csv", "csv", type=Order),
        "jsonl": tg.Files(str(folder / "*.jsonl"), "jsonl", type=Order),
        "parquet": tg.Files(f"file://{folder}/parquet", "parquet"),
    }
    for format, source in files.items():
        env.from_source(source, uid=format).collect(uid=f"from {format}")
    env.from_source(Countdown(), uid="countdown").collect(uid="from own source")
    frame = spark_session.createDataFrame(READINGS, "id bigint, at timestamp, sensor string").repartition(4)
    env.from_dataframe(frame, uid="data frame").collect(uid="from dataframe")
    far_away = spark_session.createDataFrame([(FAR_AWAY,)], "at timestamp")
    env.from_dataframe(far_away, uid="far-away").collect(uid="from dataframe of 9999")
    return Finished(finish(env), folder)


class Arrivals(tg.KeyedProcessFunction):
    """Numbers in the order in which they came."""

    count = tg.ValueState(int, default=0)

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[tuple[int, int]]:
        self.count.set(self.count.get() + 1)
        yield (self.count.get(), value)


def write_inputs(folder: Path) -> None:
    halves = (ORDERS[:25], ORDERS[25:])
    for name in ("text", "csv", "parquet"):
        (folder / name).mkdir()
    (folder / "text" / "a.txt").write_text("\n".join(TEXT[:2]) + "\n", encoding="utf-8")
    (folder / "text" / "b.txt").write_text("\r\n".join(TEXT[2:]) + "\r\n", encoding="utf-8")
    (folder / "text" / "_hidden").write_text("not read\n")
    for number, orders in enumerate(halves):
        with open(folder / "csv" / f"{number}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, ["customer", "item", "amount"])
            writer.writeheader()
            writer.writerows(map(asdict, orders))
        lines = "".join(json.dumps(asdict(order)) + "\n" for order in orders)
        (folder / f"{number}.jsonl").write_text(lines)
        pq.write_table(
            pa.Table.from_pylist(list(map(asdict, orders))), folder / "parquet" / f"{number}.parquet", row_group_size=7
        )


def test_a_collection_is_read_once(finished: Finished) -> None:
    assert Counter(finished.client.results("from collection")) == Counter(ORDERS)


def test_a_sequence_has_both_its_ends(finished: Finished) -> None:
    assert sorted(finished.client.results("from sequence")) == list(range(-500, 501))


def test_one_subtask_reads_a_sequence_in_order(finished: Finished) -> None:
    assert sorted(finished.client.results("from sequence in order")) == [(n, n) for n in range(1, 41)]


def test_a_generator_makes_each_index_once(finished: Finished) -> None:
    assert sorted(finished.client.results("from generator")) == [(n, f"record {n}") for n in range(1000)]


def test_a_vectorised_generator_makes_each_index_once(finished: Finished) -> None:
    assert sorted(finished.client.results("from vectorised generator")) == [(n, n * n) for n in range(10_000)]


def test_text_files_are_read_line_by_line(finished: Finished) -> None:
    assert Counter(finished.client.results("from text")) == Counter(TEXT)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_typed_files_give_records_of_the_type(finished: Finished, format: str) -> None:
    assert Counter(finished.client.results(f"from {format}")) == Counter(ORDERS)


def test_parquet_files_bring_their_own_schema(finished: Finished) -> None:
    rows = finished.client.results("from parquet")
    assert Counter(Order(**row) for row in rows) == Counter(ORDERS)


def test_a_source_of_ones_own_is_a_few_lines(finished: Finished) -> None:
    expected = [n for start in STARTS.values() for n in range(1, start + 1)]
    assert Counter(finished.client.results("from own source")) == Counter(expected)


def test_a_dataframe_gives_its_rows_as_dicts(finished: Finished) -> None:
    rows = finished.client.results("from dataframe")
    assert Counter((row["id"], row["at"], row["sensor"]) for row in rows) == Counter(READINGS)


def test_timestamps_of_a_dataframe_keep_their_century(finished: Finished) -> None:
    """Spark writes them as INT96 by default, which pyarrow reads as nanoseconds: too few for the year 9999."""
    assert finished.client.results("from dataframe of 9999") == [{"at": FAR_AWAY}]


def test_a_dataframe_is_materialised_in_the_folder_of_the_job(finished: Finished) -> None:
    (folder,) = (finished.storage / "storage" / "sources" / "input").glob("data_frame-*/*")
    assert (folder / "_SUCCESS").exists()
    assert pq.read_table(folder).num_rows == len(READINGS)


# -- sockets ------------------------------------------------------------------------------------------------------


@contextmanager
def serving(pieces: list[bytes]) -> Iterator[int]:
    """A server that sends the pieces to the first who calls, and closes. Gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve, name="line-server")
        thread.start()
        yield server.getsockname()[1]
        thread.join()


class CountWords(tg.KeyedProcessFunction):
    count = tg.ValueState(int, default=0)

    def process_element(self, word: str, ctx: tg.Context) -> Iterator[tuple[str, int]]:
        n = self.count.get() + 1
        self.count.set(n)
        yield (word, n)


def test_words_from_a_socket_are_counted_until_the_peer_closes(storage: str) -> None:
    text = "the tide comes in\nthe tide goes out\nno line feed at the énd".encode()
    words = text.decode().split()
    with serving([text[:20], text[20:-3], text[-3:]]) as port:  # the last cut is inside the two bytes of é
        env = tg.StreamEnvironment("word-count", parallelism=2)
        env.checkpointing(every="1s", storage=storage)
        (
            env.from_source(tg.SocketText("127.0.0.1", port), uid="lines")
            .flat_map(str.split, returns=str)
            .key_by(lambda word: word)
            .process(CountWords(), uid="count")
            .collect(uid="counts")
        )
        client = finish(env)
    expected = [(word, n) for word, total in Counter(words).items() for n in range(1, total + 1)]
    assert Counter(client.results("counts")) == Counter(expected)


# -- DataFrames over restarts ---------------------------------------------------------------------------------------


def dataframe_job(storage: str, frame: Any, broken: bool, resume: str | None = None) -> tg.StreamEnvironment:
    def checked(row: dict[str, Any]) -> int:
        if broken and row["id"] == 7:
            raise ValueError("seven")
        return row["id"]

    env = tg.StreamEnvironment("rows", parallelism=2)
    env.checkpointing(storage=storage, resume=resume).restart_strategy("none")
    env.from_dataframe(frame, uid="rows").map(checked, returns=int).collect(uid="ids")
    return env


def test_a_resumed_job_reads_the_rows_of_its_first_start(spark_session: Any, storage: str, tmp_path: Path) -> None:
    first, later = spark_session.range(20), spark_session.range(100, 120)

    with pytest.raises(tg.UserCodeFailed, match="seven"):
        dataframe_job(storage, first, broken=True).execute()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "storage/rows/input/rows").glob("*/*")}
    assert files
    with pytest.raises(tg.StorageError, match="has already run"):
        dataframe_job(storage, later, broken=False).execute()
    client = finish(dataframe_job(storage, later, broken=False, resume="latest"))

    assert sorted(client.results("ids")) == list(range(20))
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "storage/rows/input/rows").glob("*/*")}


def test_a_dataframe_that_cannot_be_computed_ends_the_job_and_the_next_start_begins_anew(
    spark_session: Any, storage: str
) -> None:
    broken = spark_session.range(20).selectExpr("assert_true(id < 7, 'a bad row') as nothing", "id")
    with pytest.raises(
        tg.ConfigurationError, match=r"the rows of dataframe \(uid rows\) at .*could not be written to file://"
    ):
        dataframe_job(storage, broken, broken=False).execute()

    client = finish(dataframe_job(storage, spark_session.range(20), broken=False))

    assert sorted(client.results("ids")) == list(range(20))


def test_a_checkpoint_of_another_jobs_rows_is_refused(spark_session: Any, storage: str) -> None:
    """Its files would be read next to our own: every row twice."""
    source = DataFrameSource(spark_session.range(3), "rows")
    source.write_to(f"{storage}/new-job/input/rows/random")
    source.read_from(f"{storage}/new-job/input/rows/random")
    shipped = cloudpickle.loads(cloudpickle.dumps(source))
    reader = shipped.reader(tg.ReaderContext(0, 1, time.monotonic, time.sleep))
    with pytest.raises(
        tg.ConfigurationError, match=r"continues /old-job/part-0\.parquet, but the DataFrame 'rows' of this"
    ):
        reader.add_splits([tg.Split("/old-job/part-0.parquet", {"row_group": 0, "row": 1})])


def test_a_column_that_arrow_does_not_have_is_refused(spark_session: Any) -> None:
    frame = spark_session.sql("select make_interval(1) as gap")
    with pytest.raises(tg.ConfigurationError, match=r"cannot be a column of a stream \(.*[Ii]nterval.*Cast it before"):
        tg.StreamEnvironment("rows").from_dataframe(frame, uid="rows")


def test_a_dataframe_needs_a_storage_that_is_a_folder(spark_session: Any) -> None:
    without = tg.StreamEnvironment("rows")
    without.from_dataframe(spark_session.range(1), uid="rows").print()
    with pytest.raises(tg.ConfigurationError, match=r"from_dataframe needs a storage.*checkpointing\(storage"):
        without.execute()
    with pytest.raises(
        tg.ConfigurationError, match=r"not in s3://bucket/folder\. Write the DataFrame to files yourself"
    ):
        dataframe_job("s3://bucket/folder", spark_session.range(1), broken=False).execute()
