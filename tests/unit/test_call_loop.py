"""The loop of asynchronous functions, as a thread: what is called runs there, and it ends with the job."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

from tidegate.task import call_loop
from tidegate.task.call_loop import CallLoopThread


def test_calls_run_in_order_in_one_thread_beside_the_caller() -> None:
    seen: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loop = CallLoopThread("tidegate-calls", seen.put)

    async def answer(number: int) -> None:
        await asyncio.sleep(0)
        seen.put((number, threading.current_thread().name))

    def start(number: int) -> None:
        tasks.append(asyncio.get_running_loop().create_task(answer(number)))

    tasks: list[Any] = []
    for number in range(3):
        loop.call(start, number)

    assert [seen.get(timeout=10) for _ in range(3)] == [(number, "tidegate-calls") for number in range(3)]
    loop.stop()
    assert "tidegate-calls" not in {thread.name for thread in threading.enumerate()}


def test_a_loop_that_was_never_used_has_no_thread() -> None:
    before = threading.active_count()
    CallLoopThread("tidegate-calls", print).stop()

    assert threading.active_count() == before


def test_what_does_not_end_in_time_is_cancelled(monkeypatch: Any) -> None:
    monkeypatch.setattr(call_loop, "CLOSE_S", 0.05)
    cancelled = threading.Event()
    tasks: list[Any] = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    loop = CallLoopThread("tidegate-calls", print)
    loop.call(lambda: tasks.append(asyncio.get_running_loop().create_task(never())))
    loop.stop()

    assert cancelled.wait(10)
