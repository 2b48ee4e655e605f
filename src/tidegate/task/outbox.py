"""What leaves a slot: rows for Spark's shuffle, in order for each receiving slot. Executor; the task's thread.

A frame reaches the receiver's Python only when another row follows it on the same channel (Spark asks for the next row
before it hands one over), so a slot that falls silent must follow its last frame with a Flush on each channel it used.

Spark tells a sender that a connection has died with the next row that it is given, and never by itself. A slot that waits for
credit, or for the end of a checkpoint, gives it none: so a channel that has been silent gets a Flush now and then (`pulse`).
"""

from __future__ import annotations

from collections import deque

from tidegate.ids import SlotId
from tidegate.protocol.credit import SendCredit
from tidegate.wire.frame import NONE_16, Frame, Kind, encode_frame
from tidegate.wire.seal import FrameSeal

Row = tuple[int, bytes]


class Outbox:
    """Frames that wait to be handed to Spark. Bounded by its users: a slot drains it before it works on."""

    def __init__(self, seal: FrameSeal, slot: SlotId, receivers: int, credit: SendCredit | None = None) -> None:
        self._channels = [seal.channel(SlotId(slot.layer + 1, receiver), slot.index) for receiver in range(receivers)]
        self._receivers = receivers  #: width of the next layer; 0 in the last one
        self._sequences = [0] * receivers
        self._rows: deque[Row] = deque()
        self.credit = credit or SendCredit(receivers, limited=False)  #: whoever emits records counts them here
        self._unflushed: set[int] = set()  #: receivers whose last row was a frame, not a Flush
        self._used: set[int] = set()  #: receivers that were sent something since the last pulse
        self.bytes_waiting = 0
        self.bytes_sent = 0

    def __len__(self) -> int:
        return len(self._rows)

    def send(
        self,
        receiver: int,
        kind: Kind,
        *,
        origin: int = NONE_16,
        target: int = NONE_16,
        edge: int = NONE_16,
        count: int = 0,
        value: int = 0,
        flags: int = 0,
        payload: bytes | memoryview = b"",
    ) -> None:
        data = encode_frame(
            self._channels[receiver],
            kind,
            sequence=self._sequences[receiver],
            origin=origin,
            target=target,
            edge=edge,
            count=count,
            value=value,
            flags=flags,
            payload=payload,
        )
        self._sequences[receiver] += 1
        self._rows.append((receiver, data))
        self.bytes_waiting += len(data)
        self._unflushed.add(receiver)
        self._used.add(receiver)

    def relay(self, receiver: int, frame: Frame) -> None:
        """Pass a frame on to the next layer, as it is but for the physical channel."""
        self.credit.sending(receiver, frame.count)
        self.send(
            receiver,
            frame.kind,
            origin=frame.origin,
            target=frame.target,
            edge=frame.edge,
            count=frame.count,
            value=frame.value,
            flags=frame.flags,
            payload=frame.payload,
        )

    def send_barrier(self, checkpoint: int, flags: int) -> None:
        for receiver in range(self._receivers):
            self.send(receiver, Kind.CHECKPOINT_BARRIER, value=checkpoint, flags=flags)

    def send_flushes(self) -> None:
        """Push the last frame of each channel out of Spark's look-ahead."""
        for receiver in sorted(self._unflushed):
            self.send(receiver, Kind.FLUSH)
        self._unflushed.clear()

    def pulse(self) -> None:
        """A Flush on each channel that was not used since the last pulse."""
        for receiver in range(self._receivers):
            if receiver not in self._used:
                self.send(receiver, Kind.FLUSH)
                self._unflushed.discard(receiver)
        self._used.clear()

    @property
    def needs_flush(self) -> bool:
        return bool(self._unflushed)

    def take(self, max_bytes: int) -> list[Row]:
        """The next rows, at least one, about `max_bytes` together."""
        taken: list[Row] = []
        size = 0
        while self._rows and (not taken or size + len(self._rows[0][1]) <= max_bytes):
            row = self._rows.popleft()
            size += len(row[1])
            taken.append(row)
        self.bytes_waiting -= size
        self.bytes_sent += size
        return taken
