"""Another parallelism while the job runs, and a savepoint that it continues from.

    python examples/rescale.py [folder]

The sums are compared with the right answer at the end: nothing is lost and nothing counts twice on the way.
"""

import sys
import tempfile

import tidegate as tg

NUMBERS = 6_000


class Totals(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)

    def process_element(self, n, ctx):
        self.total.set(self.total.get() + n)
        yield (ctx.key, self.total.get())


def job(name: str) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment(name, parallelism=1)
    env.checkpointing(every="500ms", storage=f"file://{folder}/checkpoints")
    numbers = env.from_source(tg.DataGenerator(lambda i: i, count=NUMBERS, rate=2_000, type=int), uid="numbers")
    totals = numbers.key_by(lambda n: n % 3, key_type=int).process(Totals(), uid="totals", returns=tuple[int, int])
    totals.collect(uid="out")
    return env


folder = tempfile.mkdtemp(prefix="rescale-", dir=sys.argv[1] if len(sys.argv) > 1 else None)

first = job("rescale").execute_async()
first.wait_until_running()
rescaled = first.rescale(2)
print(f"from 1 subtask to {rescaled.parallelism}", flush=True)
path = first.stop(f"{folder}/savepoints")

second = job("rescale-again").execute(resume=path)

last: dict[int, int] = {}
for key, total in [*first.results("out"), *second.results("out")]:
    last[key] = max(total, last.get(key, 0))
assert last == {key: sum(range(key, NUMBERS, 3)) for key in range(3)}
print("all sums are right:", dict(sorted(last.items())))
