"""Keyed state, record by record and by whole columns, against the same bookkeeping in plain dictionaries. One job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from job_kit import ORDERS, Case, Order, add_cases, finish

import tidegate as tg

pytestmark = pytest.mark.spark

TOTALS = pa.schema([("customer", pa.string()), ("total", pa.int64())])


class Previous(tg.KeyedProcessFunction):
    """Value state with and without a default, and cleared."""

    previous = tg.ValueState(int)
    count = tg.ValueState(int, default=10)

    def process_element(self, value: Order, ctx: tg.Context) -> Iterator[tuple[str, int, int]]:
        before = self.previous.get()
        self.count.set(self.count.get() + 1)
        yield (ctx.key, -1 if before is None else before, self.count.get())
        self.previous.set(value.amount)
        if value.amount > 30:
            self.previous.clear()


def previous_by_hand() -> list[tuple[str, int, int]]:
    previous: dict[str, int] = {}
    count: dict[str, int] = {}
    out = []
    for order in ORDERS:
        count[order.customer] = count.get(order.customer, 10) + 1
        out.append((order.customer, previous.get(order.customer, -1), count[order.customer]))
        previous[order.customer] = order.amount
        if order.amount > 30:
            del previous[order.customer]
    return out


class History(tg.KeyedProcessFunction):
    """List state: added to, read, replaced, cleared."""

    amounts = tg.ListState(int)

    def process_element(self, value: Order, ctx: tg.Context) -> Iterator[tuple[str, list[int]]]:
        self.amounts.add(value.amount)
        self.amounts.add_all([0, 1])
        seen = self.amounts.get()
        seen.append(99)  # a list of the caller's own: changes no state
        yield (ctx.key, self.amounts.get())
        if len(seen) > 8:
            self.amounts.set([value.amount])
        if value.amount == 0:
            self.amounts.clear()


def history_by_hand() -> list[tuple[str, list[int]]]:
    amounts: dict[str, list[int]] = defaultdict(list)
    out = []
    for order in ORDERS:
        own = amounts[order.customer]
        own += [order.amount, 0, 1]
        out.append((order.customer, list(own)))
        if len(own) + 1 > 8:
            own[:] = [order.amount]
        if order.amount == 0:
            own.clear()
    return out


class Basket(tg.KeyedProcessFunction):
    """Map state: put, looked up, iterated over, removed from."""

    items = tg.MapState(str, int)

    def process_element(self, value: Order, ctx: tg.Context) -> Iterator[tuple[str, dict[str, int], int]]:
        self.items[value.item] = self.items.get(value.item, 0) + value.amount
        if value.item in self.items and self.items[value.item] > 50:
            del self.items[value.item]
        yield (ctx.key, dict(self.items.items()), len(self.items))


def baskets_by_hand() -> list[tuple[str, dict[str, int], int]]:
    baskets: dict[str, dict[str, int]] = defaultdict(dict)
    out = []
    for order in ORDERS:
        own = baskets[order.customer]
        own[order.item] = own.get(order.item, 0) + order.amount
        if own[order.item] > 50:
            del own[order.item]
        out.append((order.customer, dict(own), len(own)))
    return out


class RunningTotal(tg.KeyedBatchFunction):
    total = tg.ValueState(int, default=0)

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> pa.RecordBatch:
        return pa.record_batch({"customer": keys, "total": self.total.add_many(keys, batch["amount"], running=True)})


class Largest(tg.KeyedBatchFunction):
    """The largest amount of each customer, as far as each batch knows it."""

    largest = tg.ValueState(int, default=-1)

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> pa.RecordBatch:
        table = (
            pa.table({"customer": keys, "amount": batch["amount"]}).group_by("customer").aggregate([("amount", "max")])
        )
        own = table["customer"].combine_chunks()
        pairs = zip(self.largest.get_many(own).to_pylist(), table["amount_max"].to_pylist(), strict=True)
        now = pa.array([max(pair) for pair in pairs], pa.int64())
        self.largest.update_many(own, now)
        return pa.record_batch({"customer": own, "total": now})


class Untouched(tg.KeyedBatchFunction):
    """A batch function may emit nothing, and say at the end what it has counted."""

    def open(self, ctx: tg.Context) -> None:
        self.rows = 0

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> None:
        self.rows += batch.num_rows

    def end_input(self, ctx: tg.Context) -> pa.RecordBatch:
        return pa.record_batch({"customer": [f"subtask-{ctx.subtask}"], "total": [self.rows]}, schema=TOTALS)


def in_order(rows: list[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    """What each customer's state gave, in order."""
    of: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for customer, *rest in rows:
        of[customer].append(tuple(rest))
    return of


def totals(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["customer"], row["total"]) for row in rows]


AMOUNTS_OF = {c: [o.amount for o in ORDERS if o.customer == c] for c in {o.customer for o in ORDERS}}


class Rated(tg.KeyedBroadcastProcessFunction):
    """Sums of a customer, told when all input has ended, beside a count of the items that every subtask has seen."""

    total = tg.ValueState(int, default=0)
    items = tg.BroadcastState(str, int)

    def process_element(self, value: Order, ctx: tg.Context) -> None:
        self.total.set(self.total.get() + value.amount)
        ctx.timer_service().register_event_time_timer(2**62)  # the end of all input

    def process_broadcast_element(self, item: str, ctx: tg.BroadcastContext) -> None:
        self.items[item] = self.items.get(item, 0) + 1

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[tuple[str, int, int]]:
        yield (ctx.key, self.total.get(), sum(self.items.values()) * 100 + len(self.items))


class Numbered(tg.CheckpointedFunction):
    """Operator state in a function in class form."""

    def initialize_state(self, ctx: Any) -> None:
        self.stored = ctx.operator_state.list_state("seen", int)
        self.seen = sum(self.stored.get())

    def snapshot_state(self, ctx: Any) -> None:
        self.stored.set([self.seen])

    def __call__(self, value: Order) -> int:
        self.seen += 1
        return self.seen


CASES = [
    Case(
        "broadcast",
        lambda s: s.key_by("customer")
        .connect(s.map(lambda order: order.item, returns=str).broadcast())
        .process(Rated(), uid="rated", returns=tuple[str, int, int]),
        [(c, sum(amounts), len(ORDERS) * 100 + 3) for c, amounts in AMOUNTS_OF.items()],
    ),
    Case(
        "operator state in class form",
        lambda s: s.map(Numbered(), uid="numbered", returns=int, parallelism=1),
        list(range(1, len(ORDERS) + 1)),
    ),
    Case("value", lambda s: s.key_by("customer").process(Previous(), uid="previous"), in_order(previous_by_hand()), in_order),
    Case(
        "list",
        lambda s: s.key_by("customer").process(History(), uid="history"),
        in_order(history_by_hand()),
        in_order,
    ),
    Case("map", lambda s: s.key_by("customer").process(Basket(), uid="basket"), in_order(baskets_by_hand()), in_order),
    Case(
        "add_many",
        lambda s: s.key_by("customer").process_batches(RunningTotal(), uid="running-total", returns=TOTALS),
        {c: [(total,) for total in accumulate(amounts)] for c, amounts in AMOUNTS_OF.items()},
        of=lambda rows: in_order(totals(rows)),
    ),
    Case(
        "get_many and update_many",
        lambda s: s.key_by("customer").process_batches(Largest(), uid="largest", returns=TOTALS),
        {c: max(amounts) for c, amounts in AMOUNTS_OF.items()},
        of=lambda rows: dict(totals(rows)),
    ),
    Case(
        "a batch function with an end",
        lambda s: s.key_by("customer").process_batches(Untouched(), uid="untouched", returns=TOTALS),
        (["subtask-0", "subtask-1"], len(ORDERS)),
        of=lambda rows: (sorted(customer for customer, _ in totals(rows)), sum(total for _, total in totals(rows))),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> tg.JobClient:
    env = tg.StreamEnvironment("states", parallelism=2)
    env.checkpointing(every="500ms", storage=f"file://{tmp_path_factory.mktemp('states')}")
    add_cases(env.from_collection(ORDERS, uid="orders", parallelism=1), CASES)
    return finish(env)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_state_gives_what_plain_dictionaries_give(finished: tg.JobClient, case: Case) -> None:
    case.check(finished.results(case.name))
