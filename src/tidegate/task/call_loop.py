"""The asyncio loop of a slot's process: where asynchronous functions run. Executor; a thread of its own.

One loop for all asynchronous operators of the slot, started with the first call. What a call brings back reaches the task's
thread through the mailbox (task/operators/async_calls.py). A surprise in the loop itself ends the slot.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any


class CallLoopThread:
    """Implements ports.CallLoop."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True).start()
        self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        except BaseException as error:
            self._on_failure(error)
