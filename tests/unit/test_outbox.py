"""What an outbox sends of itself: Flush frames, after the last frame of a channel and where a channel has been silent."""

from __future__ import annotations

from tidegate.ids import SlotId
from tidegate.task.outbox import Outbox
from tidegate.wire.frame import Frame, FrameOpener, Kind
from tidegate.wire.seal import FrameSeal

KEY = b"k" * 32
RECEIVERS = 3


class Channels:
    """An outbox, and what arrives of it at each receiver: frames that are missing or come twice would not be opened."""

    def __init__(self) -> None:
        self.outbox = Outbox(FrameSeal(KEY), SlotId(0, 0), RECEIVERS)
        self._openers = [FrameOpener(FrameSeal(KEY), SlotId(1, receiver)) for receiver in range(RECEIVERS)]

    def arrive(self) -> list[tuple[int, Kind]]:
        arrived: list[tuple[int, Kind]] = []
        while len(self.outbox):
            for receiver, row in self.outbox.take(1 << 20):
                frame: Frame = self._openers[receiver].open(memoryview(row))
                arrived.append((receiver, frame.kind))
        return arrived


def test_a_channel_that_was_never_used_is_pulsed_too() -> None:
    channels = Channels()

    channels.outbox.pulse()

    assert channels.arrive() == [(receiver, Kind.FLUSH) for receiver in range(RECEIVERS)]


def test_a_channel_that_is_used_needs_no_pulse_and_one_that_falls_silent_does() -> None:
    channels = Channels()
    channels.outbox.pulse()
    channels.outbox.send(1, Kind.RECORDS, origin=0, target=1, edge=0, count=1, payload=b"x")
    channels.outbox.send_flushes()
    channels.arrive()

    channels.outbox.pulse()
    assert channels.arrive() == [(0, Kind.FLUSH), (2, Kind.FLUSH)]

    channels.outbox.pulse()
    assert channels.arrive() == [(0, Kind.FLUSH), (1, Kind.FLUSH), (2, Kind.FLUSH)]


def test_a_pulse_is_no_frame_that_waits_for_a_flush() -> None:
    channels = Channels()

    channels.outbox.pulse()

    assert not channels.outbox.needs_flush
