"""The harness for one function: records, time, state, failures, by hand. What it drives are the product's own operators."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from tidegate.testing import harness as make

LATE = tg.OutputTag("late", str)


class CountWords(tg.KeyedProcessFunction):
    count = tg.ValueState(int, default=0)
    seen_by = tg.MapState(str, int)

    def open(self, ctx):
        self.opened = True
        self.calls = 0

    def process_element(self, word, ctx):
        self.calls += 1
        self.count.set(self.count.get() + 1)
        yield (ctx.key, self.count.get())


class Quiet(tg.KeyedProcessFunction):
    """Says what a key has added up to, once it was quiet for a second of event time; and drops it a minute later."""

    total = tg.ReducingState(int, operator.add)
    due = tg.ValueState(int)

    def process_element(self, reading, ctx):
        if ctx.timestamp() <= ctx.current_watermark:
            ctx.output(LATE, f"{reading}")
            return
        self.total.add(reading[1])
        if self.due.get() is not None:
            ctx.timer_service().delete_event_time_timer(self.due.get())
        self.due.set(ctx.timestamp() + 1000)
        ctx.timer_service().register_event_time_timer(self.due.get())
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 60_000)

    def on_timer(self, timestamp, ctx):
        if ctx.time_domain == "event":
            yield (ctx.key, self.total.get())
        else:
            self.total.clear()
            self.due.clear()


class Rates(tg.KeyedCoProcessFunction):
    rate = tg.ValueState(float)

    def process_element1(self, amount, ctx):
        if self.rate.get() is not None:
            yield (ctx.key, amount[1] * self.rate.get(), ctx.current_watermark)

    def process_element2(self, rate, ctx):
        self.rate.set(rate[1])


class Limits(tg.KeyedBroadcastProcessFunction):
    count = tg.ValueState(int, default=0)
    limits = tg.BroadcastState(str, int)

    def process_element(self, reading, ctx):
        self.count.set(self.count.get() + 1)
        if self.count.get() > self.limits.get("all", 100):
            yield ctx.key

    def process_broadcast_element(self, limit, ctx):
        self.limits["all"] = limit


class Total(tg.KeyedBatchFunction):
    total = tg.ValueState(int, default=0)

    def process_batch(self, keys, batch, ctx):
        sums = self.total.add_many(keys, batch.column("amount"), running=True)
        return pa.RecordBatch.from_arrays([pc.cast(keys, pa.string()), sums], ["user", "total"])


class Buffer(tg.CheckpointedFunction, tg.ProcessFunction):
    def initialize_state(self, ctx):
        self.rows = ctx.operator_state.list_state("rows", str)

    def process_element(self, row, ctx):
        self.rows.add(row)

    def end_input(self, ctx):
        return self.rows.get()


@dataclass
class Payment:
    user: str
    amount: int


@dataclass
class Summed:
    user: str
    total: int


def word(value):
    return value


# -- records and state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_records_go_in_and_come_out_and_state_is_seen_by_key(harness, backend):
    counting = harness(CountWords(), key_by=word, backend=backend)

    assert counting.process("tide") == [("tide", 1)]
    assert counting.process_many(["gate", "tide"]) == [("gate", 1), ("tide", 2)]
    assert counting.output == [("tide", 1), ("gate", 1), ("tide", 2)]
    assert counting.state("tide") == {"count": 2}
    assert counting.state("nobody") == {}
    assert counting.keys() == {"tide", "gate"}


def test_the_function_that_runs_is_a_copy_and_can_be_looked_at(harness):
    given = CountWords()
    counting = harness(given, key_by=word)
    counting.process("a")

    assert counting.function.calls == 1
    assert not hasattr(given, "opened")


def test_what_the_function_does_to_a_record_does_not_reach_the_test(harness):
    def doubled(record):
        record["n"] *= 2
        return record

    given = {"n": 1}

    assert harness(doubled, via="map").process(given) == [{"n": 2}]
    assert given == {"n": 1}


@pytest.mark.parametrize(
    ("function", "options", "records", "expected"),
    [
        (str.upper, {"via": "map"}, ["a", "b"], ["A", "B"]),
        (str.split, {"via": "flat_map"}, ["to be", ""], ["to", "be"]),
        (str.isdigit, {"via": "filter"}, ["a", "1"], ["1"]),
        (operator.add, {"via": "reduce", "key_by": lambda n: n % 2}, [1, 3, 2], [1, 4, 2]),
        (
            lambda batch: batch.filter(pc.greater(batch.column("amount"), 1)),
            {"via": "map_batches", "input_type": Payment},
            [Payment("a", 1), Payment("a", 2)],
            [Payment("a", 2)],
        ),
    ],
    ids=["map", "flat_map", "filter", "reduce", "map_batches"],
)
def test_plain_functions_are_put_into_a_stream_by_the_call_that_is_named(harness, function, options, records, expected):
    assert harness(function, **options).process_many(records) == expected


def test_batch_functions_get_columns(harness):
    totals = harness(Total(), key_by="user", input_type=Payment, returns=Summed)

    assert totals.process_many([Payment("a", 2), Payment("b", 1), Payment("a", 3)]) == [
        Summed("a", 2), Summed("b", 1), Summed("a", 5),
    ]  # fmt: skip
    assert totals.process(Payment("a", 1)) == [Summed("a", 6)]
    assert totals.state("a") == {"total": 6}


def test_two_inputs_share_the_state_of_their_key(harness):
    rates = harness(Rates(), key_by=0)
    assert rates.process(("usd", 3)) == []

    rates.process2(("usd", 2.0))

    assert rates.process(("usd", 3)) == [("usd", 6.0, rates.watermark)]


def test_the_slower_input_holds_event_time_back(harness):
    rates = harness(Rates(), key_by=0)
    rates.advance_watermark(500, input=1)
    assert rates.watermark < 0

    rates.advance_watermark(300, input=2)

    assert rates.watermark == 300


def test_the_broadcast_side_is_fed_and_seen(harness):
    limits = harness(Limits(), key_by=0)
    limits.broadcast(1)

    assert limits.broadcast_state() == {"limits": {"all": 1}}
    assert [limits.process(("s1", n)) for n in range(3)] == [[], ["s1"], ["s1"]]


def test_the_end_of_input_is_a_hook_like_the_others(harness):
    buffer = harness(Buffer())
    buffer.process_many(["a", "b"])

    assert buffer.end_input() == ["a", "b"]


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_timers_fire_by_the_watermark_and_by_the_clock(harness, backend):
    quiet = harness(Quiet(), key_by=0, side_outputs=[LATE], backend=backend)
    quiet.process(("a", 1), timestamp=100)
    quiet.process(("a", 2), timestamp=200)
    assert quiet.next_event_timer == 1200

    assert quiet.advance_watermark(1199) == []
    assert quiet.advance_watermark(1200) == [("a", 3)]
    assert [tuple(each) for each in quiet.emitted] == [(("a", 3), 1200)]
    assert quiet.next_event_timer is None
    assert quiet.state("a") == {"total": 3, "due": 1200}

    quiet.advance_processing_time("1min")

    assert quiet.keys() == set()
    assert quiet.processing_time == 60_000


def test_late_records_are_in_the_side_output(harness):
    quiet = harness(Quiet(), key_by=0, side_outputs=[LATE])
    quiet.advance_watermark(5000)

    assert quiet.process(("a", 1), timestamp=5000) == []
    assert quiet.side_output(LATE) == ["('a', 1)"]


def test_a_side_output_that_nobody_reads_is_refused_as_in_a_job(harness):
    with pytest.raises(tg.ConfigurationError, match=r"harness\(\.\.\., side_outputs=\[late\]\)"):
        harness(Quiet(), key_by=0).side_output(LATE)


class Ticks(tg.KeyedProcessFunction):
    def process_element(self, name, ctx):
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1000)

    def on_timer(self, timestamp, ctx):
        yield (ctx.key, timestamp)
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1000)


def test_a_timer_that_sets_the_next_one_fires_each_time(harness):
    ticks = harness(Ticks(), key_by=word, processing_time=10_000)
    ticks.process("t")

    assert ticks.advance_processing_time("3500ms") == [("t", 11_000), ("t", 12_000), ("t", 13_000)]
    assert ticks.next_processing_timer == 14_000


class Once(tg.KeyedProcessFunction):
    seen = tg.ValueState(bool, ttl=tg.Ttl("1h"))

    def process_element(self, value, ctx):
        if not self.seen.get():
            self.seen.set(True)
            yield value


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_state_expires_with_the_clock(harness, backend):
    once = harness(Once(), key_by=word, backend=backend)
    assert [once.process("a"), once.process("a")] == [["a"], []]

    once.advance_processing_time("1h")

    assert once.state("a") == {}
    assert once.process("a") == ["a"]


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("hashmap", "hashmap"), ("hashmap", "rocksdb"), ("rocksdb", "hashmap")])
def test_a_restored_function_has_its_declared_state_and_nothing_else(harness, before, after):
    counting = harness(CountWords(), key_by=word, backend=before)
    counting.process("a")
    snapshot = counting.snapshot()
    counting.process("a")

    counting.restore(snapshot, backend=after)

    assert counting.state("a") == {"count": 1}
    assert counting.function.calls == 0, "a plain attribute survived"
    assert counting.process("a") == [("a", 2)]


@pytest.mark.parametrize("after", ["hashmap", "rocksdb"])
def test_timers_and_the_watermark_are_part_of_a_snapshot(harness, after):
    quiet = harness(Quiet(), key_by=0, side_outputs=[LATE])
    quiet.advance_watermark(50)
    quiet.process(("a", 1), timestamp=100)

    quiet.restore(quiet.snapshot(), backend=after)

    assert quiet.watermark == 50
    assert quiet.advance_watermark(1100) == [("a", 1)]


def test_operator_state_and_broadcast_state_are_part_of_a_snapshot(harness):
    buffer, limits = harness(Buffer()), harness(Limits(), key_by=0)
    buffer.process("a")
    limits.broadcast(7)

    buffer.restore(buffer.snapshot())
    limits.restore(limits.snapshot())

    assert buffer.function.rows.get() == ["a"]
    assert limits.broadcast_state() == {"limits": {"all": 7}}


class CountWordsAsFloats(tg.KeyedProcessFunction):
    total = tg.ValueState(float, default=0.0, renamed_from="count")
    seen_by = tg.MapState(str, int)

    def process_element(self, word, ctx):
        yield (word, self.total.get())


def test_a_new_version_of_the_function_takes_the_state_of_the_old_one(harness):
    old = harness(CountWords(), key_by=word)
    old.process("a")

    new = harness(CountWordsAsFloats(), key_by=word, restored=old.snapshot(), backend="rocksdb")

    assert new.process("a") == [("a", 1.0)]


class Divide(tg.ProcessFunction):
    def process_element(self, value, ctx):
        yield 1 // value

    def close(self):
        raise OSError("closed")


def test_the_functions_own_exception_is_what_the_test_sees():
    dividing = make(Divide())

    with pytest.raises(ZeroDivisionError) as found:
        dividing.process(0)
    assert found.value.__context__ is None

    with pytest.raises(OSError, match="closed"):
        dividing.close()
    dividing.close()


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: make(str.upper), r'harness\(upper, via="map"\)'),
        (lambda: make(str.upper, via="reduce"), r"without key_by: it is one of map, flat_map, filter, map_batches"),
        (lambda: make(CountWords()), r"CountWords works on keyed streams: .* key_by="),
        (lambda: make(CountWords(), key_by=word).process2("a"), r"CountWords has no process_element2: use process"),
        (lambda: make(Limits(), key_by=0).process2("a"), r"Limits has no process_element2: use broadcast"),
        (lambda: make(Buffer()).broadcast("a"), r"Buffer has no broadcast side: use process"),
        (lambda: make(Buffer()).state("a"), r"Buffer has no keys"),
    ],
    ids=["no call", "wrong call", "no key", "one input", "broadcast input", "no broadcast", "no keys"],
)
def test_what_cannot_be_meant_is_refused_with_the_way_out(make_one, message):
    with pytest.raises(tg.ConfigurationError, match=message):
        make_one()


def test_what_a_job_refuses_the_harness_refuses(harness):
    with pytest.raises(tg.TidegateError, match="does not fit"):
        harness(lambda text: len(text), via="map", returns=str).process("abc")
    with pytest.raises(tg.TidegateError, match="does not fit"):
        harness(str.upper, via="map", input_type=str).process(3)
