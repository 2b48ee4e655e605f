"""How much a slot may send, and how much it lets its senders send. Executor; the task's thread.

protocol/credit.py decides; here are the counts, the time and the message. With no target (debloating is off) nothing is
counted against anything, and the bounds of Spark's buffers and of the inbox are all there is.
"""

from __future__ import annotations

from tidegate.ports import ControlPort
from tidegate.protocol.credit import ReceiveWindow, SendCredit
from tidegate.task.capture import RESTORED
from tidegate.wire.control import Credits, Progressed
from tidegate.wire.frame import Frame


class SlotFlow:
    def __init__(
        self, target_s: float | None, senders: int, receivers: int, exchanges: int, control: ControlPort
    ) -> None:
        """`target_s` is for the whole way through the job; each exchange has its part of it."""
        self._control = control
        self.credit = SendCredit(receivers, limited=target_s is not None)
        self._window = ReceiveWindow(senders, target_s / exchanges) if target_s is not None and senders else None
        self._was_idle = True
        self._until = 0.0  #: up to here time is accounted for

    def on_credits(self, credits: Credits) -> None:
        for grant in credits.grants:
            self.credit.granted(grant)

    def processed(self, frame: Frame, records: int, began: float, ended: float) -> None:
        """So many records of the frame. What lies between two calls counts, unless there was nothing to do."""
        if self._window is None:
            return
        seconds = ended - (began if self._was_idle else self._until)
        self._was_idle = False
        self._until = ended
        channel = None if frame.sender == RESTORED else frame.sender
        size_bytes = frame.size_bytes * records // max(1, frame.count)
        progress = self._window.on_processed(channel, records, size_bytes, seconds)
        if progress is not None:
            self._control.send(Progressed(progress))

    def idle(self) -> None:
        """There is no input at the moment."""
        self._was_idle = True
