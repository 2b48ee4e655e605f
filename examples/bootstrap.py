"""State that begins as a table: what customers have bought before there was a job.

    python examples/bootstrap.py [folder]

A savepoint is made of a table, without a job: the class of the function says which states there are. A job starts from it, so
the first order of a customer counts on. The table may come from a file, a warehouse, or a DataFrame of pandas, polars or Spark.
"""

import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import tidegate as tg

HISTORY = pa.table({"key": ["ann", "bob"], "value": [700, 900]})  # e.g. of pyarrow.parquet.read_table("totals.parquet")
ORDERS = [("ann", 5), ("cid", 20), ("bob", 1), ("ann", 5)]


class Totals(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)

    def process_element(self, order, ctx):
        self.total.set(self.total.get() + order[1])
        yield (order[0], self.total.get())


folder = Path(tempfile.mkdtemp(prefix="bootstrap-", dir=sys.argv[1] if len(sys.argv) > 1 else None))

history = tg.Savepoint.new("totals")
history.add_operator("totals", Totals, key_type=str)
history.add_state("totals", "total", HISTORY)
history.write(str(folder / "history"))

env = tg.StreamEnvironment("totals", parallelism=2)
env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")
orders = env.from_collection(ORDERS, type=tuple[str, int], uid="orders")
orders.key_by(0).process(Totals(), uid="totals", returns=tuple[str, int]).collect(uid="results")

last: dict[str, int] = {}
for customer, total in env.execute(resume=str(folder / "history")).results("results"):
    last[customer] = max(total, last.get(customer, 0))
for customer in sorted(last):
    print(customer, last[customer])
