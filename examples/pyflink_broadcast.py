"""Orders against limits that every subtask knows, as one writes it for PyFlink: a broadcast stream beside a keyed one. Changed
were the imports, and that both states are declared on the class, without descriptors.

.venv/bin/python examples/pyflink_broadcast.py
"""

from tidegate.pyflink import (
    BroadcastState,
    KeyedBroadcastProcessFunction,
    ListState,
    MapFunction,
    StreamExecutionEnvironment,
    Types,
)

ORDERS = ["ann,12", "bob,7", "ann,40", "cid,3", "bob,90"]
LIMITS = [("large", 30), ("largest", 80)]
END = 2**62  # the last watermark fires it: by then all limits are known


class Parse(MapFunction):
    def map(self, value):
        name, amount = value.split(",")
        return name, int(amount)


class Judge(KeyedBroadcastProcessFunction):
    limits = BroadcastState(Types.STRING(), Types.INT())
    amounts = ListState(Types.INT())

    def process_element(self, value, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext):
        self.amounts.add(value[1])
        ctx.timer_service().register_event_time_timer(END)

    def process_broadcast_element(self, value, ctx: KeyedBroadcastProcessFunction.Context):
        self.limits.put(value[0], value[1])

    def on_timer(self, timestamp, ctx: KeyedBroadcastProcessFunction.OnTimerContext):
        for amount in self.amounts.get():
            broken = [name for name in sorted(self.limits.keys()) if amount > self.limits.get(name)]
            yield ctx.get_current_key(), amount, "+".join(broken) or "fine"


def judge():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    pair = Types.TUPLE([Types.STRING(), Types.INT()])

    orders = env.from_collection(ORDERS, type_info=Types.STRING()).map(Parse(), output_type=pair)
    limits = env.from_collection(LIMITS, type_info=pair)

    judged = (
        orders.key_by(lambda order: order[0], key_type=Types.STRING())
        .connect(limits.broadcast())
        .process(Judge(), output_type=Types.TUPLE([Types.STRING(), Types.INT(), Types.STRING()]))
    )
    with judged.execute_and_collect() as results:
        for name, amount, verdict in sorted(results):
            print(f"{name} {amount} {verdict}")


if __name__ == "__main__":
    judge()
