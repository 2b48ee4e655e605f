"""The loop of a slot under Spark, for what no slot does by itself: channels that are silent are pulsed."""

from __future__ import annotations

import pytest

from tidegate.ids import SlotId
from tidegate.task import main
from tidegate.task.garbage import BoundedCollections
from tidegate.task.inbox import Inbox
from tidegate.task.mailbox import Mailbox
from tidegate.task.main import SlotProcess
from tidegate.task.outbox import Outbox
from tidegate.wire.frame import FrameOpener, Kind
from tidegate.wire.seal import FrameSeal

KEY = b"k" * 32


class WaitingSlot:
    """Has nothing to do, and nothing is due: it waits for frames, or for the room to send some."""

    finished = False
    must_wait = False
    takes_frames = True
    has_more = False

    def __init__(self, has_source: bool) -> None:
        self._has_source = has_source
        self.outbox = Outbox(FrameSeal(KEY), SlotId(0, 0), receivers=2)

    def has_active_source(self) -> bool:
        return self._has_source

    def turn(self, patience_s: float) -> bool:
        return False

    def on_time(self) -> None: ...

    def flush_if_due(self, idle: bool) -> None: ...

    def next_deadline(self) -> float | None:
        return None


@pytest.mark.parametrize("has_source", [False, True], ids=["waits", "polls a source"])
def test_a_slot_that_sends_nothing_pulses_its_channels_again_and_again(
    has_source: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "PULSE_S", 0.01)
    process = SlotProcess.__new__(SlotProcess)  # without its sockets
    process._mailbox = Mailbox(Inbox(1 << 20, 1 << 20, 1 << 20), lambda message: None)
    process._busy_s = process._idle_s = process._blocked_s = process._waited_s = 0.0
    openers = [FrameOpener(FrameSeal(KEY), SlotId(1, receiver)) for receiver in range(2)]

    batches = process._loop(WaitingSlot(has_source), BoundedCollections())  # type: ignore[arg-type]

    for _ in range(3):
        sent = next(batches)
        assert [(to, openers[to].open(memoryview(row)).kind) for to, row in sent] == [(0, Kind.PULSE), (1, Kind.PULSE)]
