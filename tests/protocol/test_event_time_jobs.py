"""Event time and timers in whole jobs: windows by hand over crashes and changes of parallelism, idle sources, quiet streams."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.batch import Batch, Origins
from tidegate.connectors.contract import Polled, ReaderContext
from tidegate.graph.plan import plan_job
from tidegate.protocol.watermarks import IDLE
from tidegate.task.edges import EdgeWriter
from tidegate.task.operators.timers import Time
from tidegate.task.operators.timestamps import TimestampOperator
from tidegate.testing.clock import ManualClock
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process
from tidegate.types import record_type
from tidegate.wire.control import SubtaskRestore

RNG = random.Random(3)
BOUND_MS = 40
#: (user, time): times come up to 40 ms late, and sometimes twice
EVENTS = [(f"user-{RNG.randint(0, 5)}", n * 10 - RNG.randint(0, BOUND_MS)) for n in range(150)]
WINDOW_MS = 100
EVENT = tuple[str, int]


def end_of(time: int) -> int:
    return time - time % WINDOW_MS + WINDOW_MS - 1


class CountWindows(tg.KeyedProcessFunction):
    """Counts of a user in each window; a timer for each, registered again and again, and one that is always deleted."""

    counts = tg.MapState(int, int)
    last = tg.ValueState(int)

    def process_element(self, event: tuple[str, int], ctx: tg.Context) -> None:
        end = end_of(event[1])
        assert ctx.timestamp() == event[1]
        assert ctx.current_watermark < event[1], "late, though nothing comes later than the bound"
        self.counts[end] = self.counts.get(end, 0) + 1
        timers = ctx.timer_service()
        timers.register_event_time_timer(end)
        timers.register_event_time_timer(end)
        timers.register_event_time_timer(end + 1)
        timers.delete_event_time_timer(end + 1)

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[tuple[str, int, int]]:
        assert timestamp % WINDOW_MS == WINDOW_MS - 1, "a deleted timer has fired"
        assert ctx.time_domain == "event"
        last = self.last.get()
        assert last is None or last < timestamp, "out of order, or twice"
        self.last.set(timestamp)
        yield (ctx.key, timestamp, self.counts[timestamp])
        del self.counts[timestamp]


def windows(
    storage: str, parallelism: int, unaligned: bool = False, resume: str | None = None, backend: str = "hashmap"
) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("windows", parallelism=parallelism)
    env.state_backend(backend, memory="4mb")
    env.checkpointing(every="10ms", storage=storage, unaligned=unaligned, resume=resume)
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    strategy = tg.WatermarkStrategy.bounded_out_of_orderness(f"{BOUND_MS}ms", timestamp=lambda event: event[1])
    events = env.from_collection(EVENTS, uid="events", type=EVENT, parallelism=1)
    timed = events.assign_timestamps_and_watermarks(strategy, parallelism=1)
    counted = timed.key_by(0).process(CountWindows(), uid="count", returns=tuple[str, int, int])
    counted.sink_to(LedgerSink("windows"), uid="out")
    return env


EXPECTED = Counter((user, end_of(time)) for user, time in EVENTS)


def check_windows() -> None:
    assert sorted(ledger("windows").rows()) == sorted((user, end, n) for (user, end), n in EXPECTED.items())


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("point", ALL_POINTS)
def test_windows_are_counted_once_over_a_crash(point: str, unaligned: bool) -> None:
    forget_ledgers()
    run_in_process(windows(fresh_storage(), 2, unaligned), 5, [Crash(point, nth=2, times=2)])
    check_windows()


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 5), (4, 1)])
def test_timers_follow_their_keys_and_the_watermark_is_restored(before: int, after: int, unaligned: bool) -> None:
    resumed = 0
    for seed in range(4):
        forget_ledgers()
        storage, backend = fresh_storage(), ("hashmap", "rocksdb")[seed % 2]
        try:
            crash = [Crash("driver.notified", nth=1 + seed)]
            InProcessRun(windows(storage, before, unaligned, backend=backend), seed, crash, max_drivers=1).run()
        except AllDriversDied:
            resumed += 1
            run_in_process(windows(storage, after, unaligned, resume="latest", backend=backend), seed)
        check_windows()
    assert resumed >= 2


class Odd(tg.ProcessFunction):
    """Every second event goes to the side."""

    def process_element(self, event: tuple[str, int], ctx: tg.Context) -> list[tuple[str, int]]:
        if event[1] % 20 == 0:
            ctx.output(tg.OutputTag("side"), event)
            return []
        return [event]


def test_what_goes_to_a_side_output_keeps_its_timestamp() -> None:
    forget_ledgers()
    env = tg.StreamEnvironment("sides", parallelism=1)
    env.checkpointing(every="10ms", storage=fresh_storage())
    strategy = tg.WatermarkStrategy.bounded_out_of_orderness(f"{BOUND_MS}ms", timestamp=lambda event: event[1])
    events = [("ann", n * 10) for n in range(100)]
    stream = env.from_collection(events, uid="events", type=EVENT).assign_timestamps_and_watermarks(strategy)
    passed = stream.process(Odd(), uid="odd", returns=EVENT)
    side = passed.side_output(tg.OutputTag("side", EVENT))
    counted = side.union(passed).key_by(0).process(CountWindows(), uid="count", returns=tuple[str, int, int])
    counted.sink_to(LedgerSink("windows"), uid="out")
    run_in_process(env, 1)

    assert ledger("windows").rows() == [("ann", end, 10) for end in range(99, 1000, 100)]


# -- quiet streams -----------------------------------------------------------------------------------------------------


class Signals:
    """What the functions of a job tell its sources. One process."""

    fired: list[Any] = []


class Quiet(tg.Source):
    """Some records, then silence until something has fired."""

    def __init__(self, records: list[Any], type: Any, wanted: int = 1) -> None:
        self.records = records
        self.record_type = type
        self.wanted = wanted

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split("quiet")]

    def reader(self, context: ReaderContext) -> tg.SourceReader:
        return QuietReader(self, context)


class QuietReader(tg.SourceReader):
    def __init__(self, source: Quiet, context: ReaderContext) -> None:
        self.source = source
        self.context = context
        self.mine: list[tg.Split] = []
        self.at = 0

    def add_splits(self, splits: Sequence[tg.Split]) -> None:
        self.mine = list(splits)
        self.at = int(splits[0].position or 0)  # type: ignore[arg-type]

    def poll(self, deadline: float) -> list[Any] | None:
        if self.mine and self.at < len(self.source.records):
            self.at += 1
            return [self.source.records[self.at - 1]]
        self.context.sleep(max(0.0, deadline - self.context.clock()))
        return None

    def splits(self) -> list[tg.Split]:
        finished = self.at == len(self.source.records) and len(Signals.fired) >= self.source.wanted
        return [tg.Split(split.id, self.at, finished) for split in self.mine]


def quiet_job(backend: str = "hashmap") -> tg.StreamEnvironment:
    Signals.fired = []
    forget_ledgers()
    env = tg.StreamEnvironment("quiet", parallelism=1)
    env.state_backend(backend, memory="4mb")
    env.checkpointing(every="10ms", storage=fresh_storage())
    env.restart_strategy("fixed-delay", attempts=5, delay="0s")
    return env


class Alarm(tg.KeyedProcessFunction):
    """Processing-time timers, two of them out of order and one deleted."""

    def process_element(self, event: tuple[str, int], ctx: tg.Context) -> None:
        timers = ctx.timer_service()
        now = timers.current_processing_time()
        for delay in (300, 100, 200, 100):
            timers.register_processing_time_timer(now + delay)
        timers.delete_processing_time_timer(now + 200)

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[tuple[str, int]]:
        assert ctx.time_domain == "processing"
        assert ctx.timer_service().current_processing_time() >= timestamp
        Signals.fired.append(timestamp)
        yield (ctx.key, len(Signals.fired))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_processing_time_timers_fire_in_order_on_a_stream_that_has_fallen_silent(backend: str) -> None:
    env = quiet_job(backend)
    stream = env.from_source(Quiet([("ann", 1)], EVENT, wanted=2), uid="quiet").key_by(0)
    stream.process(Alarm(), uid="alarm", returns=EVENT).sink_to(LedgerSink("out"), uid="out")
    run_in_process(env, 1)

    assert Signals.fired == sorted(Signals.fired)
    assert Signals.fired[1] - Signals.fired[0] == 200
    assert sorted(ledger("out").rows()) == [("ann", 1), ("ann", 2)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_processing_time_timer_that_was_due_while_the_job_was_down_fires_after_the_restart(backend: str) -> None:
    env = quiet_job(backend)
    stream = env.from_source(Quiet([("ann", 1)], EVENT, wanted=2), uid="quiet").key_by(0)
    stream.process(Alarm(), uid="alarm", returns=EVENT).sink_to(LedgerSink("out"), uid="out")
    run_in_process(env, 2, [Crash("driver.notified", nth=2, times=1)])

    assert len({key for key, _ in ledger("out").rows()}) == 1
    assert len(ledger("out").rows()) == 2


class SetBack:
    """A wall clock that somebody sets back while the job runs: by a minute, a tenth of a second after its start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock() + 0.1

    def __call__(self) -> float:
        now = self._clock()
        return 1_000_000.0 + now - (60.0 if now >= self._at else 0.0)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_processing_time_timers_do_not_stand_still_when_the_wall_clock_is_set_back(backend: str) -> None:
    env = quiet_job(backend)
    stream = env.from_source(Quiet([("ann", 1)], EVENT, wanted=2), uid="quiet").key_by(0)
    stream.process(Alarm(), uid="alarm", returns=EVENT).sink_to(LedgerSink("out"), uid="out")
    run = InProcessRun(env, 1)
    began = run.world.clock()
    run.world.wall_clock = SetBack(run.world.clock)

    run.run()

    assert Signals.fired[1] - Signals.fired[0] == 200
    assert run.world.clock() - began < 5.0


class Forgetful(tg.KeyedProcessFunction):
    """Tells when its state has not only expired but gone."""

    seen = tg.ValueState(int, ttl=tg.Ttl("1s"))

    def process_element(self, event: tuple[str, int], ctx: tg.Context) -> None:
        self.seen.set(event[1])
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 10_000)

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[tuple[str, int]]:
        Signals.fired.append(timestamp)
        yield (ctx.key, len(self.seen._table))  # type: ignore[attr-defined]


def test_expired_state_is_cleaned_up_while_the_stream_is_silent() -> None:
    env = quiet_job()
    stream = env.from_source(Quiet([("ann", 1)], EVENT), uid="quiet").key_by(0)
    stream.process(Forgetful(), uid="forgetful", returns=EVENT).sink_to(LedgerSink("out"), uid="out")
    run_in_process(env, 1)

    assert ledger("out").rows() == [("ann", 0)]


class Wait(tg.KeyedProcessFunction):
    """An event-time timer at 50."""

    def process_element(self, event: tuple[str, int], ctx: tg.Context) -> None:
        ctx.timer_service().register_event_time_timer(50)

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[tuple[str, int]]:
        Signals.fired.append(timestamp)
        yield (ctx.key, ctx.current_watermark)


@pytest.mark.parametrize("seed", range(5))
def test_a_source_that_never_says_anything_holds_nobody_back_when_it_may_be_idle(seed: int) -> None:
    env = quiet_job()
    strategy = tg.WatermarkStrategy.monotonous(timestamp=lambda event: event[1])
    talking = env.from_source(Quiet([("ann", 10), ("ann", 100)], EVENT), uid="talking")
    silent = env.from_source(Quiet([], EVENT), uid="silent")
    timed = talking.assign_timestamps_and_watermarks(strategy)
    idle = silent.assign_timestamps_and_watermarks(strategy.with_idleness("1s"))
    joined = timed.union(idle).key_by(0)
    joined.process(Wait(), uid="wait", returns=EVENT).sink_to(LedgerSink("out"), uid="out")
    run_in_process(env, seed)

    assert ledger("out").rows() == [("ann", 99)], "it fired by the watermark of the other, not by the end of all input"


class Stamped:
    """One subtask of assign_timestamps_and_watermarks, and what it passes on."""

    def __init__(self) -> None:
        env = tg.StreamEnvironment("stamps")
        strategy = tg.WatermarkStrategy.monotonous(timestamp=lambda event: event[1]).with_idleness("1s")
        stream = env.from_collection(EVENTS, uid="events", type=EVENT)
        stream.assign_timestamps_and_watermarks(strategy, uid="stamps").print()
        (planned,) = [p for p in plan_job("stamps", env._graph, 1).operators if p.uid == "stamps"]
        self.clock = ManualClock()
        self.operator = TimestampOperator(planned, 0, strategy, Time(self.clock, self.clock))
        self.said: list[int] = []
        self.operator.connect({}, [self.said.append])

    def record(self, time: int) -> list[int]:
        self.operator.process(Batch(record_type(EVENT), [("ann", time)]), 0)
        return self.news()

    def of(self, splits: set[str], **times: int) -> list[int]:
        """A batch with a record of each of these splits, by a reader that has not finished `splits`."""
        batch = Batch(record_type(EVENT), list(times.items()))
        batch.origins = Origins(frozenset(splits), list(times))
        self.operator.process(batch, 0)
        return self.news()

    def after(self, seconds: float) -> list[int]:
        self.clock.advance(seconds)
        self.operator.on_time()
        return self.news()

    def news(self) -> list[int]:
        said, self.said[:] = list(self.said), []
        return said


def test_a_subtask_is_idle_after_its_time_and_counts_again_with_its_next_record() -> None:
    stamped = Stamped()
    stamped.operator.open(None)

    assert stamped.record(100) == [99]
    assert stamped.record(100) == []
    assert stamped.after(1.0) == [IDLE]
    assert stamped.after(5.0) == [], "said once"
    assert stamped.record(100) == [99], "time has not gone on, but it is not idle any more"
    assert stamped.record(101) == [100]


def test_a_restored_watermark_is_said_again_though_no_record_comes() -> None:
    stamped = Stamped()
    stamped.operator.watermark = 50
    stamped.operator.open(SubtaskRestore("stamps", 0, old_parallelism=1))

    assert stamped.operator.next_time() == stamped.clock()
    assert stamped.after(0.0) == [50]
    assert stamped.record(40) == [], "it does not go back"
    assert stamped.record(52) == [51]


def test_a_watermark_that_waits_for_the_next_flush_is_not_lost_when_the_channel_falls_idle() -> None:
    sent: list[int] = []

    class Sent(EdgeWriter):
        def __init__(self) -> None:
            self._buffers, self.is_dirty, self._watermark, self._idle = [], False, None, False

        def _tell_all(self, kind: Any, value: int = 0) -> None:
            sent.append(value)

    writer = Sent()
    writer.write_watermark(10)
    writer.write_watermark(IDLE)
    writer.flush()
    writer.write_watermark(IDLE)
    writer.write_watermark(11)
    writer.flush()

    assert sent == [10, IDLE, 11]


def test_each_split_of_a_source_has_a_watermark_and_the_lowest_counts() -> None:
    stamped = Stamped()
    stamped.operator.open(None)

    assert stamped.of({"a", "b"}, a=900) == [], "b has said nothing yet"
    assert stamped.of({"a", "b"}, b=100) == [99]
    assert stamped.of({"a", "b"}, a=950, b=300) == [299]
    assert stamped.of({"a", "b", "c"}, b=400) == [], "c is new: event time waits for it, and does not go back"
    assert stamped.of({"a", "b", "c"}, c=350) == [349]
    assert stamped.of({"a", "c"}, b=990) == [], "b has ended with this record; c holds it back"
    assert stamped.of({"a"}, c=360) == [359, 949], "c has ended: a is the lowest"


def test_a_split_may_end_with_its_first_records() -> None:
    stamped = Stamped()
    stamped.operator.open(None)

    assert stamped.of({"b"}, a=300, b=100) == [99], "the last of a, the first of b"
    assert stamped.of({"b"}, b=120) == [119]
    assert stamped.of(set(), b=130) == [129]


def test_a_split_without_records_holds_nobody_back_when_it_may_be_idle() -> None:
    stamped = Stamped()
    stamped.operator.open(None)
    assert stamped.of({"a", "b"}, a=900) == []
    stamped.clock.advance(0.5)
    assert stamped.of({"a", "b"}, a=901) == []

    assert stamped.after(0.5) == [900], "b is idle"
    assert stamped.of({"a", "b"}, b=950, a=902) == [901], "it counts again"
    assert stamped.after(1.0) == [949, IDLE], "all are: time moves on to the highest"


class SideBySide(tg.Source):
    """Two splits, read in turn; the first is a million milliseconds ahead of the second."""

    record_type = EVENT

    def __init__(self, told_apart: bool) -> None:
        self.told_apart = told_apart

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split("ahead", 0), tg.Split("behind", 0)]

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return _InTurn(self.told_apart)


class _InTurn(tg.SourceReader):
    def __init__(self, told_apart: bool) -> None:
        self._told_apart = told_apart
        self._next: dict[str, int] = {}

    def add_splits(self, splits: Any) -> None:
        self._next |= {split.id: split.position for split in splits}

    def poll(self, deadline: float) -> Any:
        going_on = {split: number for split, number in self._next.items() if number < 20}
        if not going_on:
            return None
        split = min(going_on, key=lambda split: (going_on[split], split))
        number = self._next[split]
        self._next[split] = number + 1
        records = [(split, number * 10 + (1_000_000 if split == "ahead" else 0))]
        return Polled(records, origins=[split]) if self._told_apart else records

    def splits(self) -> list[tg.Split]:
        return [tg.Split(split, number, finished=number == 20) for split, number in self._next.items()]


class Late(tg.KeyedProcessFunction):
    def process_element(self, event: Any, ctx: Any) -> Any:
        if ctx.timestamp() <= ctx.current_watermark:
            yield event


@pytest.mark.parametrize("told_apart", [True, False])
def test_no_record_is_late_only_because_another_split_is_ahead(told_apart: bool, seed: int) -> None:
    """The second case shows that the first could fail."""
    forget_ledgers()
    env = tg.StreamEnvironment("side-by-side", parallelism=1)
    env.checkpointing(every="1s", storage=fresh_storage())
    strategy = tg.WatermarkStrategy.monotonous(timestamp=lambda event: event[1])
    stream = env.from_source(SideBySide(told_apart), uid="splits").assign_timestamps_and_watermarks(strategy)
    stream.key_by(0).process(Late(), uid="late", returns=EVENT).sink_to(LedgerSink("out"), uid="out")
    run_in_process(env, seed)

    assert bool(ledger("out").rows()) is not told_apart
