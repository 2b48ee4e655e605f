"""PyFlink's DataStream API with a Python function, `process` or `thread` mode. The records are made by Java."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import work
from flink_settings import configuration
from flink_sql import make_numbers
from printed import Printed
from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class RunningSum(KeyedProcessFunction):
    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, row: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.sum.value() or 0) + row[1]
        self.sum.update(total)
        yield row[0], total


def run(task: work.Task, mode: str) -> None:
    printed = None if task.answers is None else Printed(task.answers)
    env = StreamExecutionEnvironment.get_execution_environment(configuration(task, {"python.execution-mode": mode}))
    tables = StreamTableEnvironment.create(env)
    make_numbers(env, tables, task.records)
    stream = tables.to_data_stream(tables.from_path("numbers"))
    sums = stream.key_by(lambda row: row[0], Types.LONG()).process(RunningSum(), PAIR)
    if printed is None:
        sums._j_data_stream.sinkTo(get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink())
    else:
        sums.print()
    began = perf_counter()
    env.execute()
    seconds = perf_counter() - began
    if printed is not None and task.answers is not None:
        rows = [cells for change, cells in printed.stop() if not change.startswith("-")]
        work.write(task.answers, rows, "flink")
    work.finish(task.records, seconds)


if __name__ == "__main__":
    asked = work.task()
    run(asked, asked.options[0])
