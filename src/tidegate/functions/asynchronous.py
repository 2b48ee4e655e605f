"""Asynchronous functions: one call to the outside for each record, many of them at the same time. They run on the executors, in
the asyncio loop of the slot's process, and never in the task's thread.

    class Score(tg.AsyncFunction):
        async def async_open(self, ctx):
            self.client = httpx.AsyncClient()

        async def async_invoke(self, event, ctx):
            answer = await self.client.post(URL, json=event.features)
            return event.id, answer.json()["score"]

What is in flight is part of every checkpoint: the records, and the answers that have come. An answer that stands in a completed
checkpoint is never asked for again; a record without one is asked about again after a failure, so a call may happen twice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, Union

from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError
from tidegate.functions.process import Context, In, Out
from tidegate.types import RecordType, stored_annotation

ExceptionTypes: TypeAlias = Union[type[BaseException], tuple[type[BaseException], ...]]


class AsyncContext:
    """What an asynchronous function may ask of one call. Of that call alone: others run at the same time."""

    __slots__ = ("_timestamps", "attempt", "function")

    def __init__(self, function: Context, timestamps: list[int | None], attempt: int) -> None:
        self.function = function  #: job, uid, subtask and the function's counters: one for all calls
        self.attempt = attempt  #: 1, and one more with each retry
        self._timestamps = timestamps

    def timestamp(self) -> Any:
        """The record's event time in ms; None where the stream has none. Of a batch that of its first record."""
        return self._timestamps[0]

    def timestamps(self) -> list[int | None]:
        """Of all records of a batch."""
        return self._timestamps


class AsyncFunction(Generic[In, Out]):
    """A call for each record, or for several at once; define `async_invoke` or `async_invoke_batch`.

        >>> class Double(tg.AsyncFunction):
        ...     async def async_invoke(self, n, ctx):
        ...         return n * 2
        >>> harness(Double()).process_many([1, 2])
        [2, 4]

    Classic mistake: to block in it (`time.sleep`, `requests.get`). It stops every call of the slot; use an asynchronous
    client, or `await asyncio.to_thread(requests.get, url)`.
    """

    def open(self, ctx: Context, /) -> None:
        """In the task's thread, before the first record of each attempt. May take its time."""

    async def async_open(self, ctx: Context, /) -> None:
        """In the loop, before the first call: for clients that belong to a loop. It may take as long as `timeout=` says; what
        it raises fails the job, and no record."""

    async def async_invoke(self, value: In, ctx: AsyncContext, /) -> Out:
        """The answer for one record."""
        raise NotImplementedError(f"{type(self).__name__} must define async_invoke(self, value, ctx)")

    async def async_invoke_batch(self, values: list[In], ctx: AsyncContext, /) -> Sequence[Out]:
        """One answer for each of several records, in their order: for models. As many records as wait, at most `batch_size`."""
        raise NotImplementedError(f"{type(self).__name__} must define async_invoke_batch(self, values, ctx)")

    def timeout(self, value: In, ctx: AsyncContext, /) -> Out:
        """What stands for an answer that has not come in time; called in the loop. Not defined: the record has failed."""
        raise TimeoutError

    async def async_close(self) -> None:
        """In the loop, at the end of the job."""

    def close(self) -> None:
        """In the task's thread, at the end of the job."""


def has_batch_form(function: AsyncFunction[Any, Any]) -> bool:
    return type(function).async_invoke_batch is not AsyncFunction.async_invoke_batch


def has_timeout(function: AsyncFunction[Any, Any]) -> bool:
    return type(function).timeout is not AsyncFunction.timeout


@dataclass(frozen=True, slots=True)
class Retry:
    """Ask again: so many times in all, after `delay`, twice as long each time up to `most`, and up to a quarter longer by
    chance.

    >>> tg.Retry(3, "100ms", on=IOError).pause_s(attempt=2, chance=0.0)
    0.2
    """

    attempts: int = 3
    delay: Duration = "100ms"
    on: ExceptionTypes = Exception  #: others fail at once
    backoff: float = 2.0
    most: Duration = "30s"

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.backoff < 1:
            raise ConfigurationError(
                f"Retry(attempts={self.attempts}, backoff={self.backoff}): both are 1 or more; attempts counts the first call"
            )
        seconds(self.delay, "Retry(delay)")
        seconds(self.most, "Retry(most)")

    def is_worth_it(self, error: BaseException, attempt: int) -> bool:
        """After that many attempts."""
        return attempt < self.attempts and isinstance(error, self.on)

    def pause_s(self, attempt: int, chance: float | None = None) -> float:
        """After that many attempts have failed."""
        pause = min(seconds(self.delay, "delay") * self.backoff ** (attempt - 1), seconds(self.most, "most"))
        return pause * (1 + 0.25 * (random.random() if chance is None else chance))


NO_RETRY = Retry(attempts=1)


@dataclass(frozen=True, slots=True)
class CallSettings:
    """How an asynchronous operator makes its calls."""

    ordered: bool
    capacity: int  #: records in flight in each subtask, answered or not
    timeout_s: float | None  #: for one record, with all its retries
    retry: Retry
    batch_size: int  #: 1 where the function has no batch form
    is_flat: bool = False  #: an answer is a list of records


class PlainCall(AsyncFunction[Any, Any]):
    """A coroutine function as an AsyncFunction."""

    def __init__(self, function: Any) -> None:
        self.function = function


IN_FLIGHT = "in_flight"  #: the state that records in flight are stored as


def in_flight_type(taken: RecordType, out: RecordType) -> Any:
    """The type of a stored row, as an annotation: its place, timestamp, the record, and the answers if they have come."""
    return tuple[int, int | None, stored_annotation(taken), list[stored_annotation(out)] | None]  # type: ignore[misc]


class AsyncCalls:
    """What an asynchronous operator is made of: the user's function and how it is called."""

    def __init__(self, function: AsyncFunction[Any, Any], settings: CallSettings) -> None:
        self.function = function
        self.settings = settings

    @property
    def owner(self) -> Any:
        """What the user has written: it may keep operator state."""
        return self.function.function if isinstance(self.function, PlainCall) else self.function
