"""Records a second through each connector, beside the plain client that does the same work in a loop. One run, in turn.

The job: numbers -> records of three columns -> the sink, one subtask, a checkpoint a second; timed from RUNNING to FINISHED.
The plain client does what its manual shows: 1,000 rows at a time, a commit for every 20,000. The servers are
started here, on loopback, with their usual durability. A ratio of 1 means that exactly-once costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from harness import finish, fresh_folder, interleave, median, ratios, session, spread

import tidegate as tg
from databases.servers import DATABASE, PASSWORD, USER, DatabaseServer, MariaDb, Postgres, new_folder
from tidegate.coordinator.observing import JobStatus, StatusChanged

ROWS = 200_000
ROUNDS = 3
BATCH = 1000
COMMIT_EVERY = 20_000
_numbers = itertools.count(1)
SCHEMA = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64())])


def rows(start: int, count: int) -> list[tuple[int, str, float]]:
    return [(number, f"customer {number % 1000}", number / 4) for number in range(start, start + count)]


def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    ids = batch.column(0).to_pylist()
    return pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array([f"customer {id % 1000}" for id in ids]), pa.array([id / 4 for id in ids])],
        schema=SCHEMA,
    )


def rate_of_job(spark: Any, sink: tg.Sink) -> float:
    env = tg.StreamEnvironment(f"bench-{next(_numbers)}", parallelism=1, spark=spark)
    env.checkpointing(every="1s", storage=f"file://{fresh_folder('connectors')}")
    numbers = env.from_sequence(0, ROWS - 1, uid="numbers", parallelism=1)
    numbers.map_batches(columns, uid="columns", returns=SCHEMA).sink_to(sink, uid="sink", parallelism=1)
    running: list[float] = []
    client = env.execute_async()
    client.view.subscribe(
        lambda event: (
            running.append(event.at) if isinstance(event, StatusChanged) and event.status is JobStatus.RUNNING else None
        )
    )
    client.wait()
    return ROWS / (time.time() - running[0])


def rate_of_nothing(spark: Any) -> float:
    return rate_of_job(spark, Nothing())


class Nothing(tg.Sink):
    """What a job costs without its sink: its start, its end and the records in between."""

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return _NothingWriter()


class _NothingWriter(tg.SinkWriter):
    def write(self, batch: Any) -> None:
        batch.columns()


def new_table(server: DatabaseServer) -> str:
    name = f"bench_{next(_numbers)}"
    server.ask(f"CREATE TABLE {name} (id bigint PRIMARY KEY, customer varchar(40), amount double precision)")
    return name


def plain_postgres(server: DatabaseServer) -> float:
    import psycopg

    table = new_table(server)
    began = time.perf_counter()
    with psycopg.connect(host="127.0.0.1", port=server.port, dbname=DATABASE, user=USER, password=PASSWORD) as client:
        for start in range(0, ROWS, COMMIT_EVERY):
            with client.transaction(), client.cursor() as cursor:
                for batch in range(start, start + COMMIT_EVERY, BATCH):
                    with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                        for row in rows(batch, BATCH):
                            copy.write_row(row)
    return ROWS / (time.perf_counter() - began)


def plain_mariadb(server: DatabaseServer) -> float:
    import pymysql

    table = new_table(server)
    began = time.perf_counter()
    client = pymysql.connect(host="127.0.0.1", port=server.port, database=DATABASE, user=USER, password=PASSWORD)
    with client, client.cursor() as cursor:
        for start in range(0, ROWS, COMMIT_EVERY):
            for batch in range(start, start + COMMIT_EVERY, BATCH):
                cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s, %s)", rows(batch, BATCH))
            client.commit()
    return ROWS / (time.perf_counter() - began)


def plain_parquet() -> float:
    path = fresh_folder("plain") / "file.parquet"
    began = time.perf_counter()
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for start in range(0, ROWS, BATCH):
            values = list(zip(*rows(start, BATCH), strict=True))
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(column) for column in values], schema=SCHEMA))
    return ROWS / (time.perf_counter() - began)


def plain_delta() -> float:
    from deltalake import write_deltalake

    path = fresh_folder("plain-delta")
    began = time.perf_counter()
    for start in range(0, ROWS, COMMIT_EVERY):
        values = list(zip(*rows(start, COMMIT_EVERY), strict=True))
        write_deltalake(str(path), pa.Table.from_arrays([pa.array(c) for c in values], schema=SCHEMA), mode="append")
    return ROWS / (time.perf_counter() - began)


@contextlib.contextmanager
def running(server: DatabaseServer) -> Iterator[DatabaseServer]:
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


def main() -> None:
    spark = session()
    with (
        running(Postgres(new_folder("bench-pg"), durable=True)) as postgres,
        running(MariaDb(new_folder("bench-my"), durable=True)) as mariadb,
    ):
        runs: dict[str, Callable[[], float]] = {"no sink": lambda: rate_of_nothing(spark)}
        for name, server in {"postgresql": postgres, "mariadb": mariadb}.items():
            plain = plain_postgres if server is postgres else plain_mariadb
            runs[f"{name} plain"] = lambda server=server, plain=plain: plain(server)
            for commit in ("two-phase", "ledger"):
                runs[f"{name} {commit}"] = lambda server=server, commit=commit: rate_of_job(
                    spark, tg.DatabaseSink(server.url, new_table(server), commit=commit)
                )
        runs["parquet plain"] = plain_parquet
        runs["parquet files"] = lambda: rate_of_job(spark, tg.FileSink(fresh_folder("files"), "parquet"))
        runs["parquet table"] = lambda: rate_of_job(spark, tg.ParquetTableSink(fresh_folder("table")))
        runs["delta plain"] = plain_delta
        runs["delta table"] = lambda: rate_of_job(spark, tg.DeltaSink(fresh_folder("delta")))
        for warm_up in ("no sink", "postgresql two-phase"):
            runs[warm_up]()
        results = interleave(ROUNDS, runs)
    over = {}
    for name, rates in results.items():
        plain = results.get(f"{name.split()[0]} plain")
        if plain is not None and not name.endswith("plain"):
            over[name] = {"median": median(ratios(rates, plain)), "spread": spread(ratios(rates, plain))}
    spark.stop()
    finish(
        {
            "benchmark": "connectors",
            "rows": ROWS,
            "records_per_s": {name: round(median(rates)) for name, rates in results.items()},
            "over_plain_client": over,
        }
    )


if __name__ == "__main__":
    main()
