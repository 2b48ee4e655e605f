"""Savepoints and stops, as events in and actions out: what may be triggered when, and what a failure changes."""

from __future__ import annotations

import pytest
from protocol_kit import checkpoint_id
from test_checkpointing import S1, Coordinator

from tidegate.protocol.checkpointing import (
    AbortReason,
    Action,
    CheckpointPolicy,
    CheckpointRequested,
    DrainSources,
    FailAttempt,
    FinishJob,
    NotifyAborted,
    NotifyComplete,
    Purpose,
    RefuseSavepoint,
    SavepointRequested,
    StopMode,
    TriggerCheckpoint,
)

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


def test_a_savepoint_is_stored_and_nobody_is_told() -> None:
    coordinator = running()
    assert coordinator.on(SavepointRequested(7)) == [TriggerCheckpoint(checkpoint_id(1), Purpose.SAVEPOINT, 7)]
    assert coordinator.complete(1) == []
    assert coordinator.scheduler.latest_completed == 0


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
        NotifyComplete(checkpoint_id(1)),
        TriggerCheckpoint(checkpoint_id(2), Purpose.SUSPEND, 7),
    ]
    assert coordinator.after(5 * EVERY_S) == []
    assert coordinator.complete(2) == [NotifyComplete(checkpoint_id(2))]
    assert coordinator.all_committed(2) == [FinishJob(Purpose.SUSPEND)]


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
    assert coordinator.complete(1) == [NotifyComplete(checkpoint_id(1))]
    assert coordinator.all_committed(1) == [FinishJob(Purpose.DRAIN)]


def test_a_checkpoint_from_before_a_drain_may_complete() -> None:
    """Its barriers left the sources before the drain did."""
    coordinator = running()
    coordinator.after(EVERY_S)
    assert coordinator.on(SavepointRequested(7, StopMode.DRAIN)) == [DrainSources()]
    assert coordinator.complete(1) == [NotifyComplete(checkpoint_id(1))]
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
