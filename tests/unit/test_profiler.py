"""The profiler: it names the user's slow line, tells computing from waiting, keeps its bounds and never ends a job."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import tidegate as tg
from tidegate.coordinator import profiling
from tidegate.coordinator.profiling import Count, Stack, StackProfile
from tidegate.ids import SlotId
from tidegate.task import profiler
from tidegate.task.operators import process
from tidegate.task.profiler import MAX_DEPTH, MAX_STACKS, FoldedStacks, StackSampler
from tidegate.testing import run_in_process
from tidegate.wire.control import CodeLine, Sampled, SampledStack, SampleStacks

ORDER = SampleStacks(seconds=60.0, per_s=200.0)
NO_MORE = SampleStacks(seconds=0.0, per_s=200.0)


def join_samplers() -> None:
    for thread in threading.enumerate():
        if thread.name == "tidegate-profiler":
            thread.join(60)


class Messages:
    """What a sampler has sent; `first` is set by the first of them."""

    def __init__(self) -> None:
        self.all: list[Sampled] = []
        self.first = threading.Event()

    def send(self, sampled: Sampled) -> None:
        self.all.append(sampled)
        self.first.set()


SEEN = threading.Event()


class Slow(tg.KeyedProcessFunction[int, int]):
    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        total = value
        while not SEEN.is_set():
            total += sum(range(3000))  # the planted line
        yield total


def planted_line(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return number


@pytest.mark.parametrize("way", ["called", "in a loop"])
def test_it_names_the_slow_line_and_its_operator(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WORTH_A_LOOP", 1 if way == "in a loop" else sys.maxsize)
    in_loops: list[bool] = []
    in_a_loop = process.KeyedProcessOperator._process_in_a_loop
    monkeypatch.setattr(
        process.KeyedProcessOperator,
        "_process_in_a_loop",
        lambda *given: in_loops.append(done := in_a_loop(*given)) or done,
    )
    SEEN.clear()
    messages = Messages()
    messages.first = SEEN
    env = tg.StreamEnvironment("slow")
    stream = env.from_collection([1, 2, 3], uid="numbers").key_by(lambda value: value, key_type=int)
    stream.process(Slow(), uid="slow", returns=int).collect(uid="out")
    sampler = StackSampler(threading.get_ident(), messages.send)
    sampler.order(ORDER)

    run_in_process(env)
    sampler.order(NO_MORE)
    join_samplers()

    counts: dict[tuple[str, int, str], int] = {}
    for stack in messages.all[0].stacks:
        users = [line for n in stack.lines if (line := messages.all[0].lines[n]).owner == "user"]
        if users and users[-1].file == __file__:
            place = (users[-1].function, users[-1].line, stack.uid)
            counts[place] = counts.get(place, 0) + stack.samples
    hottest = max(counts, key=lambda place: counts[place])
    assert hottest == ("Slow.process_element", planted_line("the planted line"), "slow")
    assert (way == "in a loop") == any(in_loops)


@contextmanager
def busy_thread(work: Callable[[], object]) -> Iterator[int]:
    """A thread that works until the block ends; gives its identity."""
    ending, started = threading.Event(), threading.Event()

    def run() -> None:
        started.set()
        while not ending.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield thread.ident or 0
    finally:
        ending.set()
        thread.join()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not tell what a thread computes")
def test_waiting_is_told_from_computing() -> None:
    computing, waiting, never = Messages(), Messages(), threading.Event()
    with busy_thread(lambda: sum(range(3000))) as first, busy_thread(lambda: never.wait(0.05)) as second:
        StackSampler(first, computing.send).order(ORDER)
        StackSampler(second, waiting.send).order(ORDER)
        computing.first.wait()
        waiting.first.wait()

    def on_cpu(messages: Messages) -> float:
        stacks = messages.all[0].stacks
        return sum(stack.on_cpu for stack in stacks) / sum(stack.samples for stack in stacks)

    assert on_cpu(waiting) < 0.1 < on_cpu(computing)


def test_a_thread_that_computes_for_a_tenth_of_its_time_is_on_the_cpu_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten milliseconds of each hundred, by a clock of its own; samples come five times a second."""
    now, seen = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(profiler, "_cpu_clock_of", lambda thread: lambda: now // 0.1 * 0.01 + min(now % 0.1, 0.01))
    monkeypatch.setattr(FoldedStacks, "add", lambda folded, frame, on_cpu: seen.append((now % 0.1, on_cpu)))
    sampler = StackSampler(threading.get_ident(), lambda sampled: None, clock=lambda: now, sleep=sleep)

    sampler.order(SampleStacks(seconds=100.0, per_s=5.0))
    join_samplers()

    assert [on_cpu for at, on_cpu in seen if 0.001 < at < 0.01].count(False) == 0
    assert [on_cpu for at, on_cpu in seen if at > 0.012].count(True) == 0
    assert sum(on_cpu for _, on_cpu in seen) > 10


def test_it_ends_by_itself_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = Messages()
    now = iter(range(100))
    sampler = StackSampler(threading.get_ident(), messages.send, clock=lambda: float(next(now)), sleep=lambda _: None)

    sampler.order(SampleStacks(seconds=10.0, per_s=1.0))

    assert messages.first.wait(60)
    join_samplers()
    assert next(now) < 30
    assert sum(stack.samples for message in messages.all for stack in message.stacks) > 0


def test_a_surprise_in_it_is_logged_once_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    def send(sampled: Sampled) -> None:
        failed.set()
        raise RuntimeError("by surprise")

    sampler = StackSampler(threading.get_ident(), send, sleep=lambda _: None)
    with caplog.at_level(logging.ERROR):
        sampler.order(SampleStacks(seconds=0.001, per_s=200.0))
        assert failed.wait(60)
        join_samplers()
        sampler.order(ORDER)

    assert [record.message for record in caplog.records] == [
        "the profiler failed and is not started again; the job continues"
    ]
    assert not [thread for thread in threading.enumerate() if thread.name == "tidegate-profiler"]


def test_deep_stacks_keep_their_innermost_calls_and_many_different_ones_are_bounded() -> None:
    folded = FoldedStacks()

    def down(levels: int, act: Callable[[FrameType], None]) -> None:
        if levels:
            down(levels - 1, act)
        else:
            act(sys._getframe())

    down(300, lambda frame: folded.add(frame, True))
    deep = folded.take()
    assert len(deep.stacks[0].lines) == MAX_DEPTH
    assert deep.lines[deep.stacks[0].lines[-1]].function.endswith("down")
    for levels in range(1, 100):
        for _ in range(2):
            down(levels % 90, lambda frame: folded.add(frame, False))
    taken = folded.take()
    assert len(taken.stacks) <= MAX_STACKS
    assert {stack.on_cpu for stack in taken.stacks} == {0}
    assert folded.take() == Sampled([], [])


# -- the driver's part ------------------------------------------------------------------------------------------------

A, B = SlotId(0, 0), SlotId(0, 1)
LINE = CodeLine("f", "job.py", 7, "user")


def seen(samples: int, on_cpu: int = 0, uid: str = "op") -> Sampled:
    return Sampled([LINE], [SampledStack(uid, [0], samples, on_cpu)])


def test_what_slots_have_seen_adds_up_and_grows_old() -> None:
    profile = StackProfile()
    profile.note(A, seen(3, 1), 10.0)
    profile.note(A, seen(4, 2), 11.0)
    profile.note(B, seen(5, 5), 11.0)

    assert profile.stacks([A], since=0.0) == {Stack("op", (LINE,)): Count(7, 3)}
    assert profile.stacks([A, B], since=10.0) == {Stack("op", (LINE,)): Count(9, 7)}

    profile.note(B, seen(1), 11.5 + profiling.WINDOW_S)
    assert profile.stacks([A, B], since=0.0) == {Stack("op", (LINE,)): Count(1, 0)}
    profile.clear()
    assert profile.stacks([A, B], since=0.0) == {}


def test_slots_are_told_again_only_when_their_order_grows_old() -> None:
    profile = StackProfile()

    assert profile.orders_due([A], 0.0) == [A]
    assert profile.orders_due([A, B], 1.0) == [B]
    assert profile.orders_due([A, B], profiling.ORDER_S / 3) == [A]
    profile.clear()
    assert profile.orders_due([A, B], 4.0) == [A, B]


def test_endlessly_many_stacks_are_bounded_and_old_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MAX_STACKS", 2)
    profile = StackProfile()
    for second in range(4):
        profile.note(A, seen(1, uid=f"op-{second}"), float(second))

    assert [stack.uid for stack in profile.stacks([A], since=-1.0)] == ["op-0", "op-1"]
    late = 2 * profiling.WINDOW_S
    profile.note(A, seen(1, uid="left out"), late)
    profile.note(A, seen(1, uid="new"), late + 1)
    assert [stack.uid for stack in profile.stacks([A], since=0.0)] == ["new"]
