"""The watermark of an operator: the minimum over its live logical channels. Pure; driven by task/chains.py.

A watermark t says: no record with a timestamp of t or below will come on this channel. A channel that is idle, or that has
ended, holds nobody back; when all are idle, so is the operator.

Invariant. The watermark never goes back, whatever the channels say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MIN_WATERMARK = -(2**63)  #: nothing is known yet
MAX_WATERMARK = 2**63 - 1  #: nothing more will come
IDLE = MIN_WATERMARK + 1  #: travels as a watermark's value: this channel is idle from now on

Channel = tuple[int, int]  #: (edge, origin)


@dataclass(slots=True)
class WatermarkValve:
    """All channels into one operator."""

    watermarks: dict[Channel, int] = field(default_factory=dict)
    idle: set[Channel] = field(default_factory=set)
    current: int = MIN_WATERMARK
    all_idle: bool = False

    @classmethod
    def over(cls, channels: Iterable[Channel], restored: int = MIN_WATERMARK) -> WatermarkValve:
        return cls(dict.fromkeys(channels, MIN_WATERMARK), current=restored)

    def on_watermark(self, channel: Channel, watermark: int) -> list[int]:
        """What to pass on: nothing, a new watermark, or IDLE."""
        if watermark == IDLE:
            self.idle.add(channel)
        else:
            self.idle.discard(channel)
            self.watermarks[channel] = max(self.watermarks[channel], watermark)
        return self._news()

    def on_end(self, channel: Channel) -> list[int]:
        return self.on_watermark(channel, MAX_WATERMARK)

    def _news(self) -> list[int]:
        live = [mark for channel, mark in self.watermarks.items() if channel not in self.idle]
        if not live:
            news = [] if self.all_idle else [IDLE]
            self.all_idle = True
            return news
        self.all_idle = False
        lowest = min(live)
        if lowest <= self.current:
            return []
        self.current = lowest
        return [lowest]
