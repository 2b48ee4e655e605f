"""Flink SQL, on its Java runtime: GROUP BY, whose changes are the running sums."""

from __future__ import annotations

from time import perf_counter

import work
from flink_settings import configuration, numbers
from printed import Printed
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

QUERY = "SELECT k, SUM(v) AS s FROM numbers GROUP BY k"


def make_numbers(env: StreamExecutionEnvironment, tables: StreamTableEnvironment, records: int) -> None:
    """The view `numbers` of keys and values."""
    tables.create_temporary_view("indices", tables.from_data_stream(numbers(env, records)).alias("i"))
    key, value = f"MOD(i, {work.KEYS})", f"1 + MOD(i, {work.VALUES})"
    tables.execute_sql(f"CREATE TEMPORARY VIEW numbers AS SELECT {key} AS k, {value} AS v FROM indices")


def run(task: work.Task) -> None:
    printed = None if task.answers is None else Printed(task.answers)
    env = StreamExecutionEnvironment.get_execution_environment(configuration(task))
    tables = StreamTableEnvironment.create(env)
    make_numbers(env, tables, task.records)
    sink = "blackhole" if printed is None else "print"
    tables.execute_sql(f"CREATE TABLE sums (k BIGINT, s BIGINT) WITH ('connector' = '{sink}')")
    began = perf_counter()
    tables.execute_sql(f"INSERT INTO sums {QUERY}").wait()
    seconds = perf_counter() - began
    if printed is not None and task.answers is not None:
        rows = [cells for change, cells in printed.stop() if not change.startswith("-")]
        work.write(task.answers, rows, "flink")
    work.finish(task.records, seconds)


if __name__ == "__main__":
    run(work.task())
