"""Spark itself: `native` (its streaming aggregation), `tws` (Python's transformWithState) and `windows` (a count and a sum for
each tumbling window of 1 s, for benchmarks/windows.py), in micro-batches of about a second, which are its checkpoints. State in
RocksDB, with changelogs.

Spark has no end of such an input, so a batch is `--batch` records, and the query is stopped after as many batches as it takes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import windows_work as windows
import work
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class RunningSum(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.sum = handle.getValueState("sum", "sum LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timer_values: Any) -> Iterator[Row]:
        total = self.sum.get()[0] if self.sum.exists() else 0
        for row in rows:
            total += row.value
            yield Row(key=key[0], sum=total)
        self.sum.update((total,))

    def close(self) -> None:
        pass


def session() -> SparkSession:
    return (
        SparkSession.builder.master(f"local[{work.PARALLELISM}]")
        .config("spark.sql.shuffle.partitions", work.PARALLELISM)
        .config("spark.sql.streaming.stateStore.providerClass", STORE)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def sums(numbers: DataFrame, way: str) -> DataFrame:
    if way == "windows":
        return windowed(numbers)
    keyed: Any = numbers.select(
        (f.col("value") % work.KEYS).alias("key"), (1 + f.col("value") % work.VALUES).alias("value")
    ).groupBy("key")
    if way == "native":
        return keyed.agg(f.sum("value").alias("sum"))
    return keyed.transformWithState(RunningSum(), "key LONG, sum LONG", "update", "none")


def windowed(numbers: DataFrame) -> DataFrame:
    """The results of a window leave when the watermark has passed its end."""
    time = f"timestamp_millis({windows.time_ms('value', 'div')}) AS time"
    events = numbers.selectExpr(f"{windows.key('value')} AS k", f"{windows.value('value')} AS v", time).withWatermark(
        "time", "1 second"
    )
    grouped = events.groupBy(f.window("time", "1 second"), "k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))
    return grouped.select("k", "total")


def run(task: work.Task) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("native", "tws", "windows"))
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args(task.options)
    spark = session()
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", options.batch)
    numbers = rate.option("numPartitions", work.PARALLELISM).load()
    batches = task.records // options.batch
    out = sums(numbers, options.way).writeStream.outputMode("append" if options.way == "windows" else "update")
    out = out.option("checkpointLocation", str(task.state / "checkpoint"))
    if task.answers is None:
        out = out.format("noop")
    else:
        folder = task.answers

        def keep(rows: DataFrame, number: int) -> None:
            if number < batches:  # later ones come until the query has stopped
                work.write(folder, rows.select("key", "sum").collect(), number)

        out = out.foreachBatch(keep)
    began = time.perf_counter()
    query = out.start()
    while (query.lastProgress or {"batchId": -1})["batchId"] < batches - 1:
        if query.exception() is not None:
            sys.exit(str(query.exception()))
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    query.stop()
    spark.stop()
    work.finish(task.records, seconds, batches=batches)


if __name__ == "__main__":
    run(work.task())
