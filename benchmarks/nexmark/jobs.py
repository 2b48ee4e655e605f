"""Nexmark's queries as Tidegate jobs. Each is a function of the environment and a number of events, and gives a stream.

What works on one event alone takes whole Arrow batches. What has state is a function for each record. Updated results are
emitted as they change: the newest row of a key is its answer. Which key is whose is said in queries.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import events
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import queries

import tidegate as tg

PARALLELISM = 2


@dataclass
class Person:
    id: int
    name: str
    city: str
    state: str
    ts: int


@dataclass
class Auction:
    id: int
    item: str
    initial_bid: int
    reserve: int
    ts: int
    expires: int
    seller: int
    category: int


@dataclass
class Bid:
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    ts: int
    extra: str


Env = tg.StreamEnvironment
Rows = Iterator[Any]


def stream(env: Env, count: int, kind: str) -> Any:
    make, record = {
        "person": (events.persons, Person), "auction": (events.auctions, Auction), "bid": (events.bids, Bid)
    }[kind]  # fmt: skip
    source = tg.DataGenerator(make, count=events.counts(count)[kind], vectorised=True, type=record, splits=PARALLELISM)
    return env.from_source(source, uid=kind)


def bids(env: Env, count: int) -> Any:
    return stream(env, count, "bid")


def columns(*fields: tuple[str, Any]) -> pa.Schema:
    return pa.schema(
        [(name, pa.int64() if kind is int else pa.float64() if kind is float else pa.string()) for name, kind in fields]
    )


def batches(stream: Any, schema: pa.Schema, function: Callable[[pa.RecordBatch], list[Any]]) -> Any:
    """A whole batch at once; the function gives the columns."""
    return stream.map_batches(lambda batch: pa.RecordBatch.from_arrays(function(batch), schema=schema), returns=schema)


BID = columns(("auction", int), ("bidder", int), ("price", int), ("ts", int), ("extra", str))
EUROS = columns(("auction", int), ("bidder", int), ("price", float), ("ts", int), ("extra", str))
PRICE = columns(("auction", int), ("price", int))
SIDE = columns(("auction", int), ("bidder", int), ("price", int), ("side", str))
PARTS = columns(("auction", int), ("dir1", str), ("dir2", str), ("dir3", str))
CALCULATED = columns(("auction", int), ("bidder", int), ("price", float), ("part", str), ("ts", int), ("ones", int))


# -- one event at a time, as columns ------------------------------------------------------------------------------------------


def q0(env: Env, count: int) -> Any:
    return batches(bids(env, count), BID, lambda b: [b.column(name) for name in BID.names])


def q1(env: Env, count: int) -> Any:
    def euros(b: pa.RecordBatch) -> list[Any]:
        return [b["auction"], b["bidder"], pc.multiply(b["price"].cast(pa.float64()), 0.908), b["ts"], b["extra"]]

    return batches(bids(env, count), EUROS, euros)


def q2(env: Env, count: int) -> Any:
    def some(b: pa.RecordBatch) -> list[Any]:
        wanted = pa.array(b["auction"].to_numpy() % 123 == 0)
        return [b["auction"].filter(wanted), b["price"].filter(wanted)]

    return batches(bids(env, count), PRICE, some)


def q13(env: Env, count: int) -> Any:
    side = pa.array([f"side {number}" for number in range(10_000)])

    def beside(b: pa.RecordBatch) -> list[Any]:
        place = pa.array(b["auction"].to_numpy() % len(side))
        return [b["auction"], b["bidder"], b["price"], side.take(place)]

    return batches(bids(env, count), SIDE, beside)


def q14(env: Env, count: int) -> Any:
    def calculate(b: pa.RecordBatch) -> list[Any]:
        euros = pc.multiply(b["price"].cast(pa.float64()), 0.908)
        b, euros = _where(pc.and_(pc.greater(euros, 1_000_000), pc.less(euros, 50_000_000)), b, euros)
        hour = b["ts"].to_numpy() // 3_600_000 % 24
        part = np.select([(hour >= 8) & (hour <= 18), (hour <= 6) | (hour >= 20)], ["day", "night"], "other")
        ones = pc.count_substring(b["extra"], "1").cast(pa.int64())
        return [b["auction"], b["bidder"], euros, pa.array(part, pa.string()), b["ts"], ones]

    return batches(bids(env, count), CALCULATED, calculate)


def _where(wanted: pa.Array, batch: pa.RecordBatch, column: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
    return batch.filter(wanted), column.filter(wanted)


def q22(env: Env, count: int) -> Any:
    def parts(b: pa.RecordBatch) -> list[Any]:
        found = pc.split_pattern(b["url"], "/")
        return [b["auction"], *(pc.list_element(found, place) for place in (2, 3, 4))]

    return batches(bids(env, count), PARTS, parts)


# -- two streams by a common key ----------------------------------------------------------------------------------------------


class Join(tg.KeyedCoProcessFunction):
    """One row on the first side, any number on the second, whichever comes first. `pair` makes the result of two."""

    waiting: Any

    def process_element1(self, row: Any, ctx: tg.Context) -> Rows:
        self.one.set(row)
        for other in self.waiting.get():
            yield self.pair(row, other)
        self.waiting.clear()

    def process_element2(self, other: Any, ctx: tg.Context) -> Rows:
        row = self.one.get()
        if row is None:
            self.waiting.add(other)
        else:
            yield self.pair(row, other)


class SellerOf(Join):
    one = tg.ValueState(Person)
    waiting = tg.ListState(Auction)

    def pair(self, person: Person, auction: Auction) -> Any:
        return person.name, person.city, person.state, auction.id


def q3(env: Env, count: int) -> Any:
    persons = stream(env, count, "person").filter(lambda person: person.state in ("or", "id", "ca"))
    auctions = stream(env, count, "auction").filter(lambda auction: auction.category == 10)
    joined = persons.key_by("id").connect(auctions.key_by("seller"))
    return joined.process(SellerOf(), uid="join", returns=tuple[str, str, str, int])


class AuctionOf(Join):
    one = tg.ValueState(Auction)
    waiting = tg.ListState(Bid)

    def pair(self, auction: Auction, bid: Bid) -> Any:
        return bid.auction, bid.bidder, bid.price, auction.item, auction.seller


def q20(env: Env, count: int) -> Any:
    auctions = stream(env, count, "auction").filter(lambda auction: auction.category == 10)
    joined = auctions.key_by("id").connect(bids(env, count).key_by("auction"))
    return joined.process(AuctionOf(), uid="join", returns=tuple[int, int, int, str, int])


@dataclass
class Best:
    bidder: int
    price: int
    ts: int


class Winning(tg.KeyedCoProcessFunction):
    """The best bid of an auction while it was open, and the one before it: (auction, best, previous or None)."""

    auction = tg.ValueState(Auction)
    best = tg.ValueState(Best)
    waiting = tg.ListState(Bid)

    def process_element1(self, auction: Auction, ctx: tg.Context) -> Rows:
        self.auction.set(auction)
        for bid in self.waiting.get():
            yield from self.offered(auction, bid)
        self.waiting.clear()

    def process_element2(self, bid: Bid, ctx: tg.Context) -> Rows:
        auction = self.auction.get()
        if auction is None:
            self.waiting.add(bid)
        else:
            yield from self.offered(auction, bid)

    def offered(self, auction: Auction, bid: Bid) -> Rows:
        if not auction.ts <= bid.ts <= auction.expires:
            return
        best = self.best.get()
        if best is None or (bid.price, -bid.ts, -bid.bidder) > (best.price, -best.ts, -best.bidder):
            self.best.set(Best(bid.bidder, bid.price, bid.ts))
            yield self.won(auction, bid, 0 if best is None else best.price, best is None)

    def won(self, auction: Auction, bid: Bid, previous: int, is_first: bool) -> Any:
        return auction.id, auction.category, bid.bidder, bid.price, bid.ts


def q9(env: Env, count: int) -> Any:
    offers = stream(env, count, "auction").key_by("id").connect(bids(env, count).key_by("auction"))
    return offers.process(Winning(), uid="winning", returns=tuple[int, int, int, int, int])


class Rise(Winning):
    """By how much the sum and the number of closing prices of a category grow."""

    def won(self, auction: Auction, bid: Bid, previous: int, is_first: bool) -> Any:
        return auction.category, bid.price - previous, int(is_first)


class Average(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)
    number = tg.ValueState(int, default=0)

    def process_element(self, rise: Any, ctx: tg.Context) -> Rows:
        category, more, one = rise
        total, number = self.total.get() + more, self.number.get() + one
        self.total.set(total)
        self.number.set(number)
        yield category, total / number


def q4(env: Env, count: int) -> Any:
    offers = stream(env, count, "auction").key_by("id").connect(bids(env, count).key_by("auction"))
    rises = offers.process(Rise(), uid="winning", returns=tuple[int, int, int])
    return rises.key_by(0).process(Average(), uid="average", returns=tuple[int, float])


# -- windows ------------------------------------------------------------------------------------------------------------------

TUMBLING = tg.TumblingEventTimeWindows("10s")
HOTTEST = columns(("start", int), ("auction", int), ("n", int))
HIGHEST = columns(("start", int), ("auction", int), ("bidder", int), ("price", int), ("ts", int))
ROLES = columns(("id", int), ("name", str), ("is_person", int), ("is_seller", int), ("ts", int))
SELLERS = columns(("start", int), ("id", int), ("name", str))
SESSIONS = columns(("bidder", int), ("n", int), ("start", int), ("end", int))
BIDS = columns(("bidder", int), ("n", int))


def in_time(stream: Any) -> Any:
    late = tg.WatermarkStrategy.bounded_out_of_orderness(f"{events.DISORDER_MS}ms", timestamp="ts")
    return stream.assign_timestamps_and_watermarks(late)


def largest(batch: pa.RecordBatch, group: Any, column: str) -> pa.RecordBatch:
    """The rows of each group that have its largest value."""
    values = pd.Series(batch[column].to_numpy())
    return batch.filter(pa.array((values.groupby(np.asarray(group)).transform("max") == values).to_numpy()))


class Hottest(tg.WindowBatchFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        best = largest(batch, batch["slid_start"].to_numpy(), "n")
        return pa.RecordBatch.from_arrays([best["slid_start"], best["auction"], best["n"]], schema=HOTTEST)


SLID = columns(("auction", int), ("slid_start", int), ("n", int))


def q5(env: Env, count: int) -> Any:
    counted = (
        in_time(bids(env, count))
        .key_by("auction")
        .window(tg.SlidingEventTimeWindows("10s", "2s"))
        .aggregate(n=tg.count(), uid="counted")
    )
    slid = batches(counted, SLID, lambda b: [b["auction"], b["window_start"], b["n"]])
    # The results of windows that end together are in one slide.
    last = slid.key_by("slid_start").window(tg.TumblingEventTimeWindows("2s"))
    return last.process_batches(Hottest(), uid="hottest", returns=HOTTEST)


class Highest(tg.ProcessWindowFunction):
    def process(self, key: int, context: Any, found: Any) -> Rows:
        rows = list(found)
        most = max(row["price"] for row in rows)
        yield from (row for row in rows if row["price"] == most)


def q7(env: Env, count: int) -> Any:
    def candidates(b: pa.RecordBatch) -> list[Any]:
        """A batch has few of them, so hardly anything is left to shuffle."""
        best = largest(b, b["ts"].to_numpy() // queries.WINDOW_MS, "price")
        start = best["ts"].to_numpy() // queries.WINDOW_MS * queries.WINDOW_MS
        return [pa.array(start), best["auction"], best["bidder"], best["price"], best["ts"]]

    best = in_time(batches(bids(env, count), HIGHEST, candidates))
    return best.key_by("start").window(TUMBLING).process(Highest(), uid="highest", returns=HIGHEST)


def q8(env: Env, count: int) -> Any:
    def zeros(b: pa.RecordBatch, one: int) -> pa.Array:
        return pa.array(np.full(len(b), one))

    persons = batches(
        stream(env, count, "person"), ROLES, lambda b: [b["id"], b["name"], zeros(b, 1), zeros(b, 0), b["ts"]]
    )
    sellers = batches(
        stream(env, count, "auction"),
        ROLES,
        lambda b: [b["seller"], pa.array([""] * len(b)), zeros(b, 0), zeros(b, 1), b["ts"]],
    )
    both = in_time(persons).union(in_time(sellers)).key_by("id").window(TUMBLING)
    roles = both.aggregate(who=tg.max("name"), persons=tg.sum("is_person"), sellers=tg.sum("is_seller"), uid="roles")

    def new_sellers(b: pa.RecordBatch) -> list[Any]:
        b = b.filter(pc.and_(pc.greater(b["persons"], 0), pc.greater(b["sellers"], 0)))
        return [b["window_start"], b["id"], b["who"]]

    return batches(roles, SELLERS, new_sellers)


def q11(env: Env, count: int) -> Any:
    sessions = in_time(bids(env, count)).key_by("bidder").window(tg.EventTimeSessionWindows("10s"))
    counted = sessions.aggregate(n=tg.count(), uid="sessions")
    return batches(counted, SESSIONS, lambda b: [b["bidder"], b["n"], b["window_start"], b["window_end"]])


def q12(env: Env, count: int) -> Any:
    windows = bids(env, count).key_by("bidder").window(tg.TumblingProcessingTimeWindows("10s"))
    return batches(windows.aggregate(n=tg.count(), uid="counted"), BIDS, lambda b: [b["bidder"], b["n"]])


# -- statistics and ranks -----------------------------------------------------------------------------------------------------


class DayOfAll(tg.KeyedProcessFunction):
    """How many bids in each range of prices; how many distinct bidders and auctions, and of these at the highest prices."""

    bids = tg.ValueState(tuple[int, int, int])
    bidders = tg.MapState(int, bool)  #: whether at the highest prices
    auctions = tg.MapState(int, bool)
    distinct = tg.ValueState(tuple[int, int, int, int])

    def process_element(self, bid: Bid, ctx: tg.Context) -> Rows:
        low, middle, high = self.bids.get() or (0, 0, 0)
        rank = 0 if bid.price < 10_000 else 1 if bid.price < 1_000_000 else 2
        low, middle, high = low + (rank == 0), middle + (rank == 1), high + (rank == 2)
        self.bids.set((low, middle, high))
        bidders, high_bidders, auctions, high_auctions = self.distinct.get() or (0, 0, 0, 0)
        new, new_high = self.seen(self.bidders, bid.bidder, rank == 2)
        bidders, high_bidders = bidders + new, high_bidders + new_high
        new, new_high = self.seen(self.auctions, bid.auction, rank == 2)
        auctions, high_auctions = auctions + new, high_auctions + new_high
        self.distinct.set((bidders, high_bidders, auctions, high_auctions))
        key = ctx.key if isinstance(ctx.key, tuple) else (ctx.key,)
        yield *key, low + middle + high, low, middle, high, bidders, high_bidders, auctions, high_auctions

    def seen(self, known: Any, number: int, is_high: bool) -> tuple[int, int]:
        before = known.get(number)
        if before is None or is_high > before:
            known.put(number, is_high)
        return int(before is None), int(is_high and not before)


def day(bid: Bid) -> int:
    return bid.ts // queries.DAY_MS


def q15(env: Env, count: int) -> Any:
    by_day = bids(env, count).key_by(day, key_type=int)
    return by_day.process(DayOfAll(), uid="day", returns=tuple[int, int, int, int, int, int, int, int, int])


def q16(env: Env, count: int) -> Any:
    by_channel = bids(env, count).key_by(lambda bid: (bid.channel, day(bid)), key_type=tuple[str, int])
    return by_channel.process(DayOfAll(), uid="day", returns=tuple[str, int, int, int, int, int, int, int, int, int])


class DayOfAuction(tg.KeyedProcessFunction):
    """Bids in each range of prices; least, most and sum of the prices."""

    so_far = tg.ValueState(tuple[int, int, int, int, int, int])

    def process_element(self, bid: Bid, ctx: tg.Context) -> Rows:
        price = bid.price
        low, middle, high, least, most, total = self.so_far.get() or (0, 0, 0, price, price, 0)
        low, middle, high = low + (price < 10_000), middle + (10_000 <= price < 1_000_000), high + (price >= 1_000_000)
        least, most, total = min(least, price), max(most, price), total + price
        self.so_far.set((low, middle, high, least, most, total))
        yield *ctx.key, low + middle + high, low, middle, high, least, most, total


def q17(env: Env, count: int) -> Any:
    by_auction = bids(env, count).key_by(lambda bid: (bid.auction, day(bid)), key_type=tuple[int, int])
    return by_auction.process(DayOfAuction(), uid="day", returns=tuple[int, int, int, int, int, int, int, int, int])


class Last(tg.KeyedProcessFunction):
    last = tg.ValueState(tuple[int, int])  #: time and price

    def process_element(self, bid: Bid, ctx: tg.Context) -> Rows:
        if (bid.ts, bid.price) > (self.last.get() or (-1, -1)):
            self.last.set((bid.ts, bid.price))
            yield bid.bidder, bid.auction, bid.price, bid.ts


def q18(env: Env, count: int) -> Any:
    return bids(env, count).key_by("bidder", "auction").process(Last(), uid="last", returns=tuple[int, int, int, int])


class TopTen(tg.KeyedProcessFunction):
    """The places that change when a bid comes in among them."""

    top = tg.ValueState(list[tuple[int, int]])  #: price and bidder, the highest first

    def process_element(self, bid: Bid, ctx: tg.Context) -> Rows:
        top = self.top.get() or []
        place = sum((price, -bidder) >= (bid.price, -bid.bidder) for price, bidder in top)
        if place < 10:
            top = [*top[:place], (bid.price, bid.bidder), *top[place:9]]
            self.top.set(top)
            for number, (price, bidder) in enumerate(top[place:], place + 1):
                yield bid.auction, number, price, bidder


def q19(env: Env, count: int) -> Any:
    return bids(env, count).key_by("auction").process(TopTen(), uid="top", returns=tuple[int, int, int, int])


JOBS: dict[str, Callable[[Env, int], Any]] = {
    "q0": q0, "q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5, "q7": q7, "q8": q8, "q9": q9, "q11": q11, "q12": q12,
    "q13": q13, "q14": q14, "q15": q15, "q16": q16, "q17": q17, "q18": q18, "q19": q19, "q20": q20, "q22": q22,
}  # fmt: skip
