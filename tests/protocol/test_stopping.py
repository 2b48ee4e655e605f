"""Savepoints and stops, as events in and actions out: what may be triggered when, and what a failure changes."""

from __future__ import annotations

import pytest
from protocol_kit import checkpoint_id, logged
from test_checkpointing import S1, Coordinator

from tidegate.errors import ProtocolViolation
from tidegate.protocol.checkpoint_events import (
    AbortReason,
    Action,
    CheckpointLogged,
    CheckpointRequested,
    DrainSources,
    FailAttempt,
    FinishJob,
    NotifyAborted,
    NotifyComplete,
    Purpose,
    RefuseSavepoint,
    SavepointRequested,
    SavepointStored,
    SnapshotDeclined,
    StopMode,
    StoreCheckpoint,
    TriggerCheckpoint,
)
from tidegate.protocol.checkpointing import CheckpointPolicy

EVERY_S = 10.0


def running(**policy: float) -> Coordinator:
    coordinator = Coordinator(CheckpointPolicy(interval_s=EVERY_S, **policy))  # type: ignore[arg-type]
    assert coordinator.all_ready() == []
    return coordinator


def refused(checkpoint: int, request: int) -> list[Action]:
    why = "slot 1.0: disk full"
    return [
        NotifyAborted(checkpoint_id(checkpoint), checkpoint_id(0), AbortReason.DECLINED, why),
        RefuseSavepoint(request, f"{AbortReason.DECLINED.value}: {why}"),
    ]


def triggered_savepoint(checkpoint: int = 1) -> TriggerCheckpoint:
    return TriggerCheckpoint(checkpoint_id(checkpoint), Purpose.SAVEPOINT, 7)


def triggered_cover(checkpoint: int) -> TriggerCheckpoint:
    return TriggerCheckpoint(checkpoint_id(checkpoint), Purpose.COVER)


def stored(actions: list[Action]) -> list[int]:
    return [action.checkpoint for action in actions if isinstance(action, StoreCheckpoint)]


def test_a_savepoint_is_stored_behind_a_checkpoint_and_nobody_is_told() -> None:
    coordinator = running()
    assert coordinator.on(SavepointRequested(7)) == [triggered_savepoint()]
    assert coordinator.ack_all(1) == [triggered_cover(2)], "it would stand before what it holds is sure to be committed"
    assert stored(coordinator.ack_all(2)) == [2]

    told, store = coordinator.on(CheckpointLogged(logged(2)))

    assert told == NotifyComplete(logged(2))
    assert isinstance(store, StoreCheckpoint)
    assert (store.checkpoint, store.purpose, store.request) == (1, Purpose.SAVEPOINT, 7)
    assert store.snapshots == {slot: f"snapshot {slot}" for slot in coordinator.slots}
    assert coordinator.on(SavepointStored(checkpoint_id(1))) == []
    assert coordinator.scheduler.latest_completed == 2


def test_any_checkpoint_behind_a_savepoint_covers_it() -> None:
    coordinator = running(max_concurrent=2)
    coordinator.on(SavepointRequested(7))
    assert coordinator.after(EVERY_S) == [TriggerCheckpoint(checkpoint_id(2), Purpose.PERIODIC)]
    assert coordinator.ack_all(1) == [], "one is under way already"
    coordinator.ack_all(2)
    assert stored(coordinator.on(CheckpointLogged(logged(2)))) == [1]


def test_a_savepoint_that_is_slower_than_the_checkpoint_behind_it_is_stored_at_once() -> None:
    coordinator = running(max_concurrent=2)
    coordinator.on(SavepointRequested(7))
    coordinator.after(EVERY_S)
    coordinator.complete(2)
    assert stored(coordinator.ack_all(1)) == [1]


def test_a_checkpoint_before_a_savepoint_does_not_cover_it() -> None:
    coordinator = running(max_concurrent=2)
    coordinator.after(EVERY_S)
    assert coordinator.on(SavepointRequested(7)) == [triggered_savepoint(2)]
    assert coordinator.ack_all(2) == [triggered_cover(3)]
    assert stored(coordinator.complete(1)) == []


def test_several_savepoints_are_covered_by_one_checkpoint() -> None:
    coordinator = running()
    coordinator.on(SavepointRequested(7))
    coordinator.on(SavepointRequested(8))
    assert coordinator.ack_all(1) == [TriggerCheckpoint(checkpoint_id(2), Purpose.SAVEPOINT, 8)]
    assert coordinator.ack_all(2) == [triggered_cover(3)]
    assert stored(coordinator.complete(3)) == [1, 2]


def test_a_job_without_checkpoints_takes_one_behind_a_savepoint() -> None:
    coordinator = Coordinator(CheckpointPolicy(interval_s=None))
    coordinator.all_ready()
    coordinator.on(SavepointRequested(7))
    assert coordinator.ack_all(1) == [triggered_cover(2)]
    assert stored(coordinator.complete(2)) == [1]


def test_a_savepoint_fails_with_the_checkpoint_behind_it_and_neither_is_a_failed_checkpoint() -> None:
    coordinator = running(tolerable_failures=0)
    coordinator.on(SavepointRequested(7))
    coordinator.ack_all(1)
    covering, savepoint, refusal = coordinator.decline(S1, 2)
    assert isinstance(covering, NotifyAborted)
    assert isinstance(savepoint, NotifyAborted)
    assert (savepoint.checkpoint, savepoint.reason) == (1, AbortReason.UNCOVERED)
    assert isinstance(refusal, RefuseSavepoint)
    assert refusal.request == 7
    assert "disk full" in refusal.reason
    assert coordinator.after(EVERY_S) == [TriggerCheckpoint(checkpoint_id(3), Purpose.PERIODIC)]


def test_a_savepoint_waits_on_when_the_checkpoint_behind_it_is_overtaken() -> None:
    coordinator = running()
    coordinator.on(SavepointRequested(7))
    coordinator.ack_all(1)
    overtaken, again = coordinator.on(
        SnapshotDeclined(S1, coordinator.scheduler.attempt, checkpoint_id(2), "late", overtaken=True)
    )
    assert isinstance(overtaken, NotifyAborted)
    assert again == triggered_cover(3)
    assert stored(coordinator.complete(3)) == [1]


def test_a_savepoint_with_a_short_patience_expires_while_it_waits_for_the_checkpoint_behind_it() -> None:
    coordinator = running()
    coordinator.on(SavepointRequested(7, timeout_s=5.0))
    coordinator.ack_all(1)
    assert coordinator.scheduler.next_wake() == coordinator.now + 5.0
    expired, refusal = coordinator.after(5.0)
    assert isinstance(expired, NotifyAborted)
    assert (expired.checkpoint, expired.reason) == (1, AbortReason.EXPIRED)
    assert isinstance(refusal, RefuseSavepoint)
    assert stored(coordinator.complete(2)) == []


@pytest.mark.parametrize("stop", [StopMode.SUSPEND, StopMode.RESCALE, StopMode.DRAIN, None])
def test_the_last_checkpoint_covers_a_savepoint_and_the_job_ends_behind_both(stop: StopMode | None) -> None:
    coordinator = running()
    coordinator.on(SavepointRequested(7))
    for slot in sorted(coordinator.slots)[:-1]:
        coordinator.ack(slot, 1)
    if stop is not None:
        coordinator.on(SavepointRequested(8, stop))
    if stop in (StopMode.DRAIN, None):
        coordinator.all_ended()
    (last,) = coordinator.ack(max(coordinator.slots), 1)
    assert isinstance(last, TriggerCheckpoint)
    assert last.purpose.is_last
    assert stored(coordinator.complete(2)) == [1]
    assert coordinator.all_committed(2) == [], "a savepoint is on its way to storage"
    assert coordinator.on(SavepointStored(checkpoint_id(1))) == [FinishJob(last.purpose)]


def test_a_savepoint_that_fails_is_no_failed_checkpoint() -> None:
    coordinator = running(tolerable_failures=0)
    coordinator.on(SavepointRequested(7))
    assert coordinator.decline(S1, 1) == refused(1, 7)
    assert coordinator.after(EVERY_S) == [TriggerCheckpoint(checkpoint_id(2), Purpose.PERIODIC)]


def test_a_suspend_waits_for_the_checkpoint_under_way_and_is_the_last() -> None:
    coordinator = running()
    coordinator.after(EVERY_S)
    assert coordinator.on(SavepointRequested(7, StopMode.SUSPEND)) == []
    assert coordinator.complete(1) == [
        NotifyComplete(logged(1)),
        TriggerCheckpoint(checkpoint_id(2), Purpose.SUSPEND, 7),
    ]
    assert coordinator.after(5 * EVERY_S) == []
    assert coordinator.complete(2) == [NotifyComplete(logged(2))]
    assert coordinator.all_committed(2) == [FinishJob(Purpose.SUSPEND)]


@pytest.mark.parametrize("stop", [StopMode.SUSPEND, StopMode.DRAIN, StopMode.RESCALE])
def test_what_others_may_read_and_what_stops_the_sources_is_aligned(stop: StopMode) -> None:
    job = running(unaligned_after_s=0.5)
    after_s: dict[Purpose, float | None] = {}

    def note(actions: list[Action]) -> None:
        after_s.update({a.purpose: a.unaligned_after_s for a in actions if isinstance(a, TriggerCheckpoint)})

    note(job.after(EVERY_S))
    job.complete(1)
    note(job.on(SavepointRequested(7)))
    note(job.ack_all(2))  # which triggers the checkpoint after it
    job.complete(3)
    job.on(SavepointStored(checkpoint_id(2)))
    note(job.on(SavepointRequested(8, stop)))
    if stop is StopMode.DRAIN:
        note(job.all_ended())

    last = {StopMode.SUSPEND: Purpose.SUSPEND, StopMode.DRAIN: Purpose.DRAIN, StopMode.RESCALE: Purpose.RESCALE}[stop]
    assert after_s == {Purpose.PERIODIC: 0.5, Purpose.SAVEPOINT: None, Purpose.COVER: 0.5, last: None}


def test_a_savepoint_is_lost_with_its_attempt_unless_it_is_on_its_way_to_storage() -> None:
    job = running()
    assert job.scheduler.lost_savepoints() == []
    job.on(SavepointRequested(7))
    assert job.scheduler.lost_savepoints() == [1], "slots have not answered"
    job.ack_all(1)
    assert job.scheduler.lost_savepoints() == [1], (
        "nothing that commits the same is complete; that one is not a savepoint"
    )
    job.complete(2)
    assert job.scheduler.lost_savepoints() == [], "it is being stored: it may stand"
    job.on(SavepointStored(checkpoint_id(1)))
    assert job.scheduler.lost_savepoints() == []


def test_after_a_suspend_that_failed_checkpoints_go_on() -> None:
    coordinator = running(tolerable_failures=0)
    coordinator.on(SavepointRequested(7, StopMode.SUSPEND))
    assert coordinator.decline(S1, 1) == refused(1, 7)
    assert coordinator.after(EVERY_S) == [TriggerCheckpoint(checkpoint_id(2), Purpose.PERIODIC)]


def test_between_a_drain_and_its_savepoint_nothing_is_triggered() -> None:
    """It would commit what the end of the stream brings about, and there would be no way back from a failure."""
    coordinator = running()
    assert coordinator.on(SavepointRequested(7, StopMode.DRAIN)) == [DrainSources()]
    assert coordinator.on(CheckpointRequested()) == []
    assert coordinator.after(5 * EVERY_S) == []
    wake = coordinator.scheduler.next_wake()
    assert wake is None or wake > coordinator.now, "the driver would spin"
    assert coordinator.all_ended() == [TriggerCheckpoint(checkpoint_id(1), Purpose.DRAIN, 7)]
    assert coordinator.complete(1) == [NotifyComplete(logged(1))]
    assert coordinator.all_committed(1) == [FinishJob(Purpose.DRAIN)]


def test_a_checkpoint_from_before_a_drain_may_complete() -> None:
    """Its barriers left the sources before the drain did."""
    coordinator = running()
    coordinator.after(EVERY_S)
    assert coordinator.on(SavepointRequested(7, StopMode.DRAIN)) == [DrainSources()]
    assert coordinator.complete(1) == [NotifyComplete(logged(1))]
    assert coordinator.all_ended() == [TriggerCheckpoint(checkpoint_id(2), Purpose.DRAIN, 7)]


def test_a_drain_that_failed_ends_the_attempt() -> None:
    coordinator = running()
    coordinator.on(SavepointRequested(7, StopMode.DRAIN))
    coordinator.all_ended()
    *told, failed = coordinator.decline(S1, 1)
    assert told == refused(1, 7)
    assert isinstance(failed, FailAttempt)


@pytest.mark.parametrize("first", [StopMode.SUSPEND, StopMode.DRAIN])
def test_a_job_is_stopped_once(first: StopMode) -> None:
    coordinator = running()
    coordinator.on(SavepointRequested(7, first))
    (again,) = coordinator.on(SavepointRequested(8, StopMode.SUSPEND))
    assert isinstance(again, RefuseSavepoint)
    assert again.request == 8


def test_a_record_in_the_log_for_a_plain_savepoint_is_a_bug_of_ours() -> None:
    coordinator = running()
    coordinator.on(SavepointRequested(7))
    coordinator.ack_all(1)
    coordinator.complete(2)

    with pytest.raises(ProtocolViolation, match="savepoint 1 commits nothing"):
        coordinator.on(CheckpointLogged(logged(1)))
