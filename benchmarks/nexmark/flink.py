"""Flink SQL's side of Nexmark: the events of events.py made by the same arithmetic, and queries, one after the other.

Runs in Flink's environment:

    python flink.py QUERY[,QUERY] --records EVENTS [--answers FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

sys.path.append(str(Path(__file__).parents[1] / "peers"))

import work
from flink_settings import configuration, numbers_in_order
from printed import Printed
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import DataTypes, Schema, StreamTableEnvironment
from queries import QUERIES

TOTAL, PERSONS, AUCTIONS, BIDS = 50, 1, 3, 46
EPOCH_MS, STEP_MS, DISORDER_MS = 1_700_000_000_000, 10, 900
LIMIT = "CAST(1073741824 AS BIGINT)"  #: MOD has the type of its second argument, and INT would overflow


def mixed(salt: int, i: str = "i") -> str:
    x = f"MOD({i} * 610839793 + {salt * 97_911}, {LIMIT})"
    return f"(MOD({x} * (2 * {x} + 1), {LIMIT}) / 64)"


def least(number: str, limit: int) -> str:
    return f"CASE WHEN {number} < {limit} THEN {number} ELSE {limit} END"


def words(place: str, *choices: str) -> str:
    cases = " ".join(f"WHEN {number} THEN '{word}'" for number, word in enumerate(choices))
    return f"CASE {place} {cases} END"


def some_person(salt: int) -> str:
    return f"i / {TOTAL} - MOD({mixed(salt)}, {least(f'i / {TOTAL}', 1000)} + 1)"


TS = f"{EPOCH_MS} + f0 * {STEP_MS} - MOD({mixed(1, 'f0')}, {DISORDER_MS})"
NEWEST = f"i / {TOTAL} * {AUCTIONS}"
COLD = f"{NEWEST} - MOD({mixed(8)}, {least(NEWEST, 100)} + 1)"
HOT = f"{NEWEST} / 100 * 100"
VIEWS = {
    "person": f"""SELECT i / {TOTAL} AS id, 'person ' || CAST(MOD(i / {TOTAL}, 1000) AS STRING) AS name,
            {words(f"MOD({mixed(2)}, 6)", "phoenix", "los angeles", "boise", "portland", "seattle", "cheyenne")} AS city,
            {words(f"MOD({mixed(2)}, 6)", "az", "ca", "id", "or", "wa", "wy")} AS state, ts, rowtime, proctime
        FROM events WHERE MOD(i, {TOTAL}) < {PERSONS}""",
    "auction": f"""SELECT {NEWEST} + MOD(i, {TOTAL}) - {PERSONS} AS id,
            'item ' || CAST(MOD({NEWEST} + MOD(i, {TOTAL}) - {PERSONS}, 1000) AS STRING) AS item,
            MOD({mixed(3)}, 1000) + 1 AS initial_bid, MOD({mixed(3)}, 1000) + 1 + MOD({mixed(4)}, 1000) AS reserve,
            ts, ts + 2000 + MOD({mixed(5)}, 18000) AS expires, {some_person(6)} AS seller, 10 + MOD({mixed(7)}, 5) AS category,
            rowtime, proctime
        FROM events WHERE MOD(i, {TOTAL}) >= {PERSONS} AND MOD(i, {TOTAL}) < {PERSONS + AUCTIONS}""",
    "bid": f"""SELECT CASE WHEN MOD({mixed(9)}, 2) > 0 THEN {HOT} ELSE {COLD} END AS auction, {some_person(13)} AS bidder,
            CAST(MOD({mixed(11)}, 10000000) + 100 AS BIGINT) AS price,
            {words(f"MOD({mixed(10)}, 4)", "apple", "google", "facebook", "baidu")} AS channel,
            'https://auctions.test/' || CAST(MOD({mixed(12)}, 1000) AS STRING) || '/item?channel='
                || CAST(MOD({mixed(10)}, 4) AS STRING) AS url,
            ts, CAST({mixed(12)} AS STRING) || 'c' || CAST(MOD({mixed(10)}, 4) AS STRING) AS extra, rowtime, proctime
        FROM events WHERE MOD(i, {TOTAL}) >= {PERSONS + AUCTIONS}""",
}


def events(task: work.Task) -> StreamTableEnvironment:
    """Tables of what there is."""
    env = StreamExecutionEnvironment.get_execution_environment(configuration(task, {"table.local-time-zone": "UTC"}))
    tables = StreamTableEnvironment.create(env)
    schema = (
        Schema.new_builder()
        .column("f0", DataTypes.BIGINT())
        .column_by_expression("i", "f0")
        .column_by_expression("ts", TS)
        .column_by_expression("rowtime", f"TO_TIMESTAMP_LTZ({TS}, 3)")
        .column_by_expression("proctime", "PROCTIME()")
        .watermark("rowtime", "rowtime - INTERVAL '1' SECOND")
        .build()
    )
    tables.create_temporary_view("events", tables.from_data_stream(numbers_in_order(env, task.records), schema))
    for view, query in VIEWS.items():
        tables.execute_sql(f"CREATE TEMPORARY VIEW {view} AS {query}")
    return tables


def answer(tables: StreamTableEnvironment, name: str, sink: str) -> None:
    query = tables.sql_query(QUERIES[name].for_flink)
    types = query.get_resolved_schema().get_column_data_types()
    columns = ", ".join(f"c{place} {_sql_type(str(type_))}" for place, type_ in enumerate(types))
    tables.execute_sql(f"CREATE TABLE answers_{name} ({columns}) WITH ('connector' = '{sink}')")
    query.execute_insert(f"answers_{name}").wait()


def run(task: work.Task, names: list[str]) -> None:
    printed = None if task.answers is None else Printed(task.answers)
    tables = events(task)
    began = perf_counter()
    rows, failed = {}, {}
    for name in names:
        try:
            answer(tables, name, "blackhole" if printed is None else "print")
        except Exception as error:
            if printed is None:
                raise
            failed[name] = str(error)[:2000]
        if printed is not None:
            rows[name] = printed.since_last()
    seconds = perf_counter() - began
    if printed is not None and task.answers is not None:
        printed.stop()
        (task.answers / "rows.json").write_text(json.dumps({"rows": rows, "failed": failed}))
    work.finish(task.records, seconds)


def _sql_type(type_: str) -> str:
    """Without its length, and whether it may be NULL."""
    name = type_.partition("(")[0].partition(" ")[0]
    return "STRING" if name in ("VARCHAR", "CHAR") else name


if __name__ == "__main__":
    asked = work.task()
    run(asked, asked.options[0].split(","))
