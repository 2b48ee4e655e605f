"""Asynchronous functions in whole jobs: killed everywhere, restored, with slow calls; what was asked twice is counted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from protocol_kit import Numbered, environment, fresh_storage

import tidegate as tg
from tidegate.coordinator.observing import CheckpointStatus, JobStatus
from tidegate.coordinator.savepoints import SavepointRequest, StopMode
from tidegate.ids import SlotId
from tidegate.testing import LedgerSink, forget_ledgers, ledger
from tidegate.testing.crash_points import ALL_POINTS, Crash, InProcessCrashPoints
from tidegate.testing.runner import Ask as AskFor
from tidegate.testing.runner import InProcessRun, run_in_process

Ask = Callable[[int], Awaitable[int]]


@pytest.fixture(autouse=True)
def _no_ledgers() -> None:
    forget_ledgers()


# -- who asked what, and what was in a checkpoint --------------------------------------------------------------------


@dataclass
class Notes(InProcessCrashPoints):
    """Every call, in the order of events, against the checkpoints that were completed."""

    crashes: list[Crash] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.crashes)
        self.calls: Counter[int] = Counter()
        self.answered: set[int] = set()  #: by the attempt that runs
        self.taken: dict[int, set[int]] = {}  #: by checkpoint, what its snapshot has an answer of
        self.durable: set[int] = set()
        self.asked_again: list[int] = []

    def asked(self, number: int) -> None:
        self.calls[number] += 1
        if number in self.durable:
            self.asked_again.append(number)

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        if point == "slot.restored":
            self.answered = set(self.durable)
        elif point == "slot.snapshot-taken" and slot == SlotId(0, 0):
            self.taken[checkpoint or 0] = set(self.answered)
        elif point == "driver.after-log" and checkpoint in self.taken:
            self.durable |= self.taken[checkpoint]
        super().reach(point, slot, checkpoint)


#: Functions are shipped by name where a module has them, and else as copies: what they note stands here.
NOTED: list[tuple[Notes, Ask]] = []


async def noted(row: Any) -> int:
    notes, ask = NOTED[0]
    notes.asked(row[1])
    answer = await ask(row[1])
    notes.answered.add(row[1])
    return answer


def asking_job(records: int, storage: str, ordered: bool, **checkpointing: Any) -> tg.StreamEnvironment:
    """One subtask asks, so that one snapshot says what was answered."""
    env = environment(parallelism=1, storage=storage, every="10ms", **checkpointing)
    env.restart_strategy("fixed-delay", attempts=1000, delay="0s")
    numbers = env.from_source(Numbered(0, 1, records, (3, 1, 0)), uid="source", returns=tuple[int, int])
    answers = numbers.async_map(
        noted, ordered=ordered, capacity=8, returns=int, uid="ask", retry=tg.Retry(3, on=OSError)
    )
    answers.rebalance().sink_to(LedgerSink("answers"), uid="out", parallelism=2)
    return env


def run_noted(notes: Notes, ask: Ask, records: int, seed: int, ordered: bool, **checkpointing: Any) -> int:
    NOTED[:] = [(notes, ask)]
    env = asking_job(records, fresh_storage(), ordered, **checkpointing)
    result = InProcessRun(env, seed, crash_points=notes, max_drivers=1000).run()
    assert result.status is JobStatus.FINISHED, result.error
    assert Counter(ledger("answers").rows()) == Counter(number * 2 for number in range(records))
    assert notes.asked_again == [], f"asked again, though a completed checkpoint had the answer: {notes.asked_again}"
    return sum(notes.done.values())


async def slow_double(number: int) -> int:
    await asyncio.sleep(number * 37 % 11 * 0.004)
    return number * 2


@pytest.mark.property
@pytest.mark.parametrize("ordered", [True, False])
def test_an_answer_in_a_completed_checkpoint_is_not_asked_for_again(ordered: bool, seed: int) -> None:
    crashes = asked_twice = 0
    for number, point in enumerate(ALL_POINTS):
        forget_ledgers()
        notes = Notes([Crash(point, nth=1 if "finished" in point else 3, times=1)])
        crashes += run_noted(notes, slow_double, 30, seed + number, ordered, unaligned=number % 2 == 0)
        asked_twice += sum(count - 1 for count in notes.calls.values())
    assert crashes >= len(ALL_POINTS) - 2
    assert asked_twice > 0, "no call was in flight at any crash: the test shows nothing"


# -- the same with a service ------------------------------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[tuple[str, Counter[str]]]:
    """Doubles numbers, and counts who asks."""
    counts: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            counts[self.path] += 1
            body = str(int(self.path.rpartition("/")[2]) * 2).encode()
            with contextlib.suppress(ConnectionError):  # whoever asked may be dead
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"{server.server_port}", counts
    server.shutdown()
    thread.join()
    server.server_close()


def over_http(port: str, run: int) -> Ask:
    """Whoever asks for a run that is over, and is heard late, must not be counted for the next."""

    async def ask(number: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        try:
            writer.write(f"GET /{run}/{number} HTTP/1.0\r\n\r\n".encode())
            answer = await reader.read()
            return int(answer.rpartition(b"\r\n")[2])
        finally:
            writer.close()

    return ask


@pytest.mark.property
def test_a_counting_service_sees_no_call_twice_that_was_durable(service: tuple[str, Counter[str]], seed: int) -> None:
    port, counts = service
    crashes = 0
    while crashes < 3:  # how many checkpoints a run has depends on the service
        forget_ledgers()
        notes = Notes([Crash("slot.before-ack", nth=2, times=2, layer=0), Crash("driver.after-log", nth=2)])
        crashes += run_noted(notes, over_http(port, seed), 40, seed, ordered=False)
        for number in range(40):
            assert 1 <= counts[f"/{seed}/{number}"] <= notes.calls[number]
        seed += 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_counting_service_over_hundreds_of_crashes(service: tuple[str, Counter[str]], seed: int) -> None:
    port, counts = service
    crashes = round = 0
    while crashes < 200:
        for point in ALL_POINTS:
            forget_ledgers()
            notes = Notes([Crash(point, nth=1 if "finished" in point else 2 + round % 5, times=3)])
            settings: dict[str, Any] = {"unaligned": True} if round % 2 else {}
            crashes += run_noted(notes, over_http(port, round), 40, seed + round, ordered=round % 3 == 0, **settings)
            for number in range(40):
                assert 1 <= counts[f"/{round}/{number}"] <= notes.calls[number]
            round += 1
    print(f"{crashes} crashes")


# -- barriers and time ------------------------------------------------------------------------------------------------


async def ten_seconds(row: Any) -> Any:
    await asyncio.sleep(10)
    return row


@pytest.mark.parametrize("unaligned", [True, False])
@pytest.mark.parametrize("exchange", [True, False])
def test_no_checkpoint_waits_for_a_call_of_ten_seconds(unaligned: bool, exchange: bool, seed: int) -> None:
    env = environment(parallelism=2, every="1s", unaligned=unaligned)
    numbers = env.from_source(Numbered(0, 2, 30, (5,)), uid="source", returns=tuple[int, int])
    asked = (numbers.rebalance() if exchange else numbers).async_map(ten_seconds, capacity=4, uid="ask", timeout="60s")
    asked.sink_to(LedgerSink("out"), uid="out")

    result = run_in_process(env, seed=seed)

    assert result.status is JobStatus.FINISHED, result.error
    assert Counter(ledger("out").rows()) == Counter(Numbered(0, 2, 30).rows())
    done = [each for each in result.view.checkpoints.values() if each.status is CheckpointStatus.COMPLETED]
    assert len(done) >= 5
    slowest = max(each.duration_s or 0.0 for each in done[:-1])  # the last is final, and comes after all calls
    assert slowest < 0.3


async def two_seconds(row: Any) -> Any:
    await asyncio.sleep(2)
    return row


@pytest.mark.property
@pytest.mark.parametrize("stop", [None, StopMode.SUSPEND])
def test_a_savepoint_of_a_full_slot_is_aligned_and_another_program_continues_from_it(
    stop: StopMode | None, seed: int
) -> None:
    storage = fresh_storage()

    def job(resume: str | None) -> tg.StreamEnvironment:
        folder = storage if resume is None else fresh_storage()
        env = environment(parallelism=2, storage=folder, every="1s", resume=resume)
        numbers = env.from_source(Numbered(0, 2, 40, (5,)), uid="source", returns=tuple[int, int])
        if resume is not None:  # what was under way from the source to the calls would have nowhere to go
            numbers = numbers.map(lambda row: row, returns=tuple[int, int], uid="new")
        asked = numbers.rebalance().async_map(two_seconds, capacity=2, uid="ask", returns=tuple[int, int])
        asked.sink_to(LedgerSink("out"), uid="out")
        return env

    request = SavepointRequest(f"{storage}-savepoint", stop=stop)
    result = run_in_process(job(None), seed=seed, asks=[AskFor(request, after_checkpoints=2)])
    assert result.status is JobStatus.FINISHED, result.error
    savepoint = tg.Savepoint.load(request.future.result().path)
    assert savepoint.in_flight() == []
    held = [state.name for state in savepoint.states() if state.uid == "ask" and state.rows]
    # Mostly calls are in it. But the barrier that comes last may take longer than all that was asked before the first one.
    assert held in (["in_flight"], [])

    if stop is not None:  # else the job has gone on by itself
        result = run_in_process(job(savepoint.path), seed=seed)
        assert result.status is JobStatus.FINISHED, result.error
    assert Counter(ledger("out").rows()) == Counter(Numbered(0, 2, 40).rows())


AT_ONCE = [0, 0]  #: calls now, and the most so far
IN_SLOT = [0, 0]  #: records that were read and not answered, and the most so far


async def counted(row: Any) -> Any:
    AT_ONCE[0] += 1
    AT_ONCE[1] = max(AT_ONCE)
    await asyncio.sleep(1)
    AT_ONCE[0] -= 1
    IN_SLOT[0] -= 1
    return row


class Watched(Numbered):
    """Counts what is read."""

    def row(self, number: int) -> Any:
        IN_SLOT[0] += 1
        IN_SLOT[1] = max(IN_SLOT)
        return super().row(number)


@pytest.mark.property
def test_a_full_slot_takes_no_more_than_its_capacity_and_what_it_had_at_hand(seed: int) -> None:
    AT_ONCE[:], IN_SLOT[:] = [0, 0], [0, 0]
    env = environment(parallelism=1, every="1s")
    env.from_source(Watched(0, 1, 50, (7,)), uid="source").async_map(counted, capacity=3, uid="ask").sink_to(
        LedgerSink("out"), uid="out"
    )
    result = run_in_process(env, seed=seed)

    assert result.status is JobStatus.FINISHED, result.error
    assert AT_ONCE == [0, 3]
    assert IN_SLOT[1] <= 3 + 7


# -- what goes wrong --------------------------------------------------------------------------------------------------


def failed_with(function: Any, seed: int, **options: Any) -> str:
    env = environment(parallelism=1)
    env.restart_strategy("none")
    numbers = env.from_source(Numbered(0, 1, 3, (1,)), uid="source")
    numbers.async_map(function, uid="ask", **options).sink_to(LedgerSink("out"), uid="out")
    result = run_in_process(env, seed=seed)
    assert result.status is JobStatus.FAILED
    return str(result.error)


async def never(row: Any) -> Any:
    await asyncio.Event().wait()


def test_a_function_that_never_answers_fails_with_its_name_and_the_way_out(seed: int) -> None:
    message = failed_with(never, seed, timeout="2s")

    assert "async_map never has not answered within 2.0 s, in 1 attempt." in message
    assert "test_async_jobs.py" in message


def test_what_a_call_raises_is_what_the_job_fails_with(seed: int) -> None:
    async def broken(row: Any) -> Any:
        raise ZeroDivisionError("no such item")

    assert "ZeroDivisionError: no such item" in failed_with(broken, seed)


def test_what_cannot_be_awaited_is_said(seed: int) -> None:
    message = failed_with(lambda row: row, seed)

    assert "returned a tuple, which cannot be awaited: write `async def`, or use map" in message


def test_a_function_that_is_no_coroutine_is_refused_where_the_job_is_built() -> None:
    def plain(row: Any) -> Any:
        return row

    class Stateful(tg.AsyncFunction):
        seen = tg.ValueState(int)

    numbers = environment().from_collection([1], uid="source")
    with pytest.raises(tg.TidegateError, match=r"write `async def plain\(\.\.\.\)`"):
        numbers.async_map(plain, uid="ask")
    with pytest.raises(tg.TidegateError, match="declares keyed state, which asynchronous functions cannot have"):
        numbers.async_map(Stateful(), uid="ask")
    with pytest.raises(tg.TidegateError, match="is for an AsyncFunction that defines async_invoke_batch"):
        numbers.async_map(never, batch_size=3, uid="ask")
    with pytest.raises(tg.TidegateError, match="capacity=0"):
        numbers.async_map(never, capacity=0, uid="ask")
