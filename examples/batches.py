"""Functions over whole Arrow batches: the fast way, where it fits.

    python examples/batches.py

Payments are converted by a batch function, and summed for each account by another with state: `add_many` takes a column of keys
and a column of amounts. Nothing here is done record by record.
"""

import dataclasses

import numpy as np
import pyarrow as pa

import tidegate as tg

PAYMENTS = 100_000


@dataclasses.dataclass(frozen=True)
class Payment:
    account: int
    cents: int


@dataclasses.dataclass(frozen=True)
class Total:
    account: int
    cents: int


def without_small_ones(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array(np.asarray(batch.column("cents")) >= 10))


class Totals(tg.KeyedBatchFunction):
    total = tg.ValueState(int, default=0)

    def process_batch(self, keys, batch, ctx):
        self.total.add_many(keys, batch.column("cents"))

    def end_input(self, ctx):  # all input has been read: what each account has come to
        keys = pa.array(range(5), pa.int64())
        return pa.RecordBatch.from_arrays([keys, self.total.get_many(keys)], ["account", "cents"])


def payments(numbers: np.ndarray) -> pa.RecordBatch:
    """A vectorised generator: a column of numbers in, columns of payments out."""
    return pa.RecordBatch.from_arrays([pa.array(numbers % 5), pa.array(numbers % 100)], ["account", "cents"])


env = tg.StreamEnvironment("batches")
source = tg.DataGenerator(payments, count=PAYMENTS, type=Payment, vectorised=True)
totals = (
    env.from_source(source)
    .map_batches(without_small_ones)
    .key_by("account")
    .process_batches(Totals(), returns=Total, parallelism=1)
)
totals.print()

env.execute()
