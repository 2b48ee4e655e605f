"""The sources of one slot, asked for records in turn, unless they pause. Executor; the task's thread."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.task.chains import HostedChain
from tidegate.task.operators.source import SourceOperator


class SourceTurns:
    def __init__(self, chains: list[HostedChain], clock: Callable[[], float]) -> None:
        self._sources: list[tuple[HostedChain, SourceOperator]] = [
            (chain, chain.source) for chain in chains if chain.source is not None
        ]
        self._clock = clock
        self._turn = 0
        self.paused = False  #: an inbox somewhere is over its bound (protocol/pausing.py)

    @property
    def any_active(self) -> bool:
        return not self.paused and any(not chain.ended for chain, _ in self._sources)

    def poll(self, patience_s: float) -> bool:
        """Ask the next source for records; with one source, wait for them."""
        active = [] if self.paused else [source for chain, source in self._sources if not chain.ended]
        for _ in range(len(active)):
            source = active[self._turn % len(active)]
            self._turn += 1
            if not source.exhausted and source.poll(self._clock() + patience_s / len(active)):
                return True
        return False

    def drain(self) -> None:
        """Nothing more is read. The splits stay unfinished: whoever restores can read on after their positions."""
        for _, source in self._sources:
            source.exhausted = True
