"""Records that were under way, restored into a slot at another parallelism: nothing goes round them.

The edge into `pass` was a network edge at the checkpoint; now it is inside the chain of the source. So its records wait in the
first layer, where the end of the source, its watermark, time and the trigger of the next checkpoint come by other ways than the
queue that keeps order. The slot may send four records without a word of the receiver: that is how they are made to wait.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import test_slot as kit
from protocol_kit import COUNTED, CountEach, Numbered, environment
from test_slot import KEY, Channel, Track, Worker, clock
from test_unaligned_slot import UNALIGNED, arrive, barrier, stored_in_flight

import tidegate as tg
from tidegate.coordinator.observing import JobStatus
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.ids import SlotId
from tidegate.protocol.credit import FIRST_WINDOW, Grant
from tidegate.protocol.watermarks import IDLE, MAX_WATERMARK
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.log import JobLog
from tidegate.storage.metadata import IN_FLIGHT, FileRef, SplitState
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store
from tidegate.task.outbox import Outbox
from tidegate.testing.crash_points import InProcessCrashPoints, SimulatedCrash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun
from tidegate.wire.control import (
    Abort,
    Acknowledge,
    Credits,
    Drain,
    Ended,
    PauseSources,
    ResumeSources,
    SavepointOrder,
    Start,
    SubtaskRestore,
    Trigger,
)
from tidegate.wire.frame import Kind, decode_frame
from tidegate.wire.records import decode_records
from tidegate.wire.seal import FrameSeal

nothing_has_happened = kit.nothing_has_happened
RESTORED = list(range(10, 10 + FIRST_WINDOW + 2))  #: two more than may be sent at once
WATERMARK = 50
IDLE_AFTER_S = 1.0


class Plain(Numbered):
    """0 and 1."""

    def row(self, number: int) -> int:
        return number


def planned(parallelism: int) -> JobPlan:
    """source, stamps -> pass, second -> by key -> track; at parallelism 1 all before the keys are one chain."""
    env = tg.StreamEnvironment("job", parallelism=1)
    numbers = env.from_source(Plain(1, splits=1, per_split=2), uid="source")
    times = tg.WatermarkStrategy.monotonous(timestamp=lambda value: 101 + value).with_idleness(f"{IDLE_AFTER_S:g}s")
    stamped = numbers.assign_timestamps_and_watermarks(times)
    passed = stamped.map(lambda value: value, uid="pass", parallelism=parallelism)
    second = passed.map(lambda value: value, uid="second", parallelism=2 * parallelism - 1)
    tracked = second.key_by(lambda value: 0, key_type=int).process(Track(), uid="track", returns=int)
    tracked.sink_to(kit.TrackedSink(), uid="out")
    return plan_job("job", env._graph, 1)


def uids_of_the_first_layer(plan: JobPlan) -> list[str]:
    ((chain, _),) = plan.hosted_in(SlotId(0, 0))
    return [str(operator.uid) for operator in chain.operators]


def under_way(store: Any, uid: str = "pass", values: list[int] = RESTORED) -> FileRef:
    """What an unaligned checkpoint holds of the edge into `uid`, when that was a network edge."""
    plan = planned(2)
    (edge,) = [edge for edge in plan.edges if edge.edge.downstream == uid]
    worker = Worker(plan, SlotId(edge.to_layer, 0), store=store)
    worker.start(Start(None, [SubtaskRestore(uid, 0)], []))
    senders = 1 if uid == "pass" else 2
    channels = [Channel(Outbox(FrameSeal(KEY), SlotId(0, i), 3), edge, i) for i in range(senders)]
    worker.tell(UNALIGNED)
    arrive(worker, *(channels[0].records(value) for value in values), *(barrier(channel) for channel in channels))
    worker.turn()
    assert stored_in_flight(worker) == values
    return worker.acknowledged(1).snapshot.file


def first_layer(*in_flight: FileRef, store: Any, finished: bool = False) -> Worker:
    """The slot of the source after the restore. It has done what it may do without credit."""
    plan = planned(1)
    source, stamps, *others = uids_of_the_first_layer(plan)
    splits = [SplitState("0", 2 if finished else 0, finished)]
    subtasks = [
        SubtaskRestore(source, 0, splits=splits, old_parallelism=1),
        SubtaskRestore(stamps, 0, watermark=WATERMARK, old_parallelism=1),
        *(SubtaskRestore(uid, 0, old_parallelism=2) for uid in others),
    ]
    worker = Worker(plan, SlotId(0, 0), store=store)
    worker.slot.mailbox.post(Start(1, subtasks, [], in_flight=list(in_flight)))
    worker.turn()
    worker.turn()
    return worker


@pytest.fixture
def waiting() -> Worker:
    store = Worker().store
    return first_layer(under_way(store), store=store)


@pytest.fixture
def waiting_at_the_end() -> Worker:
    store = Worker().store
    return first_layer(under_way(store), store=store, finished=True)


def sent(worker: Worker) -> list[Any]:
    """Values of records, ("watermark", value), ("barrier", id), "end"; in the order in which they left."""
    worker.slot.flush()
    found: list[Any] = []
    for to, row in worker.slot.outbox.take(1 << 30):
        frame = decode_frame(FrameSeal(KEY), SlotId(worker.id.layer + 1, to), memoryview(row))
        match frame.kind:
            case Kind.RECORDS:
                found += decode_records(frame, worker.plan.edges[frame.edge].record_type).rows()
            case Kind.CHECKPOINT_BARRIER:
                found.append(("barrier", frame.value))
            case Kind.WATERMARK:
                found.append(("watermark", frame.value))
            case Kind.END_OF_INPUT:
                found.append("end")
    return found


def let_go(worker: Worker) -> list[Any]:
    """The receiver says that it takes everything; what is sent then."""
    worker.tell(Credits([Grant(0, 0, None)]))
    worker.turn()
    return sent(worker)


UP_TO_THE_WATERMARK = [*RESTORED[FIRST_WINDOW:], ("watermark", WATERMARK)]


# -- nothing goes round them ------------------------------------------------------------------------------------------


def test_the_restored_watermark_and_the_source_come_after_them(waiting: Worker) -> None:
    clock.advance(0.5 * IDLE_AFTER_S)
    waiting.turn()
    assert sent(waiting) == RESTORED[:FIRST_WINDOW]

    assert let_go(waiting) == [*RESTORED[FIRST_WINDOW:], 0, 1, ("watermark", MAX_WATERMARK), "end"]


def test_the_end_comes_after_them_though_the_source_had_finished(waiting_at_the_end: Worker) -> None:
    assert sent(waiting_at_the_end) == RESTORED[:FIRST_WINDOW]
    assert waiting_at_the_end.said.of(Ended) == []

    assert let_go(waiting_at_the_end) == [*RESTORED[FIRST_WINDOW:], ("watermark", MAX_WATERMARK), "end"]
    assert len(waiting_at_the_end.said.of(Ended)) == 1


def test_the_end_of_a_drain_comes_after_them(waiting: Worker) -> None:
    waiting.tell(Drain())
    assert sent(waiting) == RESTORED[:FIRST_WINDOW]
    assert waiting.said.of(Ended) == []

    assert let_go(waiting) == [*RESTORED[FIRST_WINDOW:], ("watermark", MAX_WATERMARK), "end"]


def test_nobody_is_idle_while_they_wait_nor_as_soon_as_they_are_through(waiting: Worker) -> None:
    waiting.tell(PauseSources())
    clock.advance(2 * IDLE_AFTER_S)
    waiting.turn()
    assert sent(waiting) == RESTORED[:FIRST_WINDOW]
    assert let_go(waiting) == UP_TO_THE_WATERMARK
    waiting.tell(ResumeSources())
    assert ("watermark", IDLE) not in sent(waiting)


def test_a_slot_that_waits_for_credit_has_nothing_due_and_does_not_spin(waiting: Worker) -> None:
    sent(waiting)
    deadline = waiting.slot.next_deadline()

    assert deadline is None or deadline > clock()


@pytest.mark.parametrize("order", [None, SavepointOrder("memory://savepoints/one", "canonical")])
def test_an_aligned_checkpoint_has_nothing_under_way_and_its_barrier_comes_after_them(
    waiting: Worker, order: SavepointOrder | None
) -> None:
    waiting.tell(PauseSources(), Trigger(2, None, order))
    assert sent(waiting) == RESTORED[:FIRST_WINDOW]
    assert not waiting.uploads.jobs

    passed = let_go(waiting)
    assert [each for each in passed if each != ("watermark", WATERMARK)] == [*RESTORED[FIRST_WINDOW:], ("barrier", 2)]
    waiting.uploads.run_all()
    snapshot = waiting.acknowledged(2).snapshot
    assert not [section for file in snapshot.files() for section in file.sections if section.kind == IN_FLIGHT]


def test_a_stop_stands_still_after_them_and_before_the_source(waiting: Worker) -> None:
    waiting.tell(Trigger(2, None, None, True))
    assert sent(waiting) == RESTORED[:FIRST_WINDOW]

    passed = let_go(waiting)
    assert [each for each in passed if each != ("watermark", WATERMARK)] == [*RESTORED[FIRST_WINDOW:], ("barrier", 2)]


def test_an_aligned_checkpoint_that_is_given_up_while_it_waits_leaves_no_barrier(waiting: Worker) -> None:
    waiting.tell(Trigger(2), Trigger(3), Abort(2, 1))

    assert [each for each in let_go(waiting) if each in (("barrier", 2), ("barrier", 3))] == [("barrier", 3)]
    waiting.uploads.run_all()
    assert [ack.checkpoint for ack in waiting.said.of(Acknowledge)] == [3]


def test_an_unaligned_checkpoint_takes_them_along_at_once(waiting: Worker) -> None:
    waiting.tell(PauseSources(), Trigger(2, 0.0))
    assert sent(waiting) == [*RESTORED[:FIRST_WINDOW], ("barrier", 2)]

    assert stored_in_flight(waiting, 2) == RESTORED[FIRST_WINDOW:]
    assert let_go(waiting) == UP_TO_THE_WATERMARK


def test_of_two_edges_in_one_chain_the_later_comes_first_over_any_number_of_restores() -> None:
    store = Worker().store
    older = [1, 2, 3, 4, 5]
    worker = first_layer(under_way(store), under_way(store, "second", older), store=store)
    worker.tell(PauseSources(), Trigger(2, 0.0))
    assert sent(worker) == [*older[:FIRST_WINDOW], ("barrier", 2)]
    worker.uploads.run_all()

    again = first_layer(worker.acknowledged(2).snapshot.file, store=store)
    assert sent(again) == [*older[FIRST_WINDOW:], *RESTORED[: FIRST_WINDOW - 1]]


def test_a_source_that_may_not_send_is_not_idle() -> None:
    worker = Worker(planned(1), SlotId(0, 0))
    source, *others = uids_of_the_first_layer(worker.plan)
    subtasks = [SubtaskRestore(source, 0, splits=[SplitState("0", 0)])]
    worker.tell(PauseSources(), Start(None, [*subtasks, *(SubtaskRestore(uid, 0) for uid in others)], []))
    for _ in range(3):
        clock.advance(IDLE_AFTER_S)
        worker.turn()
    assert ("watermark", IDLE) not in sent(worker)

    worker.tell(ResumeSources())
    assert [each for each in sent(worker) if not isinstance(each, tuple)] == [0, 1, "end"]


# -- in whole jobs ----------------------------------------------------------------------------------------------------

SOURCE = Numbered(1, splits=2, per_split=150, rows_per_poll=(5, 7))  #: a split for each subtask: time only grows


class Late(tg.KeyedProcessFunction):
    """Whether a record came after a watermark that had passed it."""

    seen = tg.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: tg.Context) -> Any:
        self.seen.set(self.seen.get() + 1)
        assert ctx.timestamp() is not None
        yield (ctx.key, *value, self.seen.get(), ctx.timestamp() <= ctx.current_watermark)


def job(storage: str, parallelism: int, function: tg.KeyedProcessFunction, resume: str | None) -> tg.StreamEnvironment:
    env = environment(every="10ms", parallelism=2, unaligned=True, tolerable_failures=1000, storage=storage)
    numbers = env.from_source(SOURCE, uid="source", returns=tuple[int, int], parallelism=2)
    stamped = numbers.assign_timestamps_and_watermarks(
        tg.WatermarkStrategy.monotonous(timestamp=lambda row: row[1] % 1000)
    )
    passed = stamped.map(lambda row: row, returns=tuple[int, int], uid="pass", parallelism=parallelism)
    keyed = passed.key_by(lambda row: row[1] % 5, key_type=int)
    keyed.process(function, uid="count", returns=COUNTED).sink_to(LedgerSink("out"), uid="out")
    env._config = replace(env._config, resume=resume)
    return env


class DiesWithRecordsUnderWay(InProcessCrashPoints):
    """The driver dies when the `nth` checkpoint is in the log that has records under way to `pass`."""

    def __init__(self, storage: str, nth: int, finished: bool) -> None:
        super().__init__([])
        self._store = open_store(storage)
        self._nth = nth
        self._finished = finished  #: and in which the sources have finished

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        if point == "driver.after-log" and self._is_one():
            self._nth -= 1
            if not self._nth:
                raise SimulatedCrash("driver")
        super().reach(point, slot, checkpoint)

    def _is_one(self) -> bool:
        record = JobLog(self._store, JobPaths("job")).read_newest()
        if record is None or record.latest is None:
            return False
        slots = load_checkpoint(self._store, record.latest).slots
        files = [file for slot in slots for file in slot.files()]
        some = any(part.kind == IN_FLIGHT and part.uid == "pass" for file in files for part in file.sections)
        splits = [split for slot in slots for subtask in slot.subtasks for split in subtask.splits]
        return some and (not self._finished or all(split.finished for split in splits))


def at_another_parallelism(seed: int, function: tg.KeyedProcessFunction, nth: int, finished: bool) -> bool:
    """False: there was no such checkpoint in this run."""
    forget_ledgers()
    storage = f"memory://restored-{type(function).__name__}-{seed}"
    points = DiesWithRecordsUnderWay(storage, nth, finished)
    try:
        InProcessRun(job(storage, 3, function, None), seed, crash_points=points, max_drivers=1).run()
    except AllDriversDied:
        result = InProcessRun(job(storage, 2, function, "latest"), seed + 1).run()
        assert result.status is JobStatus.FINISHED, result.error
        return True
    return False


@pytest.mark.property
def test_no_record_is_lost_that_was_under_way_from_a_source_that_had_finished() -> None:
    tried = 0
    for seed in range(12):
        if at_another_parallelism(seed, CountEach(), nth=1, finished=True):
            tried += 1
            assert Counter((row[1], row[2]) for row in ledger("out").rows()) == Counter(SOURCE.rows()), seed
    assert tried >= 4


@pytest.mark.property
def test_no_record_is_late_that_was_under_way_before_the_watermark() -> None:
    tried = 0
    for seed in range(8):
        if at_another_parallelism(seed, Late(), nth=2 + seed % 5, finished=False):
            tried += 1
            assert [row for row in ledger("out").rows() if row[4]] == [], seed
    assert tried >= 3
