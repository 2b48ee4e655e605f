"""Looks whether executors are about to go, and has the job move before they do. Driver; the coordinator's thread.

protocol/leaving.py decides; the cluster knows who leaves, and whether there is room without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, assert_never

from tidegate.coordinator.moving import ExecutorsLeaving
from tidegate.coordinator.observing import JobView
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.errors import NotEnoughSlots
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.protocol.leaving import (
    Announce,
    AskForOthers,
    Departure,
    DepartureAction,
    MoveJob,
    TakeCheckpoint,
    WarmUp,
)
from tidegate.shown import first_line

if TYPE_CHECKING:
    from tidegate.coordinator.attempt import Attempt
    from tidegate.coordinator.execution import Cluster, RunningGang
    from tidegate.graph.plan import JobPlan

log = logging.getLogger("tidegate.coordinator")

LOOK_S = 0.25


class LeavingWatch:
    """Of one attempt."""

    def __init__(
        self,
        cluster: Cluster,
        plan: JobPlan,
        view: JobView,
        ask: Callable[[SavepointRequest], None],
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._view = view
        self._ask = ask
        self._post = post  #: run in the coordinator's thread
        self._clock = clock
        self._wall_clock = wall_clock
        self._departure = Departure()
        self._next_look = 0.0
        self._is_blind = False  #: the cluster could not be asked; said once
        cluster.ask_for_others(frozenset())  # those of the last attempt have come, or are not needed any more

    def look(self, attempt: Attempt, gang: RunningGang) -> None:
        """As often as the coordinator likes; it looks each LOOK_S."""
        now = self._clock()
        if now < self._next_look or not attempt.running or attempt.outcome is not None:
            return
        self._next_look = now + LOOK_S
        try:
            leaving = self._cluster.leaving_executors()
            leaving &= frozenset(gang.executors() if leaving else ())
            has_room = bool(leaving) and self._has_room()
        except Exception:  # it moves no worse than without a look
            if not self._is_blind:
                log.exception("whether executors are leaving could not be found out")
            self._is_blind = True
            return
        for action in self._departure.on_look(leaving, has_room, now):
            self._act(action, attempt)

    def _has_room(self) -> bool:
        try:
            self._cluster.check_plan(self._plan)
        except NotEnoughSlots:
            return False
        return True

    def _act(self, action: DepartureAction, attempt: Attempt) -> None:
        match action:
            case Announce(executors):
                log.warning("%s", _sentence(executors))
                self._view.publish(ExecutorsLeaving(tuple(sorted(executors)), self._wall_clock()))
            case AskForOthers(executors):
                self._cluster.ask_for_others(executors)
            case TakeCheckpoint():
                if attempt.policy.interval_s is not None and not attempt.scheduler.under_way:
                    attempt.request_checkpoint()
            case WarmUp():
                self._cluster.warm_up(lambda: self._post(lambda: self._warm(attempt)))
            case MoveJob(executors):
                request = SavepointRequest(
                    None, stop=StopMode.RESCALE, parallelism={}, reason=f"moved: {_sentence(executors)}"
                )
                request.future.add_done_callback(self._answered)
                self._ask(request)
            case _:
                assert_never(action)

    def _warm(self, attempt: Attempt) -> None:
        if attempt.outcome is None:
            for action in self._departure.on_warm(self._clock()):
                self._act(action, attempt)

    def _answered(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            log.warning("the job could not move: %s", first_line(error))
            self._departure.on_refused(self._clock())


def _sentence(executors: frozenset[str]) -> str:
    verb = "executor is" if len(executors) == 1 else "executors are"
    return f"{verb} leaving: {', '.join(sorted(executors))}"
