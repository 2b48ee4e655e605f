"""Second phase of a sink's two-phase commit, slot side. Executor: decided in the task's thread, done in the background.

    step 6a  "n is complete" arrives: everything prepared up to n is to be committed
    step 6b  the committers are asked, off the task's thread, again and again until each committable is done
    step 6c  only then is it forgotten: until now it was part of every snapshot

One round at a time; a completion that comes meanwhile starts the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.connectors.contract import CommitOutcome
from tidegate.errors import CommitLost, ConfigurationError, ProtocolViolation
from tidegate.ids import CheckpointId, SlotId
from tidegate.ports import Background, CrashPoints
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.storage.metadata import Committable
from tidegate.task.operators.base import OperatorFailed
from tidegate.task.operators.sink import SinkOperator

log = logging.getLogger("tidegate.task")

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 10.0


@dataclass(slots=True)
class _Answer:
    sink: SinkOperator
    asked: list[Committable]
    outcomes: list[CommitOutcome]
    error: Exception | None


class Commits:
    """All commits of one slot."""

    def __init__(
        self,
        slot: SlotId,
        sinks: list[SinkOperator],
        background: Background,
        post: Callable[[Callable[[], None]], None],
        on_committed: Callable[[CheckpointId], None],
        crash_points: CrashPoints,
        clock: Callable[[], float],
    ) -> None:
        self._slot = slot
        self._sinks = sinks
        self._background = background
        self._post = post
        self._on_committed = on_committed
        self._crash_points = crash_points
        self._clock = clock
        self._goal = CheckpointId(0)  #: commit everything up to here
        self._reached = CheckpointId(0)
        self._busy = False
        self._retry_after_s = FIRST_RETRY_S
        self.retry_at: float | None = None  #: when `resume` is due
        self.last_error: Exception | None = None

    def commit_up_to(self, logged: LoggedCheckpoint) -> None:
        if logged.id > self._goal:
            self._goal = logged.id
            self._start_round()

    def resume(self) -> None:
        """The pause before a retry is over."""
        self.retry_at = None
        self._start_round()

    def _start_round(self) -> None:
        if self._busy or self.retry_at is not None:
            return
        goal = self._goal
        work = [(sink, due) for sink in self._sinks if (due := sink.uncommitted(goal))]
        if not work:
            if goal > self._reached:
                self._reached = goal
                self._on_committed(goal)
            return
        self._busy = True
        self._background.submit(lambda: self._ask(goal, work))

    def _ask(self, goal: CheckpointId, work: list[tuple[SinkOperator, list[Committable]]]) -> None:
        """Background thread."""
        self._crash_points.reach("slot.before-commit", self._slot, goal)
        answers = []
        for sink, due in work:
            assert sink.committer is not None
            began = self._clock()
            try:
                outcomes = sink.committer.commit([committable.payload for committable in due])
                answers.append(_Answer(sink, due, outcomes, None))
                sink.commit_counts.asked(self._clock() - began)
            except ConfigurationError as error:  # no retry can help: somebody must correct what it says
                self._post(lambda sink=sink, error=error: self._give_up(sink, error, goal))  # type: ignore[misc]
                return
            except Exception as error:
                answers.append(_Answer(sink, due, [CommitOutcome.RETRY] * len(due), error))
        self._crash_points.reach("slot.after-commit", self._slot, goal)
        self._post(lambda: self._heard(answers))

    def _give_up(self, sink: SinkOperator, error: ConfigurationError, goal: CheckpointId) -> None:
        raise OperatorFailed(sink, error, goal) from error

    def _heard(self, answers: list[_Answer]) -> None:
        self._busy = False
        retry = False
        for answer in answers:
            retry |= self._take(answer)
        if retry:
            if self.last_error is not None:
                log.warning(
                    "slot %s: a commit failed and is tried again: %s: %s",
                    self._slot,
                    type(self.last_error).__name__,
                    self.last_error,
                )
            self.retry_at = self._clock() + self._retry_after_s
            self._retry_after_s = min(self._retry_after_s * 2, LONGEST_RETRY_S)
        else:
            self._retry_after_s = FIRST_RETRY_S
            self._start_round()

    def _take(self, answer: _Answer) -> bool:
        """True when something is to be tried again."""
        sink = answer.sink
        if not isinstance(answer.outcomes, list):
            raise OperatorFailed(
                sink,
                ConfigurationError(
                    f"{type(sink.committer).__qualname__}.commit returned {answer.outcomes!a}: it must return a list with "
                    "a CommitOutcome for each committable."
                ),
            )
        if len(answer.outcomes) != len(answer.asked):
            raise OperatorFailed(
                sink,
                ProtocolViolation(
                    f"the committer was asked for {len(answer.asked)} and answered {len(answer.outcomes)}"
                ),
            )
        done, retry = [], False
        for committable, outcome in zip(answer.asked, answer.outcomes):
            sink.commit_counts.answered(outcome)
            match outcome:
                case CommitOutcome.DONE | CommitOutcome.ALREADY_DONE:
                    done.append(committable)
                case CommitOutcome.RETRY:
                    retry = True
                    self.last_error = answer.error
                case CommitOutcome.LOST:
                    raise OperatorFailed(
                        sink,
                        CommitLost(
                            f"sink {sink.uid!r}, subtask {sink.subtask}: what was prepared for checkpoint "
                            f"{committable.checkpoint} is neither committed nor committable any more. "
                            f"{_reason_of(sink)}Look at the sink before you continue: output is missing. The job does not "
                            "restart by itself."
                        ),
                        committable.checkpoint,
                    )
                case _:
                    raise OperatorFailed(
                        sink,
                        ConfigurationError(
                            f"{type(sink.committer).__qualname__}.commit answered {outcome!a}, which is not a "
                            "CommitOutcome: say DONE, ALREADY_DONE, RETRY or LOST of each committable."
                        ),
                        committable.checkpoint,
                    )
        sink.forget(done)
        return retry


def _reason_of(sink: SinkOperator) -> str:
    reason = "" if sink.committer is None else sink.committer.lost_reason
    return f"{reason} " if reason else ""
