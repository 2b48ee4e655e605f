"""Top-N: the two that sold best in each hour. Windows after windows: counts by columns, then the largest of each hour.

python examples/top_sellers.py
"""

import dataclasses

import tidegate as tg


@dataclasses.dataclass(frozen=True)
class Sale:
    item: str
    amount: int
    at: int  # ms


HOUR = 3_600_000
SALES = [
    Sale(item, amount, hour * HOUR + second * 1000)
    for hour in range(2)
    for second, (item, amount) in enumerate([("tea", 3), ("rope", 9 - 8 * hour), ("sail", 4), ("tea", 3), ("oar", 1)])
]


class Largest(tg.ProcessWindowFunction):
    def process(self, key, context, elements):
        best = sorted(elements, key=lambda row: -row["sold"])[:2]
        yield f"{context.window.start // HOUR}:00 " + ", ".join(f"{row['item']} {row['sold']}" for row in best)


env = tg.StreamEnvironment("top-sellers")
times = tg.WatermarkStrategy.bounded_out_of_orderness("1min", timestamp="at")
sales = env.from_collection(SALES, type=Sale).assign_timestamps_and_watermarks(times)

by_item = sales.key_by("item").window(tg.TumblingEventTimeWindows("1h")).aggregate(sold=tg.sum("amount"), uid="by-item")
by_item.window_all(tg.TumblingEventTimeWindows("1h")).process(Largest(), returns=str, uid="largest").print()

env.execute()
