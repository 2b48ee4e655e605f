"""Simulations find what is wrong in a user's job, and say what it takes; of a job without a mistake they say nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

import tidegate as tg
from tidegate.connectors.contract import ReaderContext
from tidegate.errors import ConfigurationError
from tidegate.testing import LedgerSink, forget_ledgers, simulate
from tidegate.testing.simulation.comparing import counted, differences, expected
from tidegate.testing.simulation.misfortunes import DiesInSink, OutsideFails, ProcessDies, draw
from tidegate.testing.simulation.simulating import Report

SEEDS = 12  #: a mistake shows in the first few


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    forget_ledgers()
    OUTSIDE.clear()


def job(sink: tg.Sink | None = None, source: tg.Source | None = None, function: Any = None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("totals", parallelism=2)
    env.checkpointing(every="10s", storage="file:///nowhere")
    numbers = env.from_source(source or Twenty(), uid="numbers", returns=int)
    counts = numbers.key_by(lambda n: n % 2, key_type=int).process(
        function or Count(), uid="count", returns=tuple[int, int]
    )
    counts.sink_to(sink or LedgerSink("out"), uid="out")
    return env


class Count(tg.KeyedProcessFunction):
    seen = tg.ValueState(int, default=0)

    def process_element(self, value: int, ctx: tg.Context) -> Iterable[tuple[int, int]]:
        self.seen.set(self.seen.get() + 1)
        yield (ctx.key, self.seen.get())


class Twenty(tg.Source):
    """0 to 19, one a poll."""

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split("all")]

    def reader(self, context: ReaderContext) -> tg.SourceReader:
        return TwentyReader()


class TwentyReader(tg.SourceReader):
    def __init__(self) -> None:
        self.next: int | None = None

    def add_splits(self, splits: Sequence[tg.Split]) -> None:
        (split,) = splits
        self.next = self.position_of(split)

    def position_of(self, split: tg.Split) -> int:
        return 0 if split.position is None else int(split.position)  # type: ignore[arg-type]

    def poll(self, deadline: float) -> list[int] | None:
        if self.next is None or self.next == 20:
            return None
        self.next += 1
        return [self.next - 1]

    def splits(self) -> list[tg.Split]:
        return [] if self.next is None else [tg.Split("all", self.next, self.next == 20)]


# -- a sink of one's own, with its outside --------------------------------------------------------------------------------

OUTSIDE: dict[str, dict[str, list[Any]]] = {}  #: by place: what is committed, by the name of what was prepared
_names = itertools.count()


class OwnSink(tg.Sink):
    """Each epoch goes out under a name that it has in the checkpoint."""

    guarantee = "exactly-once"

    def __init__(self, place: str = "the real one") -> None:
        self.place = place

    def at_place(self, place: str) -> OwnSink:
        return type(self)(place)

    def read_back(self) -> list[Any]:
        return [row for rows in OUTSIDE.get(self.place, {}).values() for row in rows]

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return OwnWriter(self, context)

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return OwnCommitter(self)

    def prepared(self, name: str, rows: list[Any]) -> list[bytes]:
        return [repr((name, rows)).encode()]

    def commit(self, data: bytes) -> None:
        name, rows = eval(data)
        OUTSIDE.setdefault(self.place, {})[name] = rows


class OwnWriter(tg.SinkWriter):
    def __init__(self, sink: OwnSink, context: tg.WriterContext) -> None:
        self.sink = sink
        self.name = f"{context.attempt}-{context.subtask}"
        self.rows: list[Any] = []

    def write(self, batch: Any) -> None:
        self.rows += batch.rows()

    def prepare(self, checkpoint: int) -> list[bytes]:
        rows, self.rows = self.rows, []
        return self.sink.prepared(f"{self.name}-{checkpoint}", rows) if rows else []


class OwnCommitter(tg.Committer):
    def __init__(self, sink: OwnSink) -> None:
        self.sink = sink

    def commit(self, committables: list[bytes]) -> list[tg.CommitOutcome]:
        for data in committables:
            self.sink.commit(data)
        return [tg.CommitOutcome.DONE] * len(committables)


def test_of_a_job_without_a_mistake_nothing_is_said() -> None:
    report = simulate(job(OwnSink()), seeds=8)

    report.check()
    assert report.seeds == 8
    assert report.expected["out"].rows.total() == 20
    assert {"ProcessDies", "DiesInSink", "OutsideFails"} <= set(report.happened), "or nothing was shown by it"
    assert report.checkpoints > 8
    assert "the real one" not in OUTSIDE


# -- mistakes -----------------------------------------------------------------------------------------------------------


class CommitsBeforeTheCheckpoint(OwnSink):
    """What is prepared can be seen at once."""

    def prepared(self, name: str, rows: list[Any]) -> list[bytes]:
        self.commit(repr((name, rows)).encode())
        return super().prepared(name, rows)


class ForgetsWhatItPrepared(OwnSink):
    """The rows stay in the process; the checkpoint has only their name."""

    def __init__(self, place: str = "the real one") -> None:
        super().__init__(place)
        self.waiting: dict[str, list[Any]] = {}

    def prepared(self, name: str, rows: list[Any]) -> list[bytes]:
        self.waiting[name] = rows
        return [name.encode()]

    def commit(self, data: bytes) -> None:
        OUTSIDE.setdefault(self.place, {})[data.decode()] = self.waiting.pop(data.decode(), [])


class CommitsTwice(OwnSink):
    """A commit that is asked for again is done again."""

    def commit(self, data: bytes) -> None:
        OUTSIDE.setdefault(self.place, {})[f"{next(_names)}"] = eval(data)[1]


class InAnAttribute(tg.KeyedProcessFunction):
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def process_element(self, value: int, ctx: tg.Context) -> Iterable[tuple[int, int]]:
        self.seen[ctx.key] = self.seen.get(ctx.key, 0) + 1
        yield (ctx.key, self.seen[ctx.key])


class BeginsAnew(Twenty):
    def reader(self, context: ReaderContext) -> tg.SourceReader:
        return BeginsAnewReader()


class BeginsAnewReader(TwentyReader):
    def position_of(self, split: tg.Split) -> int:
        return 0


class AtTheLastRecord(Twenty):
    """The position is that of the last record, not the one after it."""

    def reader(self, context: ReaderContext) -> tg.SourceReader:
        return AtTheLastRecordReader()


class AtTheLastRecordReader(TwentyReader):
    def splits(self) -> list[tg.Split]:
        return [] if self.next is None else [tg.Split("all", max(0, self.next - 1), self.next == 20)]


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ({"sink": CommitsBeforeTheCheckpoint()}, "doubled"),
        ({"sink": ForgetsWhatItPrepared()}, "lost"),
        ({"sink": CommitsTwice()}, "doubled"),
        ({"function": InAnAttribute()}, "lost"),
        ({"source": BeginsAnew()}, "that should not be there"),
        ({"source": AtTheLastRecord()}, "that should not be there"),
    ],
    ids=lambda value: type(next(iter(value.values()))).__name__ if isinstance(value, dict) else "",
)
def test_a_mistake_is_found_with_few_seeds_and_shrunk(parts: dict[str, Any], wrong: str) -> None:
    report = simulate(job(**parts), seeds=SEEDS, most_failures=1)

    assert report.failures, f"not found with {report.seeds} seeds"
    (failure,) = report.failures
    assert wrong in str(failure)
    assert 1 <= len(failure.needed) <= 2, "one death is enough for each; two, where the first has to come early"
    assert len(failure.needed) <= len(failure.misfortunes)
    assert any(str(failure.needed[0]) in line for line in failure.story)
    with pytest.raises(AssertionError, match=f"seed {failure.seed}"):
        report.check()


def test_the_same_seed_fails_in_the_same_way_again() -> None:
    first = simulate(job(ForgetsWhatItPrepared()), seeds=SEEDS, most_failures=1).failures[0]
    again = simulate(job(ForgetsWhatItPrepared()), seeds=1, first_seed=first.seed).failures[0]

    assert (again.needed, again.differences, again.story) == (first.needed, first.differences, first.story)


# -- what cannot be compared ----------------------------------------------------------------------------------------------


class ByChance(tg.ProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Iterable[tuple[int, float]]:
        yield (value, random.random())


def by_chance(function: Any, returns: Any) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("chance", parallelism=2)
    env.checkpointing(every="10s", storage="file:///nowhere")
    env.from_source(Twenty(), uid="numbers", returns=int).rebalance().process(
        function, uid="drawn", returns=returns
    ).collect(uid="out")
    return env


def test_results_of_chance_are_said_to_be_so_and_only_counted() -> None:
    report = simulate(by_chance(ByChance(), tuple[int, float]), seeds=3)

    report.check()
    assert not report.expected["out"].stable
    assert report.expected["out"].in_words() == "only compared: that there are 20 records"
    assert report.plain_differences["out"][0].lost


def test_of_at_least_once_checkpoints_nothing_is_compared_but_the_end() -> None:
    env = job()
    env.checkpointing(every="10s", storage="file:///nowhere", mode="at-least-once")
    report = simulate(env, seeds=3)

    assert report.is_good
    assert not report.compares
    with pytest.raises(AssertionError, match="nothing can be compared"):
        report.check()


# -- inputs and outsides ------------------------------------------------------------------------------------------------


def test_an_input_without_an_end_gives_as_many_records_as_asked_for() -> None:
    env = tg.StreamEnvironment("endless", parallelism=2)
    env.checkpointing(every="10s", storage="file:///nowhere")
    endless = tg.DataGenerator(lambda n: n, type=int, rate=1, splits=3)
    env.from_source(endless, uid="numbers").collect(uid="out")
    report = simulate(env, seeds=4, records=17)

    report.check()
    assert report.expected["out"].rows.total() == 17


def test_a_long_input_comes_to_its_end_and_can_be_cut_short() -> None:
    def env() -> tg.StreamEnvironment:
        made = tg.StreamEnvironment("long", parallelism=2)
        made.checkpointing(every="10s", storage="file:///nowhere")
        made.from_collection(list(range(5_000)), uid="numbers").collect(uid="out")
        return made

    whole = simulate(env(), seeds=1)
    whole.check()
    assert whole.expected["out"].rows.total() == 5_000
    short = simulate(env(), seeds=2, records=33)
    short.check()
    assert short.expected["out"].rows.total() == 33


class Before(tg.KeyedProcessFunction):
    last = tg.ValueState(int, default=-1)

    def process_element(self, value: int, ctx: tg.Context) -> Iterable[tuple[int, int]]:
        yield (self.last.get(), value)
        self.last.set(value)


@pytest.mark.parametrize("records", [None, 12, 100])
def test_the_parts_of_a_list_are_read_in_order_however_many_are_wanted(records: int | None) -> None:
    """As its own reader does. Else records would be late that never are."""
    env = tg.StreamEnvironment("order", parallelism=1)
    env.checkpointing(every="10s", storage="file:///nowhere")
    numbers = env.from_collection(list(range(12)), uid="numbers").key_by(lambda n: 0, key_type=int)
    numbers.process(Before(), uid="before", returns=tuple[int, int]).collect(uid="out")
    report = simulate(env, seeds=4, records=records)

    report.check()
    assert report.expected["out"].rows == counted((at - 1, at) for at in range(12))


def test_a_sink_without_a_model_is_refused_with_both_ways_out(tmp_path: Any) -> None:
    env = tg.StreamEnvironment("posting")
    env.from_collection([1, 2], uid="in").sink_to(tg.HttpSink("http://127.0.0.1:9/"), uid="posts")

    with pytest.raises(ConfigurationError, match=r"no model of HttpSink.*at_place.*--instead posts"):
        simulate(env, seeds=1)
    simulate(env, seeds=2, instead=["posts"]).check()


def test_a_source_of_a_service_needs_its_records_as_a_file(tmp_path: Any) -> None:
    def env() -> tg.StreamEnvironment:
        made = tg.StreamEnvironment("lines")
        made.from_source(tg.SocketText("127.0.0.1", 9), uid="lines").collect(uid="out")
        return made

    file = tmp_path / "lines.txt"
    file.write_text("a\nb\nb\n")
    with pytest.raises(ConfigurationError, match="--input lines=records"):
        simulate(env(), seeds=1)
    with pytest.raises(ConfigurationError, match="no such operator; it has lines"):
        simulate(env(), seeds=1, inputs={"line": str(file)})
    with pytest.raises(ConfigurationError, match=r"ends in \.csv"):
        simulate(env(), seeds=1, inputs={"lines": str(tmp_path / "lines")})
    report = simulate(env(), seeds=2, inputs={"lines": str(file)})
    report.check()
    assert report.expected["out"].rows == counted(["a", "b", "b"])


def test_a_job_that_fails_without_a_misfortune_is_not_simulated() -> None:
    env = tg.StreamEnvironment("failing")
    env.from_collection([1, 0], uid="in").map(lambda n: 1 // n, uid="divide").collect(uid="out")

    with pytest.raises(ConfigurationError, match=r"without any misfortune.*ZeroDivisionError"):
        simulate(env, seeds=1)


# -- values ---------------------------------------------------------------------------------------------------------------


def test_misfortunes_are_the_seeds_own_and_of_every_kind() -> None:
    calls = {"out": ("link",)}
    drawn = [each for seed in range(100) for each in draw(seed, calls)]

    assert draw(7, calls) == draw(7, calls) != draw(8, calls)
    assert {each.crash.point.split(".")[0] for each in drawn if isinstance(each, ProcessDies)} == {
        "slot",
        "source",
        "driver",
    }
    assert {each.call for each in drawn if isinstance(each, DiesInSink)} == {
        "writer",
        "write",
        "flush",
        "prepare",
        "commit",
    }
    assert ("link", True) in {(each.call, each.after_effect) for each in drawn if isinstance(each, OutsideFails)}
    assert 2 in {each.times for each in drawn if isinstance(each, DiesInSink)}, "twice in a row"


def test_what_differs_is_told_by_sink_and_by_kind() -> None:
    wanted = expected("out", True, [counted([1, 2, 2, 3])] * 2)
    (found,) = differences({"out": wanted}, {"out": counted([1, 2, 2, 2, 9])})

    assert (found.lost, found.doubled, found.foreign) == (["3"], ["2"], ["9"])
    assert str(found) == "1 lost, 1 doubled, 1 that should not be there"
    again = expected("out", False, [counted([1, 2])] * 2)
    assert differences({"out": again}, {"out": counted([1, 1, 2])}) == []
    assert [each.lost for each in differences({"out": again}, {"out": counted([1, 1])})] == [["2"]]


def test_a_report_of_nothing_compares_nothing() -> None:
    assert not Report("job").compares
