"""When a job moves away from executors that are about to go: scripts of looks and what is done."""

from __future__ import annotations

import itertools

import pytest

from tidegate.errors import ProtocolViolation
from tidegate.protocol.leaving import (
    AGAIN_S,
    CHECKPOINT_S,
    NOTICE_S,
    WARM_UP_S,
    Announce,
    AskForOthers,
    Departure,
    DepartureState,
    MoveJob,
    TakeCheckpoint,
    WarmUp,
)

NOBODY: frozenset[str] = frozenset()
A, B, BOTH = frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"})


def test_with_room_elsewhere_the_others_are_warmed_up_and_the_job_moves_once() -> None:
    departure = Departure()
    assert departure.on_look(NOBODY, False, 0.0) == []
    assert departure.on_look(A, True, 1.0) == [Announce(A), WarmUp()]
    assert departure.on_look(A, True, 2.0) == []
    assert departure.on_warm(3.0) == [MoveJob(A)]
    assert departure.on_look(A, True, 4.0) == []
    assert departure.on_warm(5.0) == []
    assert departure.state is DepartureState.MOVING


def test_it_does_not_wait_long_to_be_warm() -> None:
    departure = Departure()
    departure.on_look(A, True, 1.0)
    assert departure.on_look(A, True, 1.0 + WARM_UP_S) == [MoveJob(A)]


def test_room_that_is_gone_while_it_warms_up_is_no_room() -> None:
    departure = Departure()
    departure.on_look(A, True, 1.0)
    assert departure.on_look(A, False, 2.0) == [AskForOthers(A), TakeCheckpoint()]
    assert departure.on_warm(2.5) == []
    assert departure.on_look(A, True, 3.0) == [WarmUp()]


def test_without_room_it_takes_checkpoints_until_there_is_some() -> None:
    departure = Departure()
    assert departure.on_look(A, False, 0.0) == [Announce(A), AskForOthers(A), TakeCheckpoint()]
    assert departure.on_look(A, False, CHECKPOINT_S / 2) == []
    assert departure.on_look(A, False, CHECKPOINT_S) == [TakeCheckpoint()]
    assert departure.on_look(A, True, CHECKPOINT_S + 0.1) == [WarmUp()]


def test_it_does_not_take_them_for_ever_but_another_that_leaves_is_news() -> None:
    departure = Departure()
    departure.on_look(A, False, 0.0)
    assert departure.on_look(A, False, NOTICE_S + 1) == []
    assert departure.on_look(BOTH, False, NOTICE_S + 2) == [Announce(B), AskForOthers(BOTH), TakeCheckpoint()]
    assert departure.on_look(A, False, NOTICE_S + 2.5) == [], "one has gone, and there is somebody in its place"


def test_a_move_that_was_refused_is_asked_for_again() -> None:
    departure = Departure()
    departure.on_look(A, True, 0.0)
    departure.on_warm(1.0)
    departure.on_refused(5.0)
    assert departure.on_look(A, True, 5.25) == [TakeCheckpoint()], "as if there were no room"
    assert departure.on_look(A, True, 5.0 + AGAIN_S) == [WarmUp()]
    departure.on_warm(11.0)
    departure.on_refused(12.0)
    with pytest.raises(ProtocolViolation, match="cannot go from LEAVING to LEAVING"):
        departure.on_refused(12.1)


def test_a_move_that_is_always_refused_does_not_stop_the_sources_again_and_again() -> None:
    departure, asked = Departure(), 0
    for now in itertools.takewhile(lambda now: now < 60.0, itertools.count(0.0, 0.25)):
        actions = departure.on_look(A, True, now)
        if WarmUp() in actions:
            actions += departure.on_warm(now)
        if any(isinstance(action, MoveJob) for action in actions):
            asked += 1
            departure.on_refused(now)
    assert asked == 60.0 / AGAIN_S


def test_one_that_stays_after_all_is_forgotten() -> None:
    departure = Departure()
    departure.on_look(A, False, 0.0)
    assert departure.on_look(NOBODY, True, 1.0) == []
    assert departure.state is DepartureState.STAYING


@pytest.mark.property
def test_whatever_is_seen_it_announces_each_once_and_asks_for_one_move_at_a_time() -> None:
    looks = [(leaving, room) for leaving in (NOBODY, A, BOTH) for room in (False, True)]
    for script in itertools.product([*looks, "warm", "refused"], repeat=4):
        departure, announced, is_moving = Departure(), [], False
        for number, step in enumerate(script):
            now = number * WARM_UP_S
            if step == "refused":
                if is_moving:
                    departure.on_refused(now)
                    is_moving = False
                continue
            for action in departure.on_warm(now) if step == "warm" else departure.on_look(*step, now):
                if isinstance(action, Announce):
                    announced += action.executors
                if isinstance(action, MoveJob):
                    assert not is_moving
                    assert action.executors
                    is_moving = True
        assert len(announced) == len(set(announced)), script
