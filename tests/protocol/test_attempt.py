"""One attempt on the driver, over links that only keep what is sent, a manual clock, and a storage in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from protocol_kit import (
    Later,
    Numbered,
    Reached,
    attempt_id,
    checkpoint_id,
    counting_job,
    environment,
    fresh_storage,
    log_records,
    logged_checkpoints,
)

from tidegate.coordinator import recording
from tidegate.coordinator.attempt import Attempt, Timeouts
from tidegate.coordinator.observing import CheckpointChanged, CheckpointStatus, JobEvent, JobView
from tidegate.coordinator.outcomes import AttemptEnded, AttemptFinished
from tidegate.coordinator.recording import CheckpointRecorder
from tidegate.errors import CommitLost, JobFailed, ProtocolViolation, Superseded, UserCodeFailed
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.ids import SlotId
from tidegate.protocol.checkpointing import CheckpointPolicy
from tidegate.storage.log import JobLog, LogKind, Resume
from tidegate.storage.metadata import Committable, FileRef, SlotSnapshot
from tidegate.storage.paths import JobPaths
from tidegate.storage.state_files import StateFiles, StoredFile
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.clock import ManualClock
from tidegate.testing.ledger_sink import LedgerSink
from tidegate.testing.stores import FailCall, FlakyStore
from tidegate.wire.control import (
    Abort,
    Acknowledge,
    Cancel,
    Committed,
    Complete,
    Decline,
    Ended,
    Finish,
    Ready,
    SlotFailed,
    SnapshotTimings,
    Start,
    SubtaskRestore,
    ToSlot,
    Trigger,
    Unsendable,
)


@dataclass(slots=True)
class Links:
    sent: list[tuple[SlotId, ToSlot]] = field(default_factory=list)

    def send(self, slot: SlotId, message: ToSlot) -> None:
        self.sent.append((slot, message))

    def last_to_all(self, plan: JobPlan) -> ToSlot:
        """The newest message, which every slot must have got."""
        newest = self.sent[-len(plan.slots) :]
        assert {slot for slot, _ in newest} == set(plan.slots)
        (message,) = {message for _, message in newest}
        return message


@dataclass(slots=True)
class Driver:
    """An attempt and all that it needs."""

    policy: CheckpointPolicy = field(default_factory=lambda: CheckpointPolicy(interval_s=1.0))
    faults: list[Any] = field(default_factory=list)
    storage: str = field(default_factory=fresh_storage)
    links: Links = field(default_factory=Links)
    storing: Later = field(default_factory=Later)
    clock: ManualClock = field(default_factory=ManualClock)
    posted: deque[Callable[[], None]] = field(default_factory=deque)
    points: Reached = field(default_factory=Reached)
    view: JobView = field(default_factory=JobView)
    plan: JobPlan = field(init=False)
    log: JobLog = field(init=False)
    attempt: Attempt = field(init=False)

    def __post_init__(self) -> None:
        env = counting_job(environment(), Numbered(1, 2, 3), LedgerSink("out"))
        self.plan = plan_job("job", env._graph, 1)
        store: ObjectStore = FlakyStore(open_store(self.storage), self.faults)
        self.log = JobLog(store, JobPaths("job"))
        self.log.take_generation("test", 0.0, Resume.FRESH)
        recorder = CheckpointRecorder(
            store, JobPaths("job"), self.log, self.plan, 1, self.points, self.clock, self.clock.sleep
        )
        self.attempt = Attempt(
            id=attempt_id(1),
            starts={slot: Start(None, [], []) for slot in self.plan.slots},
            policy=self.policy,
            next_checkpoint_id=checkpoint_id(1),
            latest_completed=checkpoint_id(0),
            links=self.links,
            recorder=recorder,
            storing=self.storing,
            post=self.posted.append,
            view=self.view,
            crash_points=self.points,
            clock=self.clock,
            wall_clock=self.clock,
            on_driver_payload=lambda message: None,
            timeouts=Timeouts(start_s=120.0, heartbeat_s=30.0),
        )

    @property
    def error(self) -> Exception:
        assert isinstance(self.attempt.outcome, AttemptEnded)
        return self.attempt.outcome.error

    @property
    def is_permanent(self) -> bool:
        assert isinstance(self.attempt.outcome, AttemptEnded)
        return self.attempt.outcome.permanent

    def start(self) -> Driver:
        for slot in self.plan.slots:
            self.attempt.slot_connected(slot)
        self.all_say(Ready(0.0))
        self.storing.run_all()  # the sweep at the start
        return self

    def all_say(self, message: Any) -> None:
        for slot in self.plan.slots:
            self.attempt.slot_said(slot, message)

    def acknowledge(self, checkpoint: int) -> None:
        for slot in self.plan.slots:
            snapshot = SlotSnapshot(slot.layer, slot.index, FileRef(0, inline=b""))
            self.attempt.slot_said(slot, Acknowledge(checkpoint, snapshot, SnapshotTimings()))

    def after(self, seconds: float) -> None:
        """Time passes in small steps, as on a driver that is awake."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.attempt.tick()

    def run_background(self) -> None:
        self.storing.run_all()
        while self.posted:
            self.posted.popleft()()


def test_slots_are_told_to_start_when_they_call_and_to_take_checkpoints_when_all_are_ready() -> None:
    driver = Driver()
    first, *others = driver.plan.slots
    driver.attempt.slot_connected(first)
    assert driver.links.sent == [(first, Start(None, [], []))]
    driver.attempt.slot_said(first, Ready(0.0))
    driver.clock.advance(5)
    driver.attempt.tick()
    assert not [message for _, message in driver.links.sent if isinstance(message, Trigger)]

    for slot in others:
        driver.attempt.slot_connected(slot)
        driver.attempt.slot_said(slot, Ready(0.0))
    driver.after(1)
    assert driver.links.last_to_all(driver.plan) == Trigger(1)


def test_complete_is_said_only_when_the_log_record_stands() -> None:
    driver = Driver().start()
    driver.after(1)
    driver.acknowledge(1)

    assert logged_checkpoints(driver.storage) == []
    assert driver.links.last_to_all(driver.plan) == Trigger(1)
    driver.run_background()
    assert logged_checkpoints(driver.storage) == [1]
    assert driver.links.last_to_all(driver.plan) == Complete(1)
    assert driver.view.checkpoints[1].status is CheckpointStatus.COMPLETED
    expected = ["driver.triggered", "driver.before-metadata", "driver.before-log", "driver.after-log"]
    assert driver.points.points == [*expected, "driver.before-notify", "driver.notified"]


def test_whoever_looks_is_told_after_the_slots() -> None:
    driver = Driver().start()
    slots = len(driver.plan.slots)
    heard: list[
        tuple[str, int, ToSlot]
    ] = []  #: what the observer hears; jobs of the storage and the newest message then

    def look(event: JobEvent) -> None:
        what = event.statistics.status.name if isinstance(event, CheckpointChanged) else type(event).__name__
        heard.append((what, len(driver.storing.jobs), driver.links.sent[-1][1]))

    driver.view.subscribe(look)
    driver.after(1)
    driver.acknowledge(1)
    driver.run_background()

    acknowledged = [("SlotAcknowledged", int(number == slots), Trigger(1)) for number in range(1, slots + 1)]
    assert heard == [("IN_PROGRESS", 0, Trigger(1)), *acknowledged, ("COMPLETED", 0, Complete(1))]
    assert set(driver.view.checkpoints[1].acknowledged) == set(driver.plan.slots)


def test_of_a_checkpoint_under_way_a_copy_of_the_view_stays_as_it_is() -> None:
    driver = Driver().start()
    driver.after(1)
    first, *_ = driver.plan.slots
    message = Acknowledge(1, SlotSnapshot(0, 0, FileRef(0, inline=b"")), SnapshotTimings())
    driver.attempt.slot_said(first, message)

    before = driver.view.snapshot().checkpoints[1]
    driver.attempt.slot_said(driver.plan.slots[-1], message)

    assert set(before.acknowledged) == {first}
    assert len(driver.view.snapshot().checkpoints[1].acknowledged) == 2


def test_nothing_is_stored_before_the_last_acknowledgement() -> None:
    driver = Driver().start()
    driver.after(1)
    snapshot = SlotSnapshot(0, 0, FileRef(0, inline=b""))
    for slot in driver.plan.slots[:-1]:
        driver.attempt.slot_said(slot, Acknowledge(1, snapshot, SnapshotTimings()))
        driver.attempt.slot_said(slot, Acknowledge(1, snapshot, SnapshotTimings()))

    assert not driver.storing.jobs
    driver.attempt.slot_said(driver.plan.slots[-1], Acknowledge(1, snapshot, SnapshotTimings()))
    assert len(driver.storing.jobs) == 1


def test_a_slot_that_calls_twice_or_is_not_in_the_plan_ends_the_attempt() -> None:
    twice, stranger = Driver(), Driver()
    twice.attempt.slot_connected(SlotId(0, 0))
    twice.attempt.slot_connected(SlotId(0, 0))
    stranger.attempt.slot_connected(SlotId(9, 9))

    assert isinstance(twice.error, ProtocolViolation)
    assert isinstance(stranger.error, ProtocolViolation)


def test_slots_that_do_not_come_in_time_end_the_attempt_by_name() -> None:
    driver = Driver()
    driver.attempt.slot_connected(SlotId(0, 0))
    for _ in range(125):
        driver.clock.advance(1.0)
        if driver.attempt.outcome is None:
            driver.attempt.slot_said(SlotId(0, 0), Ready(0.0))
        driver.attempt.tick()

    assert "did not start within 120 s (1.0)" in str(driver.error)
    assert not driver.is_permanent


def test_a_slot_that_falls_silent_ends_the_attempt() -> None:
    driver = Driver(CheckpointPolicy()).start()
    talking, silent = driver.plan.slots
    for _ in range(31):
        driver.clock.advance(1.0)
        driver.attempt.slot_said(talking, Ready(0.0))
        driver.attempt.tick()

    assert str(driver.error).splitlines()[0] == f"slot {silent} was lost: silent for 30 s"


def test_a_lost_slot_ends_the_attempt_and_what_others_say_later_changes_nothing() -> None:
    driver = Driver().start()
    driver.after(1)
    driver.attempt.slot_lost(SlotId(1, 0), "killed")
    driver.acknowledge(1)
    driver.after(10)

    first, *others = str(driver.error).splitlines()
    assert first == "slot 1.0 was lost: killed"
    (chain,) = driver.plan.layers[1].chains
    names = " -> ".join(planned.operator.name for planned in chain.operators)
    assert others == [f"  with {names} (uid {chain.head.uid!r}), subtask 0"]
    context = driver.error.context
    assert (context["operator"], context["uid"], context["subtask"]) == (names, chain.head.uid, 0)
    assert not driver.storing.jobs
    assert driver.attempt.next_wake() > 0


def test_a_checkpoint_that_expires_is_aborted_everywhere() -> None:
    driver = Driver(CheckpointPolicy(interval_s=1.0, timeout_s=5.0, tolerable_failures=1)).start()
    driver.after(1)
    driver.acknowledge(1)
    driver.run_background()
    driver.after(1)
    assert driver.links.last_to_all(driver.plan) == Trigger(2)
    driver.clock.advance(5)
    driver.all_say(Ready(0.0))

    assert Abort(2, 1) in [message for _, message in driver.links.sent]
    assert driver.attempt.outcome is None


def test_more_failed_checkpoints_than_tolerable_end_the_attempt_with_the_reason() -> None:
    driver = Driver(CheckpointPolicy(interval_s=1.0, tolerable_failures=1)).start()
    for number in (1, 2):
        driver.after(1)
        driver.attempt.slot_said(SlotId(1, 0), Decline(number, "disk full"))

    assert "slot 1.0: disk full" in str(driver.error)
    assert "2 failures in a row, 1 are tolerated" in str(driver.error)


def test_metadata_that_cannot_be_stored_fails_the_checkpoint_not_the_job() -> None:
    faults = [FailCall("put", path="_metadata.json", times=1)]
    driver = Driver(CheckpointPolicy(interval_s=1.0, tolerable_failures=1), faults).start()
    driver.after(1)
    driver.acknowledge(1)
    driver.run_background()

    assert driver.attempt.outcome is None
    assert Abort(1, 0) in [message for _, message in driver.links.sent]
    driver.after(1)
    driver.acknowledge(2)
    driver.run_background()
    assert logged_checkpoints(driver.storage) == [2]


def test_a_log_record_whose_answer_is_lost_counts_once() -> None:
    driver = Driver(faults=[FailCall("create", call=2, after_effect=True)]).start()
    driver.after(1)
    driver.acknowledge(1)
    driver.run_background()

    assert logged_checkpoints(driver.storage) == [1]
    assert driver.links.last_to_all(driver.plan) == Complete(1)


def test_a_log_record_in_doubt_ends_the_attempt_and_nobody_is_told_to_commit() -> None:
    driver = Driver(faults=[FailCall("create", call=2, after_effect=True, times=100)]).start()
    driver.after(1)
    driver.acknowledge(1)
    driver.run_background()

    assert "settled by the next attempt" in str(driver.error)
    assert not driver.is_permanent
    assert Complete(1) not in [message for _, message in driver.links.sent]
    assert Abort(1, 0) not in [message for _, message in driver.links.sent]


def test_a_driver_that_was_superseded_ends_for_good_and_commits_nothing() -> None:
    driver = Driver().start()
    driver.after(1)
    driver.acknowledge(1)
    JobLog(open_store(driver.storage), JobPaths("job")).take_generation("another", 1.0)
    driver.run_background()

    assert isinstance(driver.error, Superseded)
    assert driver.is_permanent
    assert Complete(1) not in [message for _, message in driver.links.sent]


def test_finished_goes_into_the_log_after_the_last_commit_and_then_the_slots_end() -> None:
    driver = Driver(CheckpointPolicy()).start()
    driver.all_say(Ended())
    driver.acknowledge(1)
    driver.run_background()
    driver.attempt.slot_said(driver.plan.slots[0], Committed(1))
    driver.run_background()
    assert not log_records(driver.storage)[-1].finished

    driver.attempt.slot_said(driver.plan.slots[1], Committed(1))
    driver.attempt.slot_lost(driver.plan.slots[0], "it may go now")
    driver.run_background()
    assert driver.attempt.outcome == AttemptFinished()
    assert driver.links.last_to_all(driver.plan) == Finish()
    assert [record.kind for record in log_records(driver.storage)][-2:] == [LogKind.CHECKPOINT, LogKind.FINISHED]


def test_what_a_slot_says_at_its_end_becomes_the_users_error() -> None:
    def failed(kind: str) -> Driver:
        driver = Driver().start()
        message = SlotFailed(kind, "KeyError: 'x'", "Traceback ...", "count", "count-uid", 3, 7, "job.py:12")
        driver.attempt.slot_said(SlotId(1, 0), message)
        return driver

    user = failed("user")
    assert isinstance(user.error, UserCodeFailed)
    assert (user.error.uid, user.error.subtask, user.error.checkpoint) == ("count-uid", 3, 7)
    assert "job.py:12" in str(user.error)
    assert not user.is_permanent
    lost = failed("commit_lost")
    assert isinstance(lost.error, CommitLost)
    assert lost.is_permanent
    assert failed("permanent").is_permanent
    assert not failed("internal").is_permanent
    assert isinstance(failed("internal").error, JobFailed)


def test_slots_of_a_canceled_attempt_are_told_to_leave() -> None:
    driver = Driver().start()
    driver.attempt.cancel_slots()

    assert driver.links.last_to_all(driver.plan) == Cancel()


# -- files that checkpoints share -------------------------------------------------------------------------------------


def acknowledge_with_files(driver: Driver, checkpoint: int, files: list[StoredFile]) -> None:
    """Every slot says the same, with these files in the first one's state."""
    for slot in driver.plan.slots:
        states = [StateFiles("count", 0, 0, 127, files)] if slot == driver.plan.slots[0] else []
        snapshot = SlotSnapshot(slot.layer, slot.index, FileRef(0, inline=b""), states=states)
        driver.attempt.slot_said(slot, Acknowledge(checkpoint, snapshot, SnapshotTimings()))


def stored_file(driver: Driver, name: str, checkpoint: int) -> StoredFile:
    path = JobPaths("job").state_files(attempt_id(1), SlotId(0, 0), "count")(checkpoint_id(checkpoint), name)
    open_store(driver.storage).put(path, b"rows")
    return StoredFile(name, path, 4, "", checkpoint)


def test_whoever_looks_is_told_when_the_files_of_a_checkpoint_are_gone() -> None:
    driver = Driver().start()
    for checkpoint in (1, 2):
        driver.after(1)
        driver.acknowledge(checkpoint)
        driver.run_background()
        driver.all_say(Committed(checkpoint))

    assert {c.checkpoint: c.discarded for c in driver.view.checkpoints.values()} == {1: True, 2: False}
    assert driver.attempt.recorder.cancel(keep=True) == ()
    assert driver.attempt.recorder.cancel(keep=False) == (2,), "a canceled job that keeps nothing"
    assert driver.view.completed == 2


def test_a_file_goes_when_no_retained_checkpoint_refers_to_it_while_the_job_runs() -> None:
    driver = Driver().start()
    store = open_store(driver.storage)
    old, base = stored_file(driver, "old", 1), stored_file(driver, "base", 1)
    driver.after(1)
    acknowledge_with_files(driver, 1, [old, base])
    driver.run_background()
    changes = stored_file(driver, "changes", 2)
    driver.after(1)
    acknowledge_with_files(driver, 2, [base, changes])
    driver.run_background()
    driver.run_background()  # the deletion is a background's work too

    assert logged_checkpoints(driver.storage) == [1, 2]
    assert [store.exists(file.path) for file in (old, base, changes)] == [False, True, True]


def test_a_file_that_may_be_gone_is_not_built_on() -> None:
    driver = Driver().start()
    old = stored_file(driver, "old", 1)
    for checkpoint, files in ((1, [old]), (2, [stored_file(driver, "new", 2)])):
        driver.after(1)
        acknowledge_with_files(driver, checkpoint, files)
        driver.run_background()
    driver.after(1)
    acknowledge_with_files(driver, 3, [old])

    assert isinstance(driver.error, ProtocolViolation)
    assert "may have been deleted" in str(driver.error)
    driver.run_background()
    assert logged_checkpoints(driver.storage) == [1, 2]


def test_a_slot_that_cannot_be_told_what_it_continues_with_ends_the_job_with_the_way_out() -> None:
    driver = Driver()
    first, *_ = driver.plan.slots
    waiting = [Committable("out", 1, 1, bytes(70)) for _ in range(2)]
    driver.attempt.starts[first] = Start(1, [SubtaskRestore("out", 0, committables=waiting)], [])

    class Narrow(Links):
        def send(self, slot: SlotId, message: ToSlot) -> None:
            raise Unsendable("a control message (Start) of 140 bytes is over the limit of 100")

    driver.attempt.links = Narrow()
    driver.attempt.slot_connected(first)

    assert driver.is_permanent
    assert "over the limit of 100\n  uid 'out', subtask 0: 0 splits, 140 bytes that wait to be committed" in str(
        driver.error
    )
    assert "Start the job with a higher parallelism" in str(driver.error)


def test_a_surprise_of_the_storage_ends_the_attempt_and_names_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver().start()

    def surprising(*_: Any) -> None:
        raise TypeError("keys must be str, not tuple")

    monkeypatch.setattr(recording, "store_checkpoint", surprising)
    driver.after(1)
    driver.acknowledge(1)
    driver.run_background()

    assert "storing checkpoint 1 failed unexpectedly: TypeError: keys must be str, not tuple" in str(driver.error)
    assert not driver.is_permanent
    assert "in surprising" in driver.error.cause  # type: ignore[attr-defined]
