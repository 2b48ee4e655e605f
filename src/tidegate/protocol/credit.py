"""Credit: how many records a slot may have under way to a slot of the next layer. Pure.

    receiver: "so many of each channel are processed, and I can do so many more in time"   ReceiveWindow, executor
        --> driver: the newest word of each receiver, for each sender                      CreditBoard, driver
            --> sender: stops taking input when what it may send is used up                SendCredit, executor

Spark's buffers, sockets and inboxes hold megabytes. That is nothing to a slot that takes 50 megabytes a second, and a
minute's work to one that takes 10 ms a record, and all of it stands in front of an aligned barrier. So a slow receiver
says how many records it does in the time that a hop may take, and its senders have no more under way than that. A fast
one says nothing: what the buffers hold is less than that time's work.

Invariant 1. A sender without credit gets some when what it has sent is processed: the receiver speaks at the latest when
a quarter of a window, or one record, was processed since it last spoke, and no grant is lost: one for a sender that has
not called yet waits on the board. So no two slots wait for each other.
Invariant 2. Barriers, watermarks and ends need no credit.

Speed is records over the time in which there was something to do, time spent waiting for own credit included. A slot
that starves is not slow, and a window that follows it down would starve it more. Windows grow by doubling: a slot that is
quick with its first records may be one that waits for another with the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidegate.ids import SlotId

FIRST_WINDOW = 4  #: records of a channel, as long as nobody knows what one costs
UNLIMITED = 1 << 62
MANY = 1 << 20  #: more than anybody takes at once
#: What inbox, Spark's reader, writer and sockets hold for a slot anyway: a window above it would bound nothing.
BUFFERED_BYTES = 4 << 20
NEWS_PER_WINDOW = 4
GROWTH = 2
MAX_MESSAGES_PER_S = 2000  #: of the driver to senders


@dataclass(frozen=True, slots=True)
class Grant:
    """What one receiver says to one sender. Both count from the start of the attempt."""

    receiver: int  #: index of the slot in its layer
    processed: int  #: records of this channel
    window: int | None  #: how many more may be under way; None: no limit but the buffers'


class SendCredit:
    """The sender's side."""

    __slots__ = ("_limits", "_sent", "_used_up")

    def __init__(self, receivers: int, limited: bool) -> None:
        self._sent = [0] * receivers
        self._limits = [FIRST_WINDOW if limited else UNLIMITED] * receivers
        self._used_up: set[int] = set()  #: receivers to which nothing more may be sent

    def sending(self, receiver: int, records: int) -> None:
        """What is at hand is sent whole: a receiver may get more than it asked for, by one step of the sender's."""
        self._sent[receiver] += records
        if self._sent[receiver] >= self._limits[receiver]:
            self._used_up.add(receiver)

    def granted(self, grant: Grant) -> None:
        limit = UNLIMITED if grant.window is None else grant.processed + grant.window
        self._limits[grant.receiver] = limit
        if self._sent[grant.receiver] >= limit:
            self._used_up.add(grant.receiver)
        else:
            self._used_up.discard(grant.receiver)

    @property
    def is_used_up(self) -> bool:
        """One receiver is enough: the next record may be for it."""
        return bool(self._used_up)

    @property
    def records_left(self) -> int:
        """For all receivers together; at least 1."""
        if not self._limits:
            return MANY
        left = sum(limit - sent for limit, sent in zip(self._limits, self._sent) if sent < limit)
        return max(1, min(left, MANY))


@dataclass(slots=True)
class _Speed:
    """Sums that forget: what was is worth less, by two thirds for each `memory_s` that has passed since."""

    memory_s: float
    by_channel: list[float]  #: records
    records: float = 0.0  #: of all channels, and what a restore has brought
    size_bytes: float = 0.0
    seconds: float = 0.0

    def add(self, by_channel: list[int], records: int, size_bytes: int, seconds: float) -> None:
        keep = math.exp(-seconds / self.memory_s)
        self.by_channel = [old * keep + new for old, new in zip(self.by_channel, by_channel)]
        self.records = self.records * keep + records
        self.size_bytes = self.size_bytes * keep + size_bytes
        self.seconds = self.seconds * keep + seconds


@dataclass(frozen=True, slots=True)
class Progress:
    """What a receiver says to all its senders, by channel."""

    processed: list[int]
    windows: list[int] | None


class ReceiveWindow:
    """The receiver's side: one slot and all its channels."""

    def __init__(self, channels: int, target_s: float, buffered_bytes: int = BUFFERED_BYTES) -> None:
        self._target_s = target_s
        self._buffered_bytes = buffered_bytes
        self._speed = _Speed(target_s, [0.0] * channels)
        self._processed = [0] * channels
        self._told = [0] * channels  #: as much of it as senders have heard of
        self._looked = [0] * channels  #: as much of it as is in `_speed`
        self._windows: list[int] | None = [FIRST_WINDOW] * channels  #: None: no limit
        self._in_time: float = FIRST_WINDOW * channels  #: records of all channels that the windows are made of
        self._records = self._size_bytes = 0  #: since the last look
        self._seconds = 0.0  #: since the last look

    def on_processed(self, channel: int | None, records: int, size_bytes: int, seconds: float) -> Progress | None:
        """What to tell the senders, if anything.

        `channel` is None for records that no sender waits for: a restore has brought them.
        """
        self._records += records
        self._size_bytes += size_bytes
        self._seconds += seconds
        if channel is not None:
            self._processed[channel] += records
            if self._windows is not None:
                news = self._processed[channel] - self._told[channel]
                if news >= max(1, self._windows[channel] // NEWS_PER_WINDOW):
                    return self._look()
        return self._look() if self._seconds >= self._target_s / 2 else None

    def _look(self) -> Progress | None:
        fresh = [now - before for now, before in zip(self._processed, self._looked)]
        self._speed.add(fresh, self._records, self._size_bytes, self._seconds)
        self._looked = list(self._processed)
        self._records = self._size_bytes = 0
        self._seconds = 0.0
        was_limited = self._windows is not None
        self._windows = self._choose(was_limited)
        if self._windows is None and not was_limited:
            return None
        self._told = list(self._processed)
        return Progress(self._told, self._windows)

    def _choose(self, is_limited: bool) -> list[int] | None:
        speed = self._speed
        in_time = speed.records / speed.seconds * self._target_s if speed.seconds > 0 else math.inf
        if is_limited:
            in_time = min(in_time, GROWTH * self._in_time)
        enough_bytes = self._buffered_bytes if is_limited else self._buffered_bytes / 2
        if in_time * speed.size_bytes >= enough_bytes * speed.records:
            return None
        self._in_time = max(1.0, in_time)
        heard = sum(speed.by_channel)
        even = 1 / len(speed.by_channel)  # a channel that was silent may begin with as much
        shares = [max(even, each / heard if heard else 0.0) for each in speed.by_channel]
        return [max(1, round(in_time * share)) for share in shares]


class CreditBoard:
    """The driver's side: passes grants on, the newest of each, and not more often than the driver can bear. Until then what a
    receiver says costs nothing: its next word replaces it as a whole.

    A grant for a sender that has not called yet waits for it: a receiver that has lifted its limit does not speak again.
    """

    def __init__(self, slots: int) -> None:
        self._pause_s = slots / MAX_MESSAGES_PER_S
        self._news: dict[SlotId, Progress] = {}  #: the newest of each receiver that was not passed on
        self._early: dict[SlotId, dict[int, Grant]] = {}  #: by sender that has not called yet, and receiver
        self._called: dict[SlotId, dict[int, Grant]] = {}  #: the same, of senders that have called since
        self._connected: set[SlotId] = set()
        self._last_s = -math.inf

    def on_connected(self, sender: SlotId) -> None:
        self._connected.add(sender)
        if sender in self._early:
            self._called[sender] = self._early.pop(sender)

    def on_progress(self, receiver: SlotId, progress: Progress) -> None:
        self._news[receiver] = progress

    def take_due(self, now: float) -> list[tuple[SlotId, list[Grant]]]:
        if not (self._news or self._called) or now < self._last_s + self._pause_s:
            return []
        due, self._called = self._called, {}
        for receiver, progress in self._news.items():
            for number, processed in enumerate(progress.processed):
                window = None if progress.windows is None else progress.windows[number]
                sender = SlotId(receiver.layer - 1, number)
                grants = due if sender in self._connected else self._early
                grants.setdefault(sender, {})[receiver.index] = Grant(receiver.index, processed, window)
        self._news = {}
        if due:
            self._last_s = now
        return [(sender, list(grants.values())) for sender, grants in due.items()]

    @property
    def due_at(self) -> float:
        return self._last_s + self._pause_s if self._news or self._called else math.inf
