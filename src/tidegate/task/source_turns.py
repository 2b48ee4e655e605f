"""The sources of one slot, asked for records in turn, unless they pause or are ahead of others. Executor; the task's thread.

Sources that are aligned (protocol/alignment.py) say how far they are at most every TELL_S, and are held by what the driver says
of their group.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.errors import ConfigurationError
from tidegate.functions.watermarks import Alignment
from tidegate.ports import ControlPort
from tidegate.protocol.alignment import may_read
from tidegate.protocol.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tidegate.task.chains import HostedChain
from tidegate.task.operators.source import SourceOperator
from tidegate.task.operators.timestamps import TimestampOperator
from tidegate.wire.control import GroupAt, WatermarkReached

TELL_S = 0.1


class SourceTurns:
    def __init__(self, chains: list[HostedChain], clock: Callable[[], float], control: ControlPort) -> None:
        self._sources: list[tuple[HostedChain, SourceOperator]] = [
            (chain, chain.source) for chain in chains if chain.source is not None
        ]
        self._clock = clock
        self._control = control
        self._turn = 0
        self.paused = False  #: an inbox somewhere is over its bound (protocol/pausing.py)
        self._aligned = {id(chain): found for chain in chains if (found := _aligned_in(chain))}
        self._told: dict[int, int] = {}  #: as _aligned, by the id of the chain
        self._lowest: dict[str, int] = {}  #: by group
        self._tell_at = 0.0

    @property
    def any_active(self) -> bool:
        return bool(self._active())

    def _active(self) -> list[SourceOperator]:
        if self.paused or not self._sources:
            return []
        return [source for chain, source in self._sources if not chain.ended and self._may_read(chain)]

    def poll(self, patience_s: float) -> bool:
        """Ask the next source for records; with one source, wait for them."""
        active = self._active()
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

    # -- alignment ----------------------------------------------------------------------------------------------------

    def on_group(self, news: GroupAt) -> None:
        self._lowest[news.group] = news.watermark

    def next_time(self) -> float | None:
        """When there is something to tell."""
        return self._tell_at if self._aligned and self._news() else None

    def tell(self) -> None:
        """What the driver has to know. A source that is held is not idle."""
        for chain, _ in self._sources if self._aligned else ():
            if not self._may_read(chain):
                chain.on_kept_back()
        if self._aligned and self._tell_at <= (now := self._clock()):
            for place, operator, alignment, watermark in self._news():
                self._told[place] = watermark
                self._control.send(WatermarkReached(alignment.group, operator.uid, operator.subtask, watermark))
                self._tell_at = now + TELL_S

    def _news(self) -> list[tuple[int, TimestampOperator, Alignment, int]]:
        """What the driver has not heard of each chain."""
        news = []
        for place, (operator, alignment) in self._aligned.items():
            watermark = operator.reached
            if watermark != self._told.get(place, MIN_WATERMARK):
                news.append((place, operator, alignment, watermark))
        return news

    def _may_read(self, chain: HostedChain) -> bool:
        if id(chain) not in self._aligned:
            return True
        operator, alignment = self._aligned[id(chain)]
        watermark = operator.watermark
        return watermark == MAX_WATERMARK or may_read(
            watermark, self._lowest.get(alignment.group), alignment.max_drift_ms
        )


def _aligned_in(chain: HostedChain) -> tuple[TimestampOperator, Alignment] | None:
    """:raises ConfigurationError: where it is not after a source, which it would have to hold."""
    for operator in chain.operators:
        if isinstance(operator, TimestampOperator) and operator.alignment is not None:
            if chain.source is None:
                raise ConfigurationError(
                    f"{operator.name} at {operator.planned.operator.line} has with_watermark_alignment, which holds a "
                    "source: call assign_timestamps_and_watermarks right after the source, with its parallelism"
                )
            return operator, operator.alignment
    return None
