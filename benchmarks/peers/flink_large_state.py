"""Flink SQL on RocksDB with a large state: the same keys and values as benchmarks/large_state.py, which starts this.

python flink_large_state.py --records N --keys K --spread uniform|zipf --memory-mb M [--answers FOLDER]
"""

from __future__ import annotations

import argparse
from time import perf_counter

import work
from flink_settings import configuration, numbers
from printed import Printed
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

# The arithmetic of large_state.py, word for word; integers of 64 bits do not overflow in it.
LIMIT = "CAST(1073741824 AS BIGINT)"  #: MOD has the type of its second argument, and INT would overflow
MIXED = f"MOD(MOD(i * 610839793, {LIMIT}) * (2 * MOD(i * 610839793, {LIMIT}) + 1), {LIMIT})"
SPREADS = {
    "uniform": "({mixed} * {keys}) / 1073741824",
    "zipf": (
        "MOD(CAST(EXP(CAST({mixed} AS DOUBLE) / 1073741824.0E0 * LN(CAST({keys} AS DOUBLE))) AS BIGINT) * 15485863, {keys})"
    ),
}
FIRST = "MOD(i * 15485863, {keys})"
VALUE = "REPEAT(LPAD(CAST(i AS STRING), 20, '0'), 5)"


def run(task: work.Task) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--spread", choices=SPREADS, required=True)
    parser.add_argument("--memory-mb", type=int, required=True)
    given = parser.parse_args(task.options)
    printed = None if task.answers is None else Printed(task.answers)
    rocksdb = {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "taskmanager.memory.managed.size": f"{given.memory_mb * work.PARALLELISM}m",
    }
    env = StreamExecutionEnvironment.get_execution_environment(configuration(task, rocksdb))
    tables = StreamTableEnvironment.create(env)
    tables.create_temporary_view("indices", tables.from_data_stream(numbers(env, task.records)).alias("i"))
    first, then = FIRST.format(keys=given.keys), SPREADS[given.spread].format(mixed=MIXED, keys=given.keys)
    key = f"CASE WHEN i < {given.keys} THEN {first} ELSE {then} END"
    tables.execute_sql(f"CREATE TEMPORARY VIEW writes AS SELECT {key} AS k, {VALUE} AS v FROM indices")
    if printed is None:
        tables.execute_sql("CREATE TABLE states (k BIGINT, n BIGINT, v STRING) WITH ('connector' = 'blackhole')")
        insert = "INSERT INTO states SELECT k, COUNT(*), LAST_VALUE(v) FROM writes GROUP BY k"
    else:
        tables.execute_sql("CREATE TABLE states (k BIGINT, n BIGINT) WITH ('connector' = 'print')")
        query = "SELECT k, COUNT(*) AS n, LAST_VALUE(v) AS v FROM writes GROUP BY k"
        insert = f"INSERT INTO states SELECT k, n FROM ({query}) WHERE CHAR_LENGTH(v) = 100"
    began = perf_counter()
    tables.execute_sql(insert).wait()
    seconds = perf_counter() - began
    if printed is not None and task.answers is not None:
        rows = [cells for change, cells in printed.stop() if not change.startswith("-")]
        work.write(task.answers, rows, "flink")
    work.finish(task.records, seconds)


if __name__ == "__main__":
    run(work.task())
