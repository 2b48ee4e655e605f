"""The life of checkpoints, as events in and actions out, on a clock that is a number. After CheckpointCoordinatorTest."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from protocol_kit import attempt_id, checkpoint_id, logged, slot_ids

from tidegate.errors import ProtocolViolation
from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.protocol.checkpoint_events import (
    AbortReason,
    AckAnswer,
    Action,
    CheckpointLogged,
    CheckpointRequested,
    CheckpointStoreFailed,
    DiscardSnapshot,
    EndRequested,
    Event,
    FailAttempt,
    FinishJob,
    NotifyAborted,
    NotifyComplete,
    Purpose,
    SavepointStored,
    SlotBecameReady,
    SlotCommitted,
    SlotEnded,
    SnapshotAcknowledged,
    SnapshotDeclined,
    StoreCheckpoint,
    TimePassed,
    TriggerCheckpoint,
)
from tidegate.protocol.checkpoint_states import MOVES, CheckpointState
from tidegate.protocol.checkpointing import FINAL_RETRY_S, CheckpointPolicy, CheckpointScheduler

S0, S1, S2 = SlotId(0, 0), SlotId(1, 0), SlotId(1, 1)
SLOTS = slot_ids(1, 2)


@dataclass(slots=True)
class Coordinator:
    """A scheduler and its clock."""

    policy: CheckpointPolicy
    slots: frozenset[SlotId] = SLOTS
    next_id: int = 1
    now: float = 100.0
    scheduler: CheckpointScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = CheckpointScheduler(attempt_id(2), self.slots, self.policy, checkpoint_id(self.next_id))

    def on(self, event: Event) -> list[Action]:
        actions = self.scheduler.on(event, self.now)
        self.scheduler.validate()
        return actions

    def after(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.on(TimePassed())

    def all_ready(self) -> list[Action]:
        return [action for slot in sorted(self.slots) for action in self.on(SlotBecameReady(slot))]

    def all_ended(self) -> list[Action]:
        return [action for slot in sorted(self.slots) for action in self.on(SlotEnded(slot))]

    def all_committed(self, checkpoint: int) -> list[Action]:
        return [
            action for slot in sorted(self.slots) for action in self.on(SlotCommitted(slot, checkpoint_id(checkpoint)))
        ]

    def ack(self, slot: SlotId, checkpoint: int, snapshot: Any = "s", attempt: AttemptId | None = None) -> list[Action]:
        return self.on(SnapshotAcknowledged(slot, attempt or attempt_id(2), checkpoint_id(checkpoint), snapshot))

    def ack_all(self, checkpoint: int) -> list[Action]:
        return [action for slot in sorted(self.slots) for action in self.ack(slot, checkpoint, f"snapshot {slot}")]

    def complete(self, checkpoint: int) -> list[Action]:
        self.ack_all(checkpoint)
        return self.on(CheckpointLogged(logged(checkpoint)))

    def decline(self, slot: SlotId, checkpoint: int, attempt: AttemptId | None = None) -> list[Action]:
        return self.on(SnapshotDeclined(slot, attempt or attempt_id(2), checkpoint_id(checkpoint), "disk full"))


def coordinator(interval_s: float | None = 10.0, ready: bool = True, next_id: int = 1, **policy: Any) -> Coordinator:
    policy.setdefault("tolerable_failures", 100)
    made = Coordinator(CheckpointPolicy(interval_s=interval_s, **policy), next_id=next_id)
    if ready:
        assert made.all_ready() == []
    return made


def triggered(checkpoint: int, purpose: Purpose = Purpose.PERIODIC) -> TriggerCheckpoint:
    return TriggerCheckpoint(checkpoint_id(checkpoint), purpose)


def pending(of: Coordinator) -> list[int]:
    return [each.checkpoint for each in of.scheduler.under_way]


def test_what_a_checkpoint_is_for_says_how_it_ends() -> None:
    named = {
        "a savepoint": [each for each in Purpose if each.is_savepoint],
        "nothing comes after its barrier": [each for each in Purpose if each.halts],
        "the attempt ends with it": [each for each in Purpose if each.is_last],
    }
    assert named == {
        "a savepoint": [Purpose.SAVEPOINT, Purpose.SUSPEND, Purpose.DRAIN],
        "nothing comes after its barrier": [Purpose.SUSPEND, Purpose.RESCALE],
        "the attempt ends with it": [Purpose.FINAL, Purpose.SUSPEND, Purpose.DRAIN, Purpose.RESCALE],
    }


# -- triggers ---------------------------------------------------------------------------------------------------------


def test_nothing_is_triggered_before_every_slot_is_ready() -> None:
    job = coordinator(ready=False)
    job.on(SlotBecameReady(S0))
    job.on(SlotBecameReady(S1))

    assert job.after(1000) == []
    assert job.on(SlotBecameReady(S2)) == []
    assert job.after(9.9) == []
    assert job.after(0.2) == [triggered(1)]


def test_the_interval_counts_from_plan_to_plan_and_a_late_one_is_made_up_for_at_once() -> None:
    job = coordinator()
    assert job.after(10) == [triggered(1)]
    assert job.after(3) == []
    assert job.complete(1) == [NotifyComplete(logged(1))]
    assert job.after(6.9) == []
    assert job.after(0.1) == [triggered(2)]
    job.now += 35  # three intervals pass while it is under way: they become one
    assert job.complete(2) == [NotifyComplete(logged(2)), triggered(3)]


def test_without_an_interval_there_are_no_periodic_checkpoints() -> None:
    job = coordinator(interval_s=None)

    assert job.after(10_000) == []
    assert job.scheduler.next_wake() is None
    assert job.on(CheckpointRequested()) == [triggered(1, Purpose.REQUESTED)]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_at_most_so_many_checkpoints_are_under_way(most: int) -> None:
    job = coordinator(max_concurrent=most)
    for number in range(1, most + 1):
        assert job.after(10) == [triggered(number)]
    assert job.after(100) == []
    assert pending(job) == list(range(1, most + 1))

    assert triggered(most + 1) in job.complete(1)
    assert len(pending(job)) == most


def test_the_pause_counts_from_the_last_completion() -> None:
    job = coordinator(min_pause_s=25.0)
    assert job.after(10) == [triggered(1)]
    job.now += 8
    job.complete(1)

    assert job.after(24.9) == []
    assert job.after(0.1) == [triggered(2)]


def test_a_request_ignores_interval_and_pause_but_not_the_number_under_way() -> None:
    job = coordinator(min_pause_s=1000.0)
    assert job.on(CheckpointRequested()) == [triggered(1, Purpose.REQUESTED)]
    assert job.on(CheckpointRequested()) == []
    assert job.on(CheckpointRequested()) == []

    assert triggered(2, Purpose.REQUESTED) in job.complete(1)
    assert triggered(3, Purpose.REQUESTED) in job.complete(2)
    assert job.complete(3) == [NotifyComplete(logged(3))]


def test_a_users_request_goes_before_a_periodic_checkpoint_that_has_waited_longer() -> None:
    job = coordinator()
    assert job.after(10) == [triggered(1)]
    assert job.after(10) == []  # the next periodic one is due, and waits
    assert job.on(CheckpointRequested()) == []

    assert triggered(2, Purpose.REQUESTED) in job.complete(1)
    assert triggered(3) in job.complete(2)


def test_a_request_while_a_slot_is_slow_to_start_waits_and_is_the_first() -> None:
    job = coordinator(ready=False)
    job.on(SlotBecameReady(S0))
    job.on(SlotBecameReady(S1))
    assert job.on(CheckpointRequested()) == []
    assert job.after(500) == []

    assert job.on(SlotBecameReady(S2)) == [triggered(1, Purpose.REQUESTED)]
    assert job.after(9.9) == []  # periodic ones count from here


def test_a_checkpoint_counts_once_however_many_slots_decline_it() -> None:
    job = coordinator(tolerable_failures=1)
    job.after(10)
    (aborted,) = job.decline(S0, 1)
    assert isinstance(aborted, NotifyAborted)
    assert job.decline(S1, 1) == []
    assert job.decline(S2, 1) == []
    assert job.scheduler.failures_in_a_row == 1


def test_a_failure_says_in_words_which_slot_and_why() -> None:
    job = coordinator(tolerable_failures=0)
    job.after(10)
    aborted, failed = job.decline(S1, 1)
    assert isinstance(aborted, NotifyAborted)
    assert (aborted.reason.value, aborted.detail) == ("a slot declined it", "slot 1.0: disk full")
    assert failed == FailAttempt(
        "checkpoint 1 failed (a slot declined it: slot 1.0: disk full); 1 failures in a row, 0 are tolerated"
    )


def test_the_driver_is_woken_for_the_next_trigger_and_for_the_next_timeout() -> None:
    job = coordinator(timeout_s=60.0, min_pause_s=5.0)
    assert job.scheduler.next_wake() == 110.0
    job.after(10)
    assert job.scheduler.next_wake() == 170.0
    job.now = 119.0
    job.complete(1)
    assert job.scheduler.next_wake() == 124.0


def test_the_driver_is_never_woken_for_a_time_that_has_passed_while_nothing_can_be_triggered() -> None:
    job = coordinator(max_concurrent=2)
    job.after(10)
    job.all_ended()  # the final checkpoint waits for the first to end
    job.after(50)

    assert pending(job) == [1]
    wake = job.scheduler.next_wake()
    assert wake is not None
    assert wake > job.now


def test_ids_go_on_from_where_the_log_says_and_an_aborted_id_is_not_used_again() -> None:
    job = coordinator(next_id=41)
    assert job.after(10) == [triggered(41)]
    job.decline(S1, 41)
    assert job.after(10) == [triggered(42)]
    assert job.scheduler.next_id == 43


# -- acknowledgements -------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_stored_when_the_last_slot_has_acknowledged_and_complete_only_when_it_stands_in_the_log() -> (
    None
):
    job = coordinator()
    job.after(10)

    assert job.ack(S0, 1, "a") == []
    assert job.ack(S1, 1, "b") == []
    assert job.ack(S2, 1, "c") == [StoreCheckpoint(checkpoint_id(1), Purpose.PERIODIC, {S0: "a", S1: "b", S2: "c"})]
    assert job.scheduler.latest_completed == 0
    assert job.on(CheckpointLogged(logged(1))) == [NotifyComplete(logged(1))]
    assert job.scheduler.latest_completed == 1


def test_a_missing_acknowledgement_keeps_the_checkpoint_from_completing() -> None:
    job = coordinator(timeout_s=60.0, interval_s=1000.0)
    job.after(1000)

    assert job.ack(S0, 1) == []
    assert job.ack(S1, 1) == []
    assert job.after(59) == []
    (aborted,) = job.after(1)
    assert isinstance(aborted, NotifyAborted)
    assert aborted.reason is AbortReason.EXPIRED
    assert aborted.detail == "no answer from slots 1.1"


def test_a_doubled_acknowledgement_is_discarded_and_counts_once() -> None:
    job = coordinator()
    job.after(10)
    job.ack(S0, 1, "first")

    assert job.ack(S0, 1, "second") == [DiscardSnapshot(S0, checkpoint_id(1), "second", AckAnswer.DUPLICATE)]
    job.ack(S1, 1)
    (stored,) = job.ack(S2, 1)
    assert isinstance(stored, StoreCheckpoint)
    assert stored.snapshots[S0] == "first"


def test_an_acknowledgement_that_is_doubled_while_the_checkpoint_is_stored_does_not_store_it_twice() -> None:
    job = coordinator()
    job.after(10)
    job.ack_all(1)

    assert job.ack(S2, 1, "again") == [DiscardSnapshot(S2, checkpoint_id(1), "again", AckAnswer.DUPLICATE)]


@pytest.mark.parametrize("end", ["completed", "declined", "expired", "never was"])
def test_a_late_acknowledgement_is_discarded(end: str) -> None:
    job = coordinator(timeout_s=60.0)
    if end != "never was":
        job.after(10)
    match end:
        case "completed":
            job.complete(1)
        case "declined":
            job.decline(S1, 1)
        case "expired":
            job.after(60)

    late = checkpoint_id(1)
    assert DiscardSnapshot(S0, late, "late", AckAnswer.UNKNOWN) in job.ack(S0, 1, "late")
    assert job.scheduler.latest_completed == (1 if end == "completed" else 0)


@pytest.mark.parametrize("attempt", [attempt_id(1), attempt_id(3), attempt_id(2, generation=2)])
def test_an_acknowledgement_of_another_attempt_is_discarded(attempt: AttemptId) -> None:
    job = coordinator()
    job.after(10)
    job.ack(S0, 1)
    job.ack(S1, 1)

    assert job.ack(S2, 1, "old", attempt) == [DiscardSnapshot(S2, checkpoint_id(1), "old", AckAnswer.FOREIGN)]
    assert not job.scheduler.checkpoints[checkpoint_id(1)].storing


def test_an_acknowledgement_of_a_slot_that_is_not_in_the_plan_is_discarded() -> None:
    job = coordinator()
    job.after(10)
    stranger = SlotId(7, 7)

    assert job.ack(stranger, 1) == [DiscardSnapshot(stranger, checkpoint_id(1), "s", AckAnswer.FOREIGN)]


def test_a_decline_of_another_attempt_changes_nothing() -> None:
    job = coordinator()
    job.after(10)

    assert job.decline(S1, 1, attempt_id(1)) == []
    assert pending(job) == [1]


# -- several at a time ------------------------------------------------------------------------------------------------


def two_under_way() -> Coordinator:
    job = coordinator(max_concurrent=2)
    job.after(10)
    job.after(10)
    assert pending(job) == [1, 2]
    return job


def test_acknowledgements_of_two_checkpoints_do_not_mix() -> None:
    job = two_under_way()
    job.ack(S0, 1, "1a")
    job.ack(S0, 2, "2a")
    job.ack(S1, 2, "2b")
    job.ack(S1, 1, "1b")

    (first,) = job.ack(S2, 1, "1c")
    assert isinstance(first, StoreCheckpoint)
    assert first.snapshots == {S0: "1a", S1: "1b", S2: "1c"}
    assert job.on(CheckpointLogged(logged(1))) == [NotifyComplete(logged(1))]
    (second,) = job.ack(S2, 2, "2c")
    assert isinstance(second, StoreCheckpoint)
    assert second.snapshots == {S0: "2a", S1: "2b", S2: "2c"}


def test_a_completed_checkpoint_subsumes_the_older_ones_before_anybody_is_told() -> None:
    job = two_under_way()
    job.ack(S0, 1)

    aborted, complete = job.complete(2)
    assert isinstance(aborted, NotifyAborted)
    assert (aborted.checkpoint, aborted.reason, aborted.latest_completed) == (1, AbortReason.SUBSUMED, 2)
    assert complete == NotifyComplete(logged(2))
    assert job.scheduler.failures_in_a_row == 0
    assert DiscardSnapshot(S1, checkpoint_id(1), "s", AckAnswer.UNKNOWN) in job.ack(S1, 1)


def test_an_older_checkpoint_is_not_stored_behind_a_newer_one() -> None:
    job = two_under_way()
    assert [type(action) for action in job.ack_all(2)] == [StoreCheckpoint]
    (aborted,) = job.ack_all(1)

    assert isinstance(aborted, NotifyAborted)
    assert (aborted.checkpoint, aborted.reason) == (1, AbortReason.SUBSUMED)


def test_two_checkpoints_that_are_stored_in_order_complete_in_order() -> None:
    job = two_under_way()
    assert [type(action) for action in job.ack_all(1)] == [StoreCheckpoint]
    assert [type(action) for action in job.ack_all(2)] == [StoreCheckpoint]

    assert NotifyComplete(logged(1)) in job.on(CheckpointLogged(logged(1)))
    assert NotifyComplete(logged(2)) in job.on(CheckpointLogged(logged(2)))
    assert job.scheduler.latest_completed == 2


def test_the_timeout_of_one_leaves_the_other_alone() -> None:
    job = coordinator(max_concurrent=2, timeout_s=15.0)
    job.after(10)
    job.after(10)
    (aborted,) = job.after(5)

    assert isinstance(aborted, NotifyAborted)
    assert aborted.checkpoint == 1
    assert pending(job) == [2]
    assert NotifyComplete(logged(2)) in job.complete(2)


# -- trouble ----------------------------------------------------------------------------------------------------------


def test_a_declined_checkpoint_is_given_up_and_all_slots_hear_of_the_latest_completed_one() -> None:
    job = coordinator()
    job.after(10)
    job.complete(1)
    job.after(10)

    assert job.decline(S1, 2) == [
        NotifyAborted(checkpoint_id(2), checkpoint_id(1), AbortReason.DECLINED, "slot 1.0: disk full")
    ]
    assert job.decline(S2, 2) == []  # the second decline of it is late


def test_a_checkpoint_that_is_being_stored_can_no_longer_be_declined_or_expire() -> None:
    """Its log record may stand already: only the storage can tell."""
    job = coordinator(timeout_s=60.0, interval_s=1000.0)
    job.after(1000)
    job.ack_all(1)

    assert job.decline(S1, 1) == []
    assert job.after(600) == []
    assert job.on(CheckpointLogged(logged(1))) == [NotifyComplete(logged(1))]


def test_a_checkpoint_that_could_not_be_stored_is_given_up() -> None:
    job = coordinator()
    job.after(10)
    job.ack_all(1)
    (aborted,) = job.on(CheckpointStoreFailed(checkpoint_id(1), "no space"))

    assert isinstance(aborted, NotifyAborted)
    assert aborted.reason is AbortReason.STORE_FAILED
    assert job.scheduler.latest_completed == 0


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_failures_in_a_row_beyond_the_tolerable_fail_the_attempt(tolerable: int) -> None:
    job = coordinator(tolerable_failures=tolerable)
    for number in range(1, tolerable + 1):
        job.after(10)
        assert not any(isinstance(action, FailAttempt) for action in job.decline(S1, number))
    job.after(10)
    actions = job.decline(S1, tolerable + 1)

    assert [type(action) for action in actions] == [NotifyAborted, FailAttempt]


def test_a_success_between_two_failures_starts_the_count_again() -> None:
    job = coordinator(tolerable_failures=1)
    job.after(10)
    job.decline(S1, 1)
    job.after(10)
    job.complete(2)
    job.after(10)

    assert not any(isinstance(action, FailAttempt) for action in job.decline(S1, 3))


PASSED_BY_A_NEWER_ONE = (AbortReason.SUBSUMED, AbortReason.OVERTAKEN)


@pytest.mark.parametrize(
    ("reason", "counts"),
    [(reason, reason not in PASSED_BY_A_NEWER_ONE) for reason in AbortReason if reason is not AbortReason.UNCOVERED],
)
def test_every_reason_but_being_passed_by_a_newer_one_counts(reason: AbortReason, counts: bool) -> None:
    job = coordinator(tolerable_failures=100, timeout_s=60.0, max_concurrent=2, interval_s=1000.0)
    job.after(1000)
    match reason:
        case AbortReason.EXPIRED:
            actions = job.after(60)
        case AbortReason.DECLINED:
            actions = job.decline(S0, 1)
        case AbortReason.OVERTAKEN:
            actions = job.on(SnapshotDeclined(S1, attempt_id(2), checkpoint_id(1), "late", overtaken=True))
        case AbortReason.STORE_FAILED:
            job.ack_all(1)
            actions = job.on(CheckpointStoreFailed(checkpoint_id(1), "no space"))
        case AbortReason.SUBSUMED:
            job.on(CheckpointRequested())
            actions = job.complete(2)

    assert [action.reason for action in actions if isinstance(action, NotifyAborted)] == [reason]
    assert job.scheduler.failures_in_a_row == (1 if counts else 0)


# -- the end of bounded input -----------------------------------------------------------------------------------------


def test_when_all_input_has_ended_the_final_checkpoint_comes_at_once_and_the_job_ends_when_all_is_committed() -> None:
    job = coordinator(interval_s=None)
    assert job.on(SlotEnded(S0)) == []
    assert job.on(SlotEnded(S1)) == []
    assert job.on(SlotEnded(S2)) == [triggered(1, Purpose.FINAL)]
    assert job.complete(1) == [NotifyComplete(logged(1))]
    assert job.on(SlotCommitted(S0, checkpoint_id(1))) == []
    assert job.on(SlotCommitted(S1, checkpoint_id(1))) == []
    assert job.on(SlotCommitted(S2, checkpoint_id(1))) == [FinishJob()]
    assert job.after(1000) == []


def test_the_commit_of_an_older_checkpoint_does_not_end_the_job() -> None:
    job = coordinator()
    job.after(10)
    job.complete(1)
    job.all_ended()
    job.complete(2)

    assert job.all_committed(1) == []
    assert job.all_committed(2) == [FinishJob()]


def test_a_commit_that_is_reported_before_the_final_checkpoint_is_complete_does_not_end_the_job() -> None:
    job = coordinator(interval_s=None)
    job.all_ended()

    assert job.all_committed(1) == []
    job.ack_all(1)
    assert FinishJob() in job.on(CheckpointLogged(logged(1)))


def test_the_final_checkpoint_waits_for_one_under_way_and_is_tried_again_when_it_fails() -> None:
    job = coordinator()
    job.after(10)
    assert job.all_ended() == []
    assert job.complete(1) == [NotifyComplete(logged(1)), triggered(2, Purpose.FINAL)]

    (aborted,) = job.decline(S0, 2)
    assert isinstance(aborted, NotifyAborted)
    assert job.scheduler.next_wake() == job.now + FINAL_RETRY_S  # at once, its barriers would pile up at the slot
    assert job.after(FINAL_RETRY_S / 2) == []
    assert job.after(FINAL_RETRY_S / 2) == [triggered(3, Purpose.FINAL)]
    job.complete(3)
    assert job.all_committed(3) == [FinishJob()]


def test_nothing_periodic_or_requested_comes_after_the_final_checkpoint() -> None:
    job = coordinator()
    job.all_ended()

    assert job.on(CheckpointRequested()) == []
    assert job.after(500) == []
    assert pending(job) == [1]


# -- any order --------------------------------------------------------------------------------------------------------


@pytest.mark.property
@pytest.mark.parametrize("case", range(150))
def test_in_any_order_of_events_the_invariants_hold(case: int) -> None:
    """Acks come late, twice, from others; checkpoints expire, are declined, or cannot be stored."""
    rng = random.Random(case)
    job = coordinator(
        interval_s=rng.choice([1.0, 10.0]),
        timeout_s=rng.choice([5.0, 60.0]),
        min_pause_s=rng.choice([0.0, 3.0]),
        max_concurrent=rng.choice([1, 2, 5]),
        tolerable_failures=10_000,
    )
    given_out: list[CheckpointId] = []
    stored: list[CheckpointId] = []
    storing: list[CheckpointId] = []
    told: list[CheckpointId] = []
    acked: dict[CheckpointId, set[SlotId]] = {}
    for _ in range(800):
        id = checkpoint_id(max(1, job.scheduler.next_id - rng.randint(0, 4)))
        if job.scheduler.checkpoints and rng.random() < 0.8:
            id = rng.choice(list(job.scheduler.checkpoints))
        slot = rng.choice([*sorted(SLOTS), SlotId(9, 9)])
        attempt = attempt_id(rng.choice([2, 2, 2, 2, 1]))
        event: Event = rng.choice(
            [
                SnapshotAcknowledged(slot, attempt, id, "s"),
                SnapshotAcknowledged(slot, attempt, id, "s"),
                SnapshotAcknowledged(slot, attempt, id, "s"),
                SnapshotDeclined(slot, attempt, id, "") if rng.random() < 0.05 else TimePassed(),
                CheckpointRequested() if rng.random() < 0.2 else TimePassed(),
                SlotCommitted(rng.choice(sorted(SLOTS)), job.scheduler.latest_completed),
            ]
        )
        if storing and rng.random() < 0.3:
            first = storing.pop(0)  # one background thread: in order
            if rng.random() < 0.8:
                event = CheckpointLogged(logged(first))
                stored.append(first)
            else:
                event = CheckpointStoreFailed(first, "")
        is_ours = isinstance(event, SnapshotAcknowledged) and event.attempt == attempt_id(2) and event.slot in SLOTS
        if is_ours and event.checkpoint in job.scheduler.checkpoints:
            acked.setdefault(event.checkpoint, set()).add(event.slot)
        job.now += rng.choice([0.0, 0.0, 0.2, 1.0])
        for action in job.on(event):
            match action:
                case TriggerCheckpoint(checkpoint):
                    given_out.append(checkpoint)
                case StoreCheckpoint(checkpoint, _, snapshots):
                    assert acked[checkpoint] == SLOTS == snapshots.keys()
                    assert checkpoint not in storing
                    storing.append(checkpoint)
                case NotifyComplete(permit):
                    assert permit.id in stored
                    told.append(permit.id)
        assert len(job.scheduler.under_way) <= job.policy.max_concurrent
    assert given_out == list(range(1, len(given_out) + 1))
    assert told == stored == sorted(stored)
    assert stored


# -- an end without another checkpoint ---------------------------------------------------------------------------------


def ending(job: Coordinator, within_s: float = 5.0) -> list[Action]:
    return job.on(EndRequested(job.now + within_s))


CANCELED = FailAttempt("canceled")


def test_a_job_that_is_to_end_first_commits_what_is_complete() -> None:
    job = Coordinator(CheckpointPolicy(interval_s=1.0))
    job.all_ready()
    job.after(1.0)
    job.complete(1)
    job.on(SlotCommitted(S0, checkpoint_id(1)))

    assert ending(job) == []
    assert job.after(2.0) == [], "the next periodic one is due, and not wanted"
    assert job.scheduler.next_wake() == job.now + 3.0
    assert job.on(SlotCommitted(S1, checkpoint_id(1))) == []
    assert job.on(SlotCommitted(S2, checkpoint_id(1))) == [CANCELED]


def test_it_does_not_wait_longer_than_it_may() -> None:
    job = Coordinator(CheckpointPolicy(interval_s=1.0))
    job.all_ready()
    job.after(1.0)
    job.complete(1)

    ending(job, within_s=2.0)

    assert job.after(1.9) == []
    assert job.after(0.1) == [CANCELED]


def test_a_checkpoint_that_is_being_stored_may_be_complete_in_a_moment() -> None:
    job = Coordinator(CheckpointPolicy(interval_s=1.0))
    job.all_ready()
    job.after(1.0)
    job.ack_all(1)

    assert ending(job) == []
    assert job.on(CheckpointLogged(logged(1))) == [NotifyComplete(logged(1))]
    assert job.all_committed(1) == [CANCELED]


def test_one_that_waits_for_slots_is_not_waited_for() -> None:
    job = Coordinator(CheckpointPolicy(interval_s=1.0))
    job.all_ready()
    job.after(1.0)
    job.ack(S0, 1)

    assert ending(job) == [CANCELED]


def test_what_was_restored_is_committed_before_the_slots_are_ready() -> None:
    job = Coordinator(CheckpointPolicy(interval_s=1.0), next_id=8)
    job.scheduler = CheckpointScheduler(attempt_id(2), SLOTS, job.policy, checkpoint_id(8), checkpoint_id(7))

    assert ending(job) == [CANCELED]


# -- the table, the story, the permit ----------------------------------------------------------------------------------


def test_what_storage_answers_must_have_been_asked_and_the_story_says_what_came_before() -> None:
    job = coordinator()
    job.after(10)
    job.ack(S0, 1)

    with pytest.raises(ProtocolViolation, match="nobody had asked for it") as raised:
        job.on(CheckpointLogged(logged(1)))

    *_, triggered_line, acknowledged, last = raised.value.story  # type: ignore[attr-defined]
    about = "checkpoint=1, purpose=<Purpose.PERIODIC: 'periodic'>, request=None, unaligned_after_s=None"
    assert triggered_line.endswith(f"TimePassed() -> TriggerCheckpoint({about})")
    assert "SnapshotAcknowledged" in acknowledged
    assert "LoggedCheckpoint(1)" in last
    assert acknowledged in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [CheckpointLogged(logged(9)), SavepointStored(checkpoint_id(9)), CheckpointStoreFailed(checkpoint_id(9), "")],
)
def test_an_answer_about_a_checkpoint_that_nobody_knows_is_a_bug_of_ours(answer: Event) -> None:
    with pytest.raises(ProtocolViolation, match="checkpoint 9 was stored, or failed to be"):
        coordinator().on(answer)


def test_a_checkpoint_cannot_complete_without_its_record() -> None:
    job = coordinator()
    job.after(10)
    job.ack_all(1)

    with pytest.raises(ProtocolViolation, match="no log record makes it count"):
        job.on(SavepointStored(checkpoint_id(1)))


def test_the_story_is_bounded_and_keeps_no_snapshot() -> None:
    job = coordinator()
    for _ in range(1000):
        job.ack(S0, 1, snapshot="x" * 10_000)

    lines = job.scheduler.story.lines()
    assert len(lines) < 100
    assert max(map(len, lines)) <= 300
    assert "xx" not in "".join(lines)


@pytest.mark.parametrize("from_", CheckpointState)
@pytest.mark.parametrize("to", CheckpointState)
def test_a_move_that_the_table_does_not_have_is_refused(from_: CheckpointState, to: CheckpointState) -> None:
    job = coordinator()
    job.after(10)
    job.scheduler.checkpoints[checkpoint_id(1)].state = from_
    if to in MOVES[from_]:
        assert job.scheduler._move(checkpoint_id(1), to).state is to
        assert (checkpoint_id(1) in job.scheduler.checkpoints) == bool(MOVES[to])
    else:
        with pytest.raises(ProtocolViolation, match=f"checkpoint 1 cannot go from {from_.name} to {to.name}"):
            job.scheduler._move(checkpoint_id(1), to)


def test_validate_finds_a_state_that_cannot_be() -> None:
    job = coordinator()
    job.after(10)
    job.scheduler.checkpoints[checkpoint_id(1)].state = CheckpointState.UNCOVERED

    with pytest.raises(ProtocolViolation, match="only savepoints wait for another"):
        job.scheduler.validate()
