"""The asyncio loop of a slot's process: where asynchronous functions run. Executor; a thread of its own.

One loop for all asynchronous operators of the slot, started with the first call. What a call brings back reaches the task's
thread through the mailbox (task/operators/async_calls.py). A surprise in the loop itself ends the slot.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

CLOSE_S = 5.0


class CallLoopThread:
    """Implements ports.CallLoop."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """At the end of the job: what still runs, as `async_close`, has CLOSE_S to end. Spark may use the process again."""
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop)
            self._thread.join(2 * CLOSE_S)

    async def _wind_up(self) -> None:
        loop = asyncio.get_running_loop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=CLOSE_S)
            for task in late:
                task.cancel()
        loop.call_soon(loop.stop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.close()
        except BaseException as error:
            self._on_failure(error)
