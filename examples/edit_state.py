"""Stop a job, correct its state as a table, and continue.

    python examples/edit_state.py [folder]

A job counts what each customer has bought. It is stopped with a savepoint in mid-stream, an amount is corrected in pandas,
a new savepoint is written, and a second run of the job continues from it to the end of its input. Each run of this program
has a folder of its own, in the one that is named or in the system's for temporary files.
"""

import sys
import tempfile
import time
from pathlib import Path

import tidegate as tg

ORDERS = 20_000


def order(index: int) -> tuple[str, int]:
    return f"customer-{index % 10}", 1


class Totals(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)

    def process_element(self, order, ctx):
        self.total.set(self.total.get() + order[1])
        yield (order[0], self.total.get())


def job(name: str, rate: float | None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment(name, parallelism=2)
    env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")
    orders = env.from_source(tg.DataGenerator(order, count=ORDERS, rate=rate, type=tuple[str, int]), uid="orders")
    orders.key_by(0).process(Totals(), uid="totals", returns=tuple[str, int]).collect(uid="results")
    return env


folder = Path(tempfile.mkdtemp(prefix="edit-state-", dir=sys.argv[1] if len(sys.argv) > 1 else None))

running = job("orders", rate=2_000).execute_async()
running.wait_until_running()
time.sleep(3)  # some orders come in
path = running.stop(str(folder / "savepoints"))
print(f"stopped; its state is in {path}")

savepoint = tg.Savepoint.load(path)
totals = savepoint.keyed_state("totals", "total").to_pandas()
print(totals[["key", "value"]].to_string(index=False))

totals.loc[totals["key"] == "customer-3", "value"] += 1_000_000
edit = savepoint.edit()
edit.replace_state("totals", "total", totals)
edit.write(str(folder / "corrected"))

finished = job("orders-corrected", rate=None).execute_async(resume=str(folder / "corrected"))
finished.wait()
last: dict[str, int] = {}
for customer, total in finished.results("results"):
    last[customer] = max(total, last.get(customer, 0))
for customer in sorted(last):
    print(customer, last[customer])
