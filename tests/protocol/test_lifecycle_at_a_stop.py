"""The order of calls at a stop, for each kind of operator: after Flink's StopWithSavepointITCase.

    suspend   last record, snapshot, (commit,) close. No end of input, no timer that was not due
    drain     last record, last watermark with every timer, end_input, snapshot, (commit,) close

After the snapshot of the stop nothing is processed; every subtask has the same last snapshot; an operator ends after all
that come before it; what was read has come out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from protocol_kit import Numbered, environment
from test_savepoint_jobs import request

import tidegate as tg
from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, ReaderContext, SourceReader, Split, WriterContext
from tidegate.coordinator.observing import JobStatus
from tidegate.functions.checkpointed import InitializationContext, SnapshotContext
from tidegate.ids import CheckpointId
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.testing.runner import Ask, InProcessRun

PARALLELISM = 2
KEYS = 7
SPLITS, PER_SPLIT = 4, 900
FAR = 10**15  #: an event time that no record brings


@dataclass(frozen=True)
class Call:
    uid: str
    subtask: int
    what: str
    checkpoint: int = 0
    watermark: int = 0


calls: list[Call] = []  #: of the job that runs


# -- operators that note every call -----------------------------------------------------------------------------------


class NotedSource(Numbered):
    def __init__(self, uid: str, source: int) -> None:
        super().__init__(source, SPLITS, PER_SPLIT, rows_per_poll=(1, 2))
        self.uid = uid

    def reader(self, context: ReaderContext) -> SourceReader:
        return _NotedReader(self.uid, context.subtask, super().reader(context))


class _NotedReader(SourceReader):
    def __init__(self, uid: str, subtask: int, reader: SourceReader) -> None:
        self._place = uid, subtask
        self._reader = reader

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._reader.add_splits(splits)

    def poll(self, deadline: float) -> Any:
        records = self._reader.poll(deadline)
        calls.extend(Call(*self._place, "record") for _ in records or [])
        return records

    def splits(self) -> list[Split]:
        return self._reader.splits()

    def snapshot(self, checkpoint: CheckpointId) -> list[Split]:
        calls.append(Call(*self._place, "snapshot", checkpoint))
        return self._reader.splits()

    def notify_complete(self, checkpoint: CheckpointId) -> None:
        calls.append(Call(*self._place, "complete", checkpoint))

    def close(self) -> None:
        calls.append(Call(*self._place, "close"))


class _Noted(tg.CheckpointedFunction):
    """What the two kinds of functions have in common."""

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.state = ctx.operator_state.list_state("any", int)

    def open(self, ctx: tg.Context) -> None:
        self.place = ctx.uid, ctx.subtask

    def note(self, value: Any, ctx: tg.Context) -> list[Any]:
        calls.append(Call(*self.place, "record"))
        ctx.timer_service().register_event_time_timer(FAR)
        return [value]

    def on_timer(self, timestamp: int, ctx: tg.Context) -> None:
        calls.append(Call(*self.place, "timer"))

    def end_input(self, ctx: tg.Context) -> None:
        calls.append(Call(*self.place, "end_input", watermark=ctx.current_watermark))

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        calls.append(Call(*self.place, "snapshot", ctx.checkpoint))

    def close(self) -> None:
        calls.append(Call(*self.place, "close"))


class NotedProcess(_Noted, tg.KeyedProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> list[Any]:
        return self.note(value, ctx)


class NotedPair(_Noted, tg.KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: tg.Context) -> list[Any]:
        return self.note(value, ctx)

    def process_element2(self, value: Any, ctx: tg.Context) -> list[Any]:
        return self.note(value, ctx)


class NotedSink(tg.Sink):
    def writer(self, context: WriterContext) -> tg.SinkWriter:
        return _NotedWriter(context)

    def committer(self, context: WriterContext) -> Committer:
        return _NotedCommitter(context)


class _NotedWriter(tg.CheckpointedFunction, tg.SinkWriter):
    def __init__(self, context: WriterContext) -> None:
        self._place = context.uid, context.subtask

    def initialize_state(self, ctx: InitializationContext) -> None:
        self.state = ctx.operator_state.list_state("any", int)

    def write(self, batch: Batch) -> None:
        calls.extend(Call(*self._place, "record") for _ in batch.rows())

    def end_input(self) -> None:
        calls.append(Call(*self._place, "end_input"))

    def flush(self) -> None:
        calls.append(Call(*self._place, "flush"))

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        calls.append(Call(*self._place, "prepare", checkpoint))
        return [str(checkpoint).encode()]

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        calls.append(Call(*self._place, "snapshot", ctx.checkpoint))

    def close(self) -> None:
        calls.append(Call(*self._place, "close"))


class _NotedCommitter(Committer):
    def __init__(self, context: WriterContext) -> None:
        self._place = context.uid, context.subtask

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        calls.extend(Call(*self._place, "commit", int(committable)) for committable in committables)
        return [CommitOutcome.DONE] * len(committables)

    def close(self) -> None:
        calls.append(Call(*self._place, "close"))


# -- the job ----------------------------------------------------------------------------------------------------------

UIDS = ["left", "right", "one", "two", "out"]
Row = tuple[int, int]


class Story:
    """All calls of a job that was stopped, in their order."""

    def __init__(self, calls: list[Call], last: int) -> None:
        self.calls = calls
        self.last = last  #: the id of the stop's savepoint

    def of(self, uid: str, subtask: int) -> list[Call]:
        return [call for call in self.calls if (call.uid, call.subtask) == (uid, subtask)]

    def after(self, uid: str, subtask: int) -> list[tuple[str, int]]:
        """What an operator was asked from its last snapshot on."""
        own = self.of(uid, subtask)
        (at,) = [place for place, call in enumerate(own) if (call.what, call.checkpoint) == ("snapshot", self.last)]
        return [(call.what, call.checkpoint) for call in own[at:]]

    def places(self, uid: str, what: str, checkpoint: int = 0, subtask: int | None = None) -> list[int]:
        """Where something stands."""
        return [
            at
            for at, call in enumerate(self.calls)
            if (call.uid, call.what, call.checkpoint) == (uid, what, checkpoint) and subtask in (None, call.subtask)
        ]


@functools.cache
def stopped(mode: StopMode, seed: int) -> Story:
    """In some orders of events the input ends before the stop: those are passed over."""
    for again in range(20):
        story = run_and_stop(mode, seed + 100 * again)
        if len(story.places("left", "record")) + len(story.places("right", "record")) < 2 * SPLITS * PER_SPLIT:
            return story
    raise AssertionError("its input always ended before it was stopped")


def run_and_stop(mode: StopMode, seed: int) -> Story:
    calls.clear()
    env = environment(parallelism=PARALLELISM, every="10ms")
    left = env.from_source(NotedSource("left", 1), uid="left", returns=Row)
    right = env.from_source(NotedSource("right", 2), uid="right", returns=Row)

    def key(row: Row) -> int:
        return row[1] % KEYS

    one = left.key_by(key, key_type=int).process(NotedProcess(), uid="one", returns=Row)
    pair = one.key_by(key, key_type=int).connect(right.key_by(key, key_type=int))
    pair.process(NotedPair(), uid="two", returns=Row).sink_to(NotedSink(), uid="out")  # the two are one chain
    ask = Ask(request(mode), after_checkpoints=1)
    result = InProcessRun(env, seed, asks=[ask]).run()
    assert result.status is JobStatus.FINISHED, result.error
    assert result.attempts == 1
    return Story(list(calls), ask.outcome.checkpoint)


SEEDS = range(3)


@pytest.mark.property
@pytest.mark.parametrize("mode", [StopMode.SUSPEND, StopMode.DRAIN])
@pytest.mark.parametrize("seed", SEEDS)
def test_behind_the_snapshot_of_a_stop_there_is_only_the_commit_and_the_end(seed: int, mode: StopMode) -> None:
    story = stopped(mode, seed)
    last = story.last

    for subtask in range(PARALLELISM):
        for uid in ("left", "right"):
            assert story.after(uid, subtask) == [("snapshot", last), ("complete", last), ("close", 0)]
        for uid in ("one", "two"):
            assert story.after(uid, subtask) == [("snapshot", last), ("close", 0)]
        committed = story.after("out", subtask)
        assert committed[0] == ("snapshot", last)
        assert ("commit", last) in committed
        assert committed[-2:] == [("close", 0), ("close", 0)], "the writer, then its committer"
        assert {what for what, _ in committed[1:-2]} == {"commit"}
        for uid in UIDS:
            assert max(call.checkpoint for call in story.of(uid, subtask) if call.what == "snapshot") == last


@pytest.mark.property
@pytest.mark.parametrize("seed", SEEDS)
def test_a_suspended_job_has_no_end_of_input_and_fires_nothing(seed: int) -> None:
    story = stopped(StopMode.SUSPEND, seed)

    assert not [call for call in story.calls if call.what in ("end_input", "timer")]
    for subtask in range(PARALLELISM):
        own = [(call.what, call.checkpoint) for call in story.of("out", subtask) if call.what != "commit"]
        before = own[: own.index(("snapshot", story.last))]
        assert before[-2:] == [("flush", 0), ("prepare", story.last)], "prepared before its state is taken"


@pytest.mark.property
@pytest.mark.parametrize("seed", SEEDS)
def test_a_drained_job_fires_every_timer_then_ends_its_input_then_takes_its_snapshot(seed: int) -> None:
    story = stopped(StopMode.DRAIN, seed)

    for subtask in range(PARALLELISM):
        for uid in ("one", "two"):
            own = story.of(uid, subtask)
            steps = [call.what for call in own if call.checkpoint in (0, story.last)]  # others' snapshots stand between
            order = [step for at, step in enumerate(steps) if at == 0 or step != steps[at - 1]]
            assert order == ["record", "timer", "end_input", "snapshot", "close"]
            (end,) = [call for call in own if call.what == "end_input"]
            assert end.watermark == MAX_WATERMARK
        own = [call.what for call in story.of("out", subtask) if call.checkpoint in (0, story.last)]
        end = own.index("end_input")
        assert own.count("end_input") == 1
        assert "record" not in own[end:]
        assert [what for what in own[end:] if what in ("prepare", "snapshot", "commit")] == [
            "prepare",
            "snapshot",
            "commit",
        ]
    assert len(story.places("one", "timer")) == len(story.places("two", "timer")) == KEYS, "one for each key"


@pytest.mark.property
@pytest.mark.parametrize("mode", [StopMode.SUSPEND, StopMode.DRAIN])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_operator_ends_after_all_before_it_and_everything_read_has_come_out(seed: int, mode: StopMode) -> None:
    story = stopped(mode, seed)

    def assert_order(before: str, after: str, subtasks: tuple[int | None, int | None], what: str, then: str) -> None:
        ids = [story.last if word == "snapshot" else 0 for word in (what, then)]
        first = story.places(before, what, ids[0], subtasks[0])
        second = story.places(after, then, ids[1], subtasks[1])
        assert max(first) < min(second), f"{what} of {before} comes after {then} of {after}"

    for subtask in range(PARALLELISM):
        for before, after in [("left", "one"), ("one", "two"), ("right", "two"), ("two", "out")]:
            above = subtask if after == "out" else None  # the next in the chain, or all that send to it
            assert_order(before, after, (above, subtask), "record", "snapshot")
            assert_order(before, after, (above, subtask), "snapshot", "snapshot")
            assert_order(before, after, (above, subtask), "close", "close")
            if mode is StopMode.DRAIN and before in ("one", "two"):
                assert_order(before, after, (above, subtask), "end_input", "end_input")
    left, right = len(story.places("left", "record")), len(story.places("right", "record"))
    assert len(story.places("one", "record")) == left
    assert len(story.places("two", "record")) == len(story.places("out", "record")) == left + right
