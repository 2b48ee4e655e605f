"""Sums that are told two seconds of event time after a key's last reading, as one writes it for PyFlink: timers, and state
that expires. Changed were the imports, and that the state is declared on the class instead of in open().

.venv/bin/python examples/pyflink_timers.py
"""

from tidegate.pyflink import (
    Duration,
    KeyedProcessFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
    Time,
    TimestampAssigner,
    Ttl,
    Types,
    ValueState,
    WatermarkStrategy,
)

READINGS = [
    (1000, "north", 110.25),
    (2500, "north", 23.0),
    (2000, "south", 30.5),
    (3500, "north", 7.75),
    (4000, "south", 12.5),
    (5000, "south", -1.0),
]
REFUSED = OutputTag("refused", Types.TUPLE([Types.STRING(), Types.FLOAT()]))


class ReadingTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp: int) -> int:
        return int(value[0])


class SumWhenQuiet(KeyedProcessFunction):
    total = ValueState(Types.FLOAT(), ttl=Ttl(Time.hours(1), update="read_and_write"))
    due = ValueState(Types.LONG())

    def open(self, runtime_context: RuntimeContext):
        self.readings = runtime_context.get_metrics_group().counter("readings")

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.readings.inc()
        if value[2] < 0:
            yield REFUSED, (ctx.get_current_key(), value[2])
            return
        self.total.update((self.total.value() or 0) + value[2])
        before = self.due.value()
        if before is not None:
            ctx.timer_service().delete_event_time_timer(before)
        self.due.update(ctx.timestamp() + 2000)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        yield ctx.get_current_key(), timestamp, self.total.value()
        self.total.clear()
        self.due.clear()


def sums():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    reading, summed = [Types.LONG(), Types.STRING(), Types.FLOAT()], [Types.STRING(), Types.LONG(), Types.FLOAT()]
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1))
    readings = env.from_collection(collection=READINGS, type_info=Types.TUPLE(reading))
    result = (
        readings.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(ReadingTime()))
        .key_by(lambda value: value[1], Types.STRING())
        .process(SumWhenQuiet(), Types.TUPLE(summed))
        .uid("sums")
    )
    result.print()
    result.get_side_output(REFUSED).print()
    env.execute()


if __name__ == "__main__":
    sums()
