"""Flink SQL's windows: a count and a sum for each key and window. Started by benchmarks/windows.py.

python flink_windows.py KIND --keys K --per-s R --records N [--answers FOLDER]
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter

import windows_work as windows
import work
from flink_settings import configuration, numbers_in_order
from printed import Printed
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import DataTypes, Schema, StreamTableEnvironment


def run(task: work.Task) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=windows.KINDS)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--per-s", type=int, required=True)
    given = parser.parse_args(task.options)
    printed = None if task.answers is None else Printed(task.answers)
    env = StreamExecutionEnvironment.get_execution_environment(configuration(task, {"table.local-time-zone": "UTC"}))
    tables = StreamTableEnvironment.create(env)
    schema = (
        Schema.new_builder()
        .column("f0", DataTypes.BIGINT())
        .column_by_expression("rowtime", f"TO_TIMESTAMP_LTZ({windows.time_ms('f0', per_s=given.per_s)}, 3)")
        .watermark("rowtime", "rowtime - INTERVAL '1' SECOND")
        .build()
    )
    tables.create_temporary_view("numbers", tables.from_data_stream(numbers_in_order(env, task.records), schema))
    tables.execute_sql(
        f"CREATE TEMPORARY VIEW events AS SELECT {windows.key('f0', given.keys)} AS k, {windows.value('f0')} AS v,"
        f" {windows.time_ms('f0', per_s=given.per_s)} AS ts, rowtime FROM numbers"
    )
    columns = "k BIGINT, least BIGINT, n BIGINT, total BIGINT"
    tables.execute_sql(
        f"CREATE TABLE sums ({columns}) WITH ('connector' = '{'blackhole' if printed is None else 'print'}')"
    )
    began = perf_counter()
    tables.execute_sql(
        f"INSERT INTO sums SELECT k, MIN(ts), COUNT(*), SUM(v) FROM {windows.window(given.kind, 'events')}"
        " GROUP BY k, window_start, window_end"
    ).wait()
    seconds = perf_counter() - began
    if printed is not None and task.answers is not None:
        rows = [cells for _, cells in printed.stop()]
        (task.answers / "rows.json").write_text(json.dumps([[int(cell) for cell in cells] for cells in rows]))
    work.finish(task.records, seconds)


if __name__ == "__main__":
    run(work.task())
