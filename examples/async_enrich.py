"""Enrichment by asynchronous calls: each order is priced by a service, many requests at a time; the service sometimes fails.

    python examples/async_enrich.py

Orders that nobody can price are dead letters. What is in flight is part of checkpoints: after a failure no answer that stands
in a completed checkpoint is asked for again.
"""

import asyncio
import dataclasses

import tidegate as tg

PRICES = {"tea": 3, "rope": 9, "sail": 120}  # what the service knows


@dataclasses.dataclass(frozen=True)
class Order:
    id: int
    item: str


@dataclasses.dataclass(frozen=True)
class Priced:
    id: int
    item: str
    cents: int
    attempts: int


class PriceService(tg.AsyncFunction):
    """A client for a service; here the service is a dictionary that takes its time, and is unwell at the first attempt for
    sails."""

    async def async_open(self, ctx: tg.Context) -> None:
        self.client = PRICES  # a real one: httpx.AsyncClient(base_url=...)

    async def async_invoke(self, order: Order, ctx: tg.AsyncContext) -> Priced:
        await asyncio.sleep(0.01)
        if order.item == "sail" and ctx.attempt == 1:
            raise ConnectionError("try again")
        return Priced(order.id, order.item, self.client[order.item], ctx.attempt)


env = tg.StreamEnvironment("async-enrich", parallelism=1)
items = ["tea", "rope", "sail", "anchor"]
orders = env.from_collection([Order(id, items[id % 4]) for id in range(8)], type=Order, uid="orders")
priced = orders.async_map(
    PriceService(),
    returns=Priced,
    ordered=False,
    capacity=100,
    timeout="5s",
    retry=tg.Retry(3, "10ms", on=ConnectionError),
    on_error="dead-letter",
    uid="prices",
)
priced.print("priced", uid="print")
bad = priced.dead_letters().map(lambda letter: f"{letter.record.item}: {letter.error}", returns=str, uid="reason")
bad.print("unknown", uid="print-bad")
env.execute()
