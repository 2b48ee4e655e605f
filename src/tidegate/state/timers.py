"""Timers of one keyed operator: per key and namespace, deduplicated, fired in order of time. Executor; the task's thread.

A timer is an entry of the keyed state, so timers are part of every snapshot and follow their key to another subtask. Each
stands alone, filed under its key in a namespace of its own, which is its moment and then the timer's namespace: to set or to
delete one looks at no other, however many the key has, and an increment holds those that have changed.

How they are found in order of time is the backend's matter: a priority queue in memory (state/heap_timers.py), or rows in that
order and the first few of them in memory (state/rocksdb_timers.py). Of one moment they come in any order.

At the end of time every timer fires, and so does one that a firing sets. But a periodic timer, which sets the next one each
time, would fire for ever: a chain of timers, each set by the firing of the one before, ends after LONGEST_CHAIN. What is set
then stays set and does not fire; a job that was drained, and goes on, has it still.

Stored by older releases was a list of moments for each key (`timers_in_lists`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.state.declarations import StoredValue
from tidegate.state.fitting import Fitter
from tidegate.types import data_type
from tidegate.types.scalars import INT64_MAX, INT64_MIN

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedStateBackend

LONGEST_CHAIN = 16  #: of timers that set each other at the end of time
MOMENT_BYTES = 8


class Timer(NamedTuple):
    timestamp: int
    key: Any  #: normalised
    namespace: bytes = b""


class TimerState(StoredValue):
    """The declaration of an operator's timers of one kind: a value, the timestamp, for each of them."""

    kind = "timer"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.value_type = data_type(int)
        self.default = None


class TimerTable(ABC):
    """The timers of one kind that are set."""

    __slots__ = ()

    @abstractmethod
    def set_timer(self, timer: Timer) -> None:
        """Also when it is set."""

    @abstractmethod
    def delete_timer(self, timer: Timer) -> None:
        """Also when it is not set."""

    @abstractmethod
    def has_timer(self, timer: Timer) -> bool:
        """Whether it is set. Seldom asked."""

    @abstractmethod
    def first_timer(self) -> Timer | None:
        """The earliest; None when none is set."""


class _Ending:
    """The end of time: which timers set which."""

    def __init__(self) -> None:
        self.links: dict[Timer, int] = {}  #: of those that were set meanwhile: their place in a chain
        self.link = 0  #: of the one that fires
        self.left: dict[Timer, None] = {}  #: set at the end of a chain, and out of the table for as long as time ends


class TimerQueue:
    """Timers of one kind. Those that are due become the backend's current key and namespace."""

    def __init__(self, backend: KeyedStateBackend, name: str) -> None:
        declaration = TimerState(name)
        self._backend = backend
        self._table = cast("TimerTable", backend.bind(declaration))
        self._fit = Fitter(declaration, declaration.value_type).fit
        self._ending: _Ending | None = None

    def register(self, key: Hashable, timestamp: int, namespace: bytes = b"") -> None:
        timer = self._timer(key, timestamp, namespace)
        ending = self._ending
        if ending is not None:
            if timer in ending.left or self._table.has_timer(timer):
                return
            ending.links[timer] = ending.link + 1
        self._table.set_timer(timer)

    def delete(self, key: Hashable, timestamp: int, namespace: bytes = b"") -> None:
        timer = self._timer(key, timestamp, namespace)
        if self._ending is not None:
            self._ending.left.pop(timer, None)
        self._table.delete_timer(timer)

    def _timer(self, key: Hashable, timestamp: Any, namespace: bytes) -> Timer:
        """:raises TypeDeclarationError: for a moment that is not a whole number of 64 bits."""
        if timestamp.__class__ is not int or not INT64_MIN <= timestamp <= INT64_MAX:
            timestamp = self._fit(timestamp)
        return Timer(timestamp, key, namespace)

    def next_timestamp(self) -> int | None:
        first = self._table.first_timer()
        return None if first is None else first.timestamp

    def due(self, up_to: int) -> Iterator[Timer]:
        """Each timer up to then, in order of time; it is not set any more, and its key and namespace are current.

        Timers that are registered while others fire are fired too, if they are due.
        """
        table, backend = self._table, self._backend
        while (timer := table.first_timer()) is not None and timer.timestamp <= up_to:
            table.delete_timer(timer)
            backend.set_current_key(timer.key)
            if timer.namespace:
                backend.set_current_namespace(timer.namespace)
            yield timer

    def due_at_the_end(self) -> Iterator[Timer]:
        """All timers, in order, when time has come to its end; see the module's text for those that are set meanwhile."""
        self._ending = ending = _Ending()
        try:
            for timer in self.due(MAX_WATERMARK):
                ending.link = ending.links.pop(timer, 0)
                if ending.link > LONGEST_CHAIN:
                    ending.left[timer] = None
                else:
                    yield timer
        finally:
            self._ending = None
            for timer in ending.left:
                self._table.set_timer(timer)


# -- how timers are stored -------------------------------------------------------------------------------------------


def moment_bytes(timestamp: int) -> bytes:
    """In the order of the timestamps."""
    return (timestamp - INT64_MIN).to_bytes(MOMENT_BYTES, "big")


def moment(encoded: bytes) -> int:
    """The way back."""
    return int.from_bytes(encoded, "big") + INT64_MIN


def filed_namespace(timer: Timer) -> bytes:
    """The namespace that a timer is filed under."""
    return moment_bytes(timer.timestamp) + timer.namespace


def timer_filed_under(key: Any, namespace: bytes) -> Timer:
    """The way back."""
    return Timer(moment(namespace[:MOMENT_BYTES]), key, namespace[MOMENT_BYTES:])


def timers_in_lists(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each timer, from rows with a list of moments for each key."""
    lists = rows.column("value")
    of, moments = pc.list_parent_indices(lists), pc.list_flatten(lists).cast(pa.int64())
    unsigned = moments.to_numpy(zero_copy_only=False).view(np.uint64) ^ np.uint64(1 << 63)
    raw = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(MOMENT_BYTES), len(moments), [None, pa.py_buffer(unsigned.astype(">u8").tobytes())]
    ).cast(pa.binary())
    namespace = rows.column("namespace").take(of)
    filed = pc.binary_join_element_wise(raw, namespace, pa.scalar(b"", pa.binary()))
    return pa.RecordBatch.from_pydict(
        {"key": rows.column("key").take(of), "namespace": filed, "value": moments, "expiry": pa.nulls(len(moments))}
    )
