"""The watermark of an operator: the minimum over its live logical channels. Pure; driven by task/chains.py, and with the
splits of a source for channels by task/operators/timestamps.py.

A watermark t says: no record with a timestamp of t or below will come on this channel. A channel that is idle, or that has
ended, holds nobody back. When all that have not ended are idle, time moves on to the highest of them, and the operator is
idle; it is live again with the first that is. When all have ended, time has.

Invariant. The watermark never goes back, whatever the channels say.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MIN_WATERMARK = -(2**63)  #: nothing is known yet
MAX_WATERMARK = 2**63 - 1  #: nothing more will come
IDLE = MIN_WATERMARK + 1  #: travels as a watermark's value: this channel is idle from now on

Channel = tuple[int, int]  #: (edge, origin)
C = TypeVar("C", bound=Hashable)


@dataclass(slots=True)
class WatermarkValve(Generic[C]):
    """All channels into one operator."""

    watermarks: dict[C, int] = field(default_factory=dict)
    idle: set[C] = field(default_factory=set)
    current: int = MIN_WATERMARK
    all_idle: bool = False
    announced: bool = True  #: False: `current` was restored, and what was sent of it may have been lost on its way

    @classmethod
    def over(cls, channels: Iterable[C]) -> WatermarkValve[C]:
        return cls(dict.fromkeys(channels, MIN_WATERMARK))

    def restore(self, watermark: int) -> None:
        self.current = watermark
        self.announced = False

    def on_watermark(self, channel: C, watermark: int) -> list[int]:
        """What to pass on, in order: nothing, a watermark, IDLE."""
        if watermark == IDLE:
            self.idle.add(channel)
        else:
            self.idle.discard(channel)
            self.watermarks[channel] = max(self.watermarks[channel], watermark)
        return self.news()

    def on_end(self, channel: C) -> list[int]:
        return self.on_watermark(channel, MAX_WATERMARK)

    def news(self) -> list[int]:
        """What the channels say, as far as it was not told yet."""
        going_on = {channel: mark for channel, mark in self.watermarks.items() if mark != MAX_WATERMARK}
        if not going_on:
            return self._advance(MAX_WATERMARK)
        live = [mark for channel, mark in going_on.items() if channel not in self.idle]
        if live:
            woken, self.all_idle = self.all_idle, False
            # Who was told that we are idle must hear that we are not, even if time has not gone on.
            return self._advance(min(live)) or ([self.current] if woken else [])
        if self.all_idle:
            return []
        # An ended channel holds nobody back, but must not let time end while others are only idle.
        self.all_idle = True
        return [*self._advance(max(going_on.values())), IDLE]

    def _advance(self, watermark: int) -> list[int]:
        if watermark < self.current or (watermark == self.current and self.announced):
            return []
        self.current = watermark
        self.announced = True
        return [watermark]
