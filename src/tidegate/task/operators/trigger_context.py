"""What a trigger sees of its window, and the namespaces that windows are. Executor; the task's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.functions.windows import GLOBAL_WINDOW, TimeWindow
from tidegate.state.folding import merge_namespaces
from tidegate.state.timers import MOMENT_BYTES, moment_bytes
from tidegate.state.timers import moment as moment_of

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedStateBackend
    from tidegate.task.operators.timers import Timers


def namespace_of(window: TimeWindow) -> bytes:
    """By end, then by start; the global window is where all state lives that knows no windows."""
    if window == GLOBAL_WINDOW:
        return b""
    return moment_bytes(window.end) + moment_bytes(window.start)


def window_of(namespace: bytes) -> TimeWindow:
    """The way back."""
    if not namespace:
        return GLOBAL_WINDOW
    return TimeWindow(moment_of(namespace[MOMENT_BYTES:]), moment_of(namespace[:MOMENT_BYTES]))


class WindowTriggerContext:
    """What a trigger sees (functions.triggers.TriggerContext): the key's window in work."""

    def __init__(self, backend: KeyedStateBackend, timers: Timers) -> None:
        self._backend = backend
        self._timers = timers
        self.window = GLOBAL_WINDOW
        self.merged: list[TimeWindow] = []  #: in on_merge: what became the window

    @property
    def current_watermark(self) -> int:
        return self._timers.watermark

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def register_event_time_timer(self, time: int) -> None:
        self._timers.event.register(self._timers.key, time, namespace_of(self.window))

    def register_processing_time_timer(self, time: int) -> None:
        self._timers.processing.register(self._timers.key, time, namespace_of(self.window))

    def delete_event_time_timer(self, time: int) -> None:
        self._timers.event.delete(self._timers.key, time, namespace_of(self.window))

    def delete_processing_time_timer(self, time: int) -> None:
        self._timers.processing.delete(self._timers.key, time, namespace_of(self.window))

    def merge(self, state: Any) -> None:
        merge_namespaces(self._backend, state, namespace_of(self.window), map(namespace_of, self.merged))
