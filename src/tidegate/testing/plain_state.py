"""What a handle holds, as plain Python. Executor's side of a test; the caller's thread."""

from __future__ import annotations

from typing import Any

from tidegate.state.handles import ListHandle, MapHandle


def plain_state(handle: Any) -> Any:
    """Of the current key."""
    match handle:
        case MapHandle():
            return dict(handle.items())
        case ListHandle():
            return list(handle.get())
        case _:
            return handle.get()
