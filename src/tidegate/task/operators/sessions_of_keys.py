"""The sessions that a key has, record by record: which there are now, and where each keeps its records. Executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.functions.windows import TimeWindow

if TYPE_CHECKING:
    from tidegate.functions.windowed import Windowed
    from tidegate.state.backend import KeyedStateBackend


class Session(NamedTuple):
    """A session as it is now, and the window under which its records are kept."""

    window: TimeWindow
    kept_in: TimeWindow


class Sessions:
    """Of the key in work. They are the key's own, in no window: each method leaves the namespaces of windows."""

    def __init__(self, states: KeyedStateBackend, windowed: Windowed) -> None:
        self._states = states
        self._state: Any = windowed  # with `sessions` where windows merge

    def all(self) -> list[Session]:
        self._states.set_current_namespace(b"")
        return [Session(TimeWindow(a, b), TimeWindow(c, d)) for a, b, c, d in self._state.sessions.get()]

    def set(self, sessions: list[Session]) -> None:
        self._states.set_current_namespace(b"")
        self._state.sessions.set([(*session.window, *session.kept_in) for session in sessions])

    def at(self, window: TimeWindow) -> Session | None:
        return next((session for session in self.all() if session.window == window), None)

    def drop(self, window: TimeWindow) -> None:
        self.set([session for session in self.all() if session.window != window])
