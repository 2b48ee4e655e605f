"""The frames of a slot in the order in which it takes them: released ones first, then the mailbox. Executor; task's thread.

Invariant 1. Frames of one physical channel are taken in the order they were sent; a gap or a repeat fails the slot.
Invariant 2. Restored records are taken before everything else. What reaches a chain by another way than this queue (polls
             of its source, the end, time, in the first layer the trigger of a checkpoint) waits as long as `has_restored`.
Invariant 3. What a held channel brings is kept, and comes before everything newer once the channels are released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tidegate.errors import ProtocolViolation
from tidegate.ids import ChannelId, SlotId
from tidegate.task.capture import RESTORED
from tidegate.task.held import HeldFrames
from tidegate.task.mailbox import Mailbox
from tidegate.wire.frame import Frame, Kind


class InputQueue:
    def __init__(self, slot: SlotId, mailbox: Mailbox, channels: int, new_held: Callable[[], HeldFrames]) -> None:
        self._slot = slot
        self._mailbox = mailbox
        self._sequences = [0] * channels
        self._new_held = new_held
        self._released: deque[HeldFrames] = deque()  #: older before newer
        self._restored = 0  #: how many of them a restore brought
        self._held = new_held()
        self.held_channels: set[int] = set()

    def next(self, done: int) -> Frame | None:
        """The next one that has something to say, when checkpoints up to `done` have been dealt with here.

        Pulses have done their work by arriving. Neither they nor spent barriers are worth a turn of the slot: where
        checkpoints fail one after another, a slow slot would read nothing else.
        """
        while (frame := self._next()) is not None:
            spent = frame.kind is Kind.CHECKPOINT_BARRIER and frame.value <= done
            if not spent and frame.kind is not Kind.PULSE:
                return frame
        return None

    def hold(self, channel: ChannelId) -> None:
        self.held_channels.add(channel)

    def hold_back(self, frame: Frame) -> bool:
        """Of a held channel. False when it was kept, but more than may be."""
        return self._held.append(frame)

    def release(self) -> None:
        """What was held back comes before everything else that waits."""
        self.held_channels.clear()
        if len(self._held):
            self._released.appendleft(self._held)
            self._held = self._new_held()

    def restore(self, frames: HeldFrames) -> None:
        """They were in flight at the checkpoint; nothing has come yet."""
        self._restored = len(frames)
        if len(frames):
            self._released.append(frames)

    @property
    def has_restored(self) -> bool:
        """Restored records wait: whatever does not come through this queue would overtake them."""
        return self._restored > 0

    @property
    def has_released(self) -> bool:
        return bool(self._released)

    def released(self) -> Iterator[Frame]:
        """What waits before the mailbox, oldest first; nothing is taken."""
        for held in self._released:
            yield from held

    @property
    def held_bytes(self) -> int:
        """Of what is held back now."""
        return self._held.size_bytes

    @property
    def kept_bytes(self) -> int:
        """Of all that was taken from the mailbox and not processed."""
        return self._held.size_bytes + sum(held.size_bytes for held in self._released)

    def _next(self) -> Frame | None:
        while self._released:
            if len(self._released[0]):
                released = self._released[0].pop()
                self._restored -= released.sender == RESTORED
                return released
            self._released.popleft().close()
        frame = self._mailbox.take_frame()
        if frame is not None:
            self._check_sequence(frame)
        return frame

    def _check_sequence(self, frame: Frame) -> None:
        due = self._sequences[frame.sender] if frame.sender < len(self._sequences) else None
        if due is None or frame.sequence != due:
            raise ProtocolViolation(
                f"slot {self._slot} got frame {frame.sequence} from sender {frame.sender} where "
                f"{'no such sender' if due is None else due} was due"
            )
        self._sequences[frame.sender] = due + 1
