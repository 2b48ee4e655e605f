"""Two streams that share the state of their key: orders meet their customer, whichever comes first.

    python examples/enrich.py

An order that comes before its customer waits in a list; a timer gives up on it after a minute of event time, and sends it to
a side output.
"""

import dataclasses

import tidegate as tg

UNKNOWN = tg.OutputTag("unknown", str)


@dataclasses.dataclass(frozen=True)
class Order:
    customer: str
    item: str
    at: int


@dataclasses.dataclass(frozen=True)
class Customer:
    id: str
    name: str
    at: int


ORDERS = [
    Order("c1", "tea", 1_000),
    Order("c2", "rope", 2_000),
    Order("c9", "oars", 3_000),
    Order("c1", "sail", 70_000),
]
CUSTOMERS = [Customer("c1", "Ann", 500), Customer("c2", "Bob", 5_000)]


class Enrich(tg.KeyedCoProcessFunction):
    name = tg.ValueState(str)
    waiting = tg.ListState(str)

    def process_element1(self, order, ctx):
        if self.name.get() is None:
            self.waiting.add(order.item)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        else:
            yield (self.name.get(), order.item)

    def process_element2(self, customer, ctx):
        self.name.set(customer.name)
        for item in self.waiting.get():
            yield (customer.name, item)
        self.waiting.clear()

    def on_timer(self, timestamp, ctx):
        for item in self.waiting.get():
            ctx.output(UNKNOWN, f"{item} of {ctx.key}")
        self.waiting.clear()


times = tg.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="at")
env = tg.StreamEnvironment("enrich")
orders = env.from_collection(ORDERS, type=Order).assign_timestamps_and_watermarks(times)
customers = env.from_collection(CUSTOMERS, type=Customer).assign_timestamps_and_watermarks(times)
enriched = orders.key_by("customer").connect(customers.key_by("id")).process(Enrich(), returns=tuple[str, str])
enriched.print()
enriched.side_output(UNKNOWN).print("unknown")

env.execute()
