"""A temporal join: each order in dollars, at the rate that was valid when it was made, though rates and orders come out of
order.

    python examples/exchange_rates.py
"""

import dataclasses

import tidegate as tg


@dataclasses.dataclass(frozen=True)
class Order:
    id: str
    currency: str
    amount: int
    made_at: int  # milliseconds


@dataclasses.dataclass(frozen=True)
class Rate:
    currency: str
    dollars: float
    since: int


ORDERS = [Order("o-1", "eur", 10, 1_000), Order("o-3", "eur", 10, 9_000), Order("o-2", "eur", 10, 4_000)]
RATES = [Rate("eur", 2.0, 3_000), Rate("eur", 1.5, 0), Rate("gbp", 3.0, 0)]


def in_dollars(order: Order, rate: Rate) -> tuple[str, float]:
    return order.id, order.amount * rate.dollars


env = tg.StreamEnvironment("exchange-rates", parallelism=1)
late = "10s"  # how much out of order both may be
orders = env.from_collection(ORDERS, type=Order, uid="orders").assign_timestamps_and_watermarks(
    tg.WatermarkStrategy.bounded_out_of_orderness(late, timestamp="made_at")
)
rates = env.from_collection(RATES, type=Rate, uid="rates").assign_timestamps_and_watermarks(
    tg.WatermarkStrategy.bounded_out_of_orderness(late, timestamp="since")
)
priced = orders.key_by("currency").temporal_join(rates.key_by("currency"), version="since")
priced.process(in_dollars, returns=tuple[str, float], uid="in-dollars").print(uid="print")
env.execute()
