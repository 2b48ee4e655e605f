"""Every transformation, each against the answer of plain Python. One job: the orders come in order, from one subtask."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from job_kit import ORDERS, Case, Order, add_cases, finish

import tidegate as tg

pytestmark = pytest.mark.spark

AMOUNTS = pa.schema([("customer", pa.string()), ("amount", pa.int64())])
LARGE = tg.OutputTag("large", Order)


def by_customer(orders: list[Order] = ORDERS) -> dict[str, list[Order]]:
    groups: dict[str, list[Order]] = defaultdict(list)
    for order in orders:
        groups[order.customer].append(order)
    return groups


def running(fold: Any) -> list[tuple[str, int]]:
    """(customer, result so far) after each of its orders."""
    return [
        (customer, result)
        for customer, orders in by_customer().items()
        for result in accumulate([order.amount for order in orders], fold)
    ]


def item_of(order: Order) -> str:
    return order.item


def combine(first: Order, second: Order) -> Order:
    return Order(first.customer, max(first.item, second.item), first.amount + second.amount)


class Mean(tg.AggregateFunction):
    accumulator_type = tuple[int, int]

    def create_accumulator(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, value: Order, accumulator: tuple[int, int]) -> tuple[int, int]:
        total, count = accumulator
        return (total + value.amount, count + 1)

    def get_result(self, accumulator: tuple[int, int]) -> float:
        total, count = accumulator
        return total / count


class Sorter(tg.ProcessFunction):
    """Small orders continue, large ones to the side; at the end, each subtask says how many it has seen."""

    def open(self, ctx: tg.Context) -> None:
        self.seen = 0

    def process_element(self, value: Order, ctx: tg.Context) -> Iterator[int]:
        self.seen += 1
        if value.amount > 20:
            ctx.output(LARGE, value)
        else:
            yield value.amount

    def end_input(self, ctx: tg.Context) -> Iterator[int]:
        yield -self.seen


class CustomerAndKey(tg.KeyedProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> Iterator[tuple[str, str, int, int]]:
        yield (ctx.key, ctx.uid, ctx.parallelism, int(ctx.restored))


class Lengths(tg.CoProcessFunction):
    """Two streams of different types become one."""

    def process_element1(self, value: Order, ctx: tg.Context) -> Iterator[int]:
        yield value.amount

    def process_element2(self, value: str, ctx: tg.Context) -> Iterator[int]:
        yield -len(value)


class Pairs(tg.KeyedCoProcessFunction):
    """An inner join: whichever side comes later finds the other in the state that both inputs share."""

    amounts = tg.ListState(int)
    items = tg.ListState(str)

    def process_element1(self, value: Order, ctx: tg.Context) -> Iterator[tuple[str, int, str]]:
        self.amounts.add(value.amount)
        for item in self.items:
            yield (ctx.key, value.amount, item)

    def process_element2(self, value: tuple[str, str], ctx: tg.Context) -> Iterator[tuple[str, int, str]]:
        self.items.add(value[1])
        for amount in self.amounts:
            yield (ctx.key, amount, value[1])


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"customer": batch["customer"], "amount": pc.multiply(batch["amount"], 2)})


def positive(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.greater(batch["amount"], 0))


def sorted_with_side(orders: tg.DataStream) -> tg.DataStream:
    small = orders.process(Sorter(), uid="sorter")
    return small.union(small.side_output(LARGE).map(lambda order: 1000 + order.amount, returns=int))


CASES = [
    Case("map", lambda s: s.map(lambda o: o.amount * 2, returns=int), [o.amount * 2 for o in ORDERS]),
    Case(
        "flat_map",
        lambda s: s.flat_map(lambda o: [o.item] * (o.amount % 3), returns=str),
        [o.item for o in ORDERS for _ in range(o.amount % 3)],
    ),
    Case("filter", lambda s: s.filter(lambda o: o.amount > 20), [o for o in ORDERS if o.amount > 20]),
    Case(
        "map_batches",
        lambda s: s.map_batches(doubled, returns=AMOUNTS).map(lambda row: row["amount"], returns=int),
        [o.amount * 2 for o in ORDERS],
    ),
    Case("map_batches of the same type", lambda s: s.map_batches(positive), [o for o in ORDERS if o.amount > 0]),
    Case("rebalance", lambda s: s.rebalance().map(item_of), [o.item for o in ORDERS]),
    Case(
        "broadcast",
        lambda s: s.broadcast().map(lambda o: o.amount, returns=int, parallelism=3),
        [o.amount for o in ORDERS] * 3,
    ),
    Case(
        "union",
        lambda s: s.filter(lambda o: o.amount > 20).union(s.filter(lambda o: o.item == "item-0"), s),
        [o for o in ORDERS if o.amount > 20] + [o for o in ORDERS if o.item == "item-0"] + ORDERS,
    ),
    Case(
        "process with side output",
        sorted_with_side,
        (
            Counter([o.amount if o.amount <= 20 else 1000 + o.amount for o in ORDERS]),
            -len(ORDERS),
        ),
        of=lambda rows: (Counter(r for r in rows if r >= 0), sum(r for r in rows if r < 0)),
    ),
    Case(
        "key_by column",
        lambda s: s.key_by("customer").count(uid="count-column"),
        [(c, n) for c, orders in by_customer().items() for n in range(1, len(orders) + 1)],
    ),
    Case(
        "key_by columns",
        lambda s: s.key_by("customer", "item").count(uid="count-columns"),
        Counter((o.customer, o.item) for o in ORDERS),
        of=lambda rows: Counter(dict(rows)),
    ),
    Case(
        "key_by position",
        lambda s: s.map(lambda o: (o.amount, o.item), returns=tuple[int, str]).key_by(1).sum(0, uid="sum-position"),
        {item: sum(o.amount for o in ORDERS if o.item == item) for item in map(item_of, ORDERS)},
        of=lambda rows: {item: max(total for i, total in rows if i == item) for item, _ in rows},
    ),
    Case(
        "key_by function",
        lambda s: s.key_by(item_of).count(uid="count-function"),
        Counter(map(item_of, ORDERS)),
        of=lambda rows: Counter(dict(rows)),
    ),
    Case(
        "key_by key_type",
        lambda s: s.key_by(lambda o: o.amount % 4, key_type=int).count(uid="count-key-type"),
        Counter(o.amount % 4 for o in ORDERS),
        of=lambda rows: Counter(dict(rows)),
    ),
    Case(
        "context",
        lambda s: s.key_by("customer").process(CustomerAndKey(), uid="context-of-keyed"),
        [(o.customer, "context-of-keyed", 2, 0) for o in ORDERS],
    ),
    Case(
        "reduce",
        lambda s: s.key_by("customer").reduce(combine, uid="reduce-orders"),
        [result for orders in by_customer().values() for result in accumulate(orders, combine)],
    ),
    Case("sum", lambda s: s.key_by("customer").sum("amount", uid="sum-amount"), running(lambda a, b: a + b)),
    Case("min", lambda s: s.key_by("customer").min("amount", uid="min-amount"), running(min)),
    Case("max", lambda s: s.key_by("customer").max("amount", uid="max-amount"), running(max)),
    Case(
        "aggregate",
        lambda s: s.key_by("customer").aggregate(Mean(), uid="mean-amount"),
        [
            sum(o.amount for o in orders[:n]) / n
            for orders in by_customer().values()
            for n in range(1, len(orders) + 1)
        ],
    ),
    Case(
        "connect",
        lambda s: s.connect(s.map(item_of)).process(Lengths()),
        [o.amount for o in ORDERS] + [-len(o.item) for o in ORDERS],
    ),
    Case(
        "connect keyed",
        lambda s: s.key_by("customer")
        .connect(s.map(lambda o: (o.customer, o.item), returns=tuple[str, str]).key_by(0))
        .process(Pairs(), uid="join"),
        [(c, a.amount, b.item) for c, orders in by_customer().items() for a in orders for b in orders],
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> tg.JobClient:
    env = tg.StreamEnvironment("transformations", parallelism=2)
    env.checkpointing(every="500ms", storage=f"file://{tmp_path_factory.mktemp('transformations')}")
    add_cases(env.from_collection(ORDERS, uid="orders", parallelism=1), CASES)
    return finish(env)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_transformation_gives_what_plain_python_gives(finished: tg.JobClient, case: Case) -> None:
    case.check(finished.results(case.name))
