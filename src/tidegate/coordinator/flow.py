"""What slots say about how much they can take, and who is told. Driver; the coordinator's thread.

an inbox over its bound    sources pause                 protocol/pausing.py
a slot that is slow        its senders get less credit   protocol/credit.py
a source that is ahead     reads nothing                 protocol/alignment.py
"""

from __future__ import annotations

from typing import Union, assert_never

from tidegate.ids import SlotId
from tidegate.ports import SlotLinks
from tidegate.protocol.alignment import AlignmentBoard
from tidegate.protocol.credit import CreditBoard
from tidegate.protocol.pausing import SourcePauses
from tidegate.wire.control import (
    Credits,
    GroupAt,
    InboxOverBound,
    InboxWithinBound,
    PauseSources,
    Progressed,
    ResumeSources,
    WatermarkReached,
)

FlowNews = Union[InboxOverBound, InboxWithinBound, Progressed, WatermarkReached]


class Flow:
    """Of one attempt."""

    def __init__(self, links: SlotLinks, slots: int) -> None:
        self._links = links
        self._sources: list[SlotId] = []  #: slots of the first layer that have called
        self._pauses = SourcePauses()
        self._credits = CreditBoard(slots)
        self._alignment = AlignmentBoard()

    def on_connected(self, slot: SlotId, now: float) -> None:
        self._credits.on_connected(slot)
        self.pass_credits_on(now)
        if slot.layer == 0:
            self._sources.append(slot)
            if self._pauses.over:
                self._links.send(slot, PauseSources())
            for group, lowest in self._alignment.lowest.items():
                self._links.send(slot, GroupAt(group, lowest))

    def on_news(self, slot: SlotId, news: FlowNews, now: float) -> None:
        match news:
            case InboxOverBound():
                if self._pauses.on_over_bound(slot):
                    self._tell_sources(PauseSources())
            case InboxWithinBound():
                if self._pauses.on_within_bound(slot):
                    self._tell_sources(ResumeSources())
            case Progressed(progress):
                self._credits.on_progress(slot, progress)
                self.pass_credits_on(now)
            case WatermarkReached(group, uid, subtask, watermark):
                lowest = self._alignment.on_reached(group, (uid, subtask), watermark)
                if lowest is not None:
                    self._tell_sources(GroupAt(group, lowest))
            case _:
                assert_never(news)

    def pass_credits_on(self, now: float) -> None:
        for sender, grants in self._credits.take_due(now):
            self._links.send(sender, Credits(grants))

    @property
    def due_at(self) -> float:
        """When `pass_credits_on` is, at the latest."""
        return self._credits.due_at

    def _tell_sources(self, message: PauseSources | ResumeSources | GroupAt) -> None:
        for slot in self._sources:
            self._links.send(slot, message)
