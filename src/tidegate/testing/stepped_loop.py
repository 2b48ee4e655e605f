"""An asyncio loop that goes one step when it is told to, by a clock that is told to. For asynchronous functions in tests.

`asyncio.sleep` and time-outs go by the manual clock, so nothing waits. What really waits for the outside, a socket or a thread,
is waited for in real time, before the clock goes on.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable
from typing import Any

OUTSIDE_S = 0.02  #: of real time, for each look at what comes from the outside
MAX_LOOKS = 500  #: in a row that see nothing


class SteppedCalls:
    """Implements ports.CallLoop: a loop that is made with the first call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._loop: SteppedLoop | None = None

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is None:
            self._loop = SteppedLoop(self._clock)
        self._loop.call_soon(self._run, self._loop, function, *arguments)

    def _run(self, loop: SteppedLoop, function: Callable[..., None], *arguments: Any) -> None:
        if loop is self._loop:  # not where its process is gone
            function(*arguments)

    @property
    def may_step(self) -> bool:
        return self._loop is not None and self._loop.may_step

    def step(self) -> None:
        assert self._loop is not None
        self._loop.step()

    def run(self) -> None:
        """Until nothing can be run without time or the outside."""
        while self.may_step or self.look_outside():
            if self.may_step:
                self.step()

    def next_due(self) -> float | None:
        return None if self._loop is None else self._loop.next_due()

    def look_outside(self) -> bool:
        return self._loop is not None and self._loop.look_outside()

    def let_go(self) -> None:
        """Whatever runs in it is given up."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.let_go()


class SteppedLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._manual_clock = clock
        self._stirred = False  #: something was put up to be run
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._threads = 0  #: calls in threads that have not come back
        self._looks = 0
        self._sockets = selectors.SelectSelector()
        super().__init__(self._sockets)
        self._own_sockets = len(self._sockets.get_map())

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._manual_clock()

    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        self._stirred = True
        return super().call_soon(callback, *arguments, context=context)

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        self._stirred = True
        return super().call_soon_threadsafe(callback, *arguments, context=context)

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = super().call_at(when, callback, *arguments, context=context)
        heapq.heappush(self._timers, (when, id(handle), handle))
        return handle

    def run_in_executor(self, executor: Any, func: Any, *arguments: Any) -> Any:  # type: ignore[override]
        self._threads += 1
        future = super().run_in_executor(executor, func, *arguments)
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, future: Any) -> None:
        self._threads -= 1

    # -- the test -----------------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """When the next `asyncio.sleep` or time-out is over; None: none waits."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    @property
    def may_step(self) -> bool:
        due = self.next_due()
        return self._stirred or (due is not None and due <= self.time())

    def step(self) -> None:
        """Whatever can be run now, once."""
        while self._timers and self._timers[0][0] <= self.time():
            heapq.heappop(self._timers)
        super().call_soon(self.stop)
        self._stirred = False
        self.run_forever()

    def look_outside(self) -> bool:
        """Wait a moment of real time for sockets and threads. False: there are none, or they were looked at long enough."""
        waits = self._threads > 0 or len(self._sockets.get_map()) > self._own_sockets
        if not waits or self._looks > MAX_LOOKS:
            return False
        ready = self._sockets.select(OUTSIDE_S)
        self._looks = 0 if ready else self._looks + 1
        self._stirred = self._stirred or bool(ready)
        return True

    def let_go(self) -> None:
        for task in asyncio.all_tasks(self):
            task.cancel()
        for _ in range(10):
            if self._stirred:
                self.step()
        self.close()
