"""What became of a sink's committables, and how long its commits take: numbers to show. Executor.

Names are Flink's where it has one (its committers' metrics). Written by the slot's threads, read by the heartbeat's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.connectors.contract import CommitOutcome

_NAMES = {
    CommitOutcome.DONE: "successfulCommittables",
    CommitOutcome.ALREADY_DONE: "alreadyCommittedCommittables",
    CommitOutcome.RETRY: "retriedCommittables",
    CommitOutcome.LOST: "failedCommittables",
}


@dataclass(slots=True)
class CommitCounts:
    """Of one subtask of a sink, since the start of the attempt."""

    commits: int = 0  #: calls of the committer that have returned
    seconds: float = 0.0  #: that they took, together
    last_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES.values(), 0))

    def asked(self, seconds: float) -> None:
        self.commits += 1
        self.seconds += seconds
        self.last_s = seconds

    def answered(self, outcome: object) -> None:
        """Something else than an outcome is refused elsewhere."""
        if isinstance(outcome, CommitOutcome):
            self.outcomes[_NAMES[outcome]] += 1

    def metrics(self) -> dict[str, float]:
        return {
            "numCommits": self.commits,
            "accumulateCommitTimeMs": int(self.seconds * 1000),
            "lastCommitDuration": int(self.last_s * 1000),
            **self.outcomes,
        }
