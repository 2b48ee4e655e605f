"""Asynchronous functions on a stream: what the user says, checked, as an operator. Driver only; builds the logical graph, runs
nothing."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.api.building import Asked, declared_type, named, need_instance
from tidegate.api.keys import make_key_selector
from tidegate.api.transformable import Transformable
from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError, GraphError
from tidegate.functions.asynchronous import (
    NO_RETRY,
    AsyncCalls,
    AsyncFunction,
    CallSettings,
    PlainCall,
    Retry,
    has_batch_form,
    in_flight_type,
)
from tidegate.functions.lookups import FunctionSource, LookupCache, LookupJoin, LookupSource
from tidegate.graph import specs
from tidegate.graph.key_selector import KeySelector
from tidegate.state.declarations import ListState, declared_states
from tidegate.types import RecordType, record_type, return_annotation_of

if TYPE_CHECKING:
    from tidegate.api.streams import DataStream

U = TypeVar("U")
MAX_CAPACITY = 1_000_000


class AsyncTransformable(Transformable):
    """A stream, keyed or not, that a function can ask the outside about."""

    @property
    def _own_key(self) -> KeySelector | None:
        """By which it is partitioned, where it is."""
        return None

    def async_map(
        self, function: Callable[[Any], Awaitable[U]] | AsyncFunction[Any, U], output_type: Any = None, *,
        ordered: bool = True, capacity: int = 100, timeout: Duration | None = "60s", retry: Retry | None = None,
        batch_size: int | None = None, returns: Any = None, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """One record out for each record in, by a call to the outside: a coroutine function, or an AsyncFunction. Many calls
        run at the same time, and what is in flight is part of checkpoints: an answer that stands in a completed one is not
        asked for again. As SQL over the whole input: `SELECT f(record) FROM input`, in its order where it is `ordered`.

            >>> async def price(item):
            ...     return {"tea": 3, "rope": 9}[item]
            >>> items = env.from_collection(["tea", "rope"], type=str)
            >>> list(items.async_map(price, returns=int, uid="prices").execute_and_collect())
            [3, 9]

        On a keyed stream the records of a key stay together, also at another parallelism.

        :param ordered: False: answers leave as they come, but none passes a watermark.
        :param capacity: records in flight in each subtask, answered or not; then it takes no more.
        :param timeout: for one record, with all its retries. Then it has failed.
        :param batch_size: at most so many records in one call of `async_invoke_batch`.
        """
        settings = call_settings(function, ordered, capacity, timeout, retry, batch_size)
        out = async_returns(function, declared_type(returns, output_type))
        calls = async_calls(function, settings)
        spec = async_spec(calls, self._own_key, self._upstream._type, out)
        return self._apply(spec, named("async_map", function), out, Asked(uid, name, parallelism, on_error=on_error))

    def lookup_join(
        self, source: LookupSource | Callable[[Any], Awaitable[Any]], function: Callable[[Any, Any], U] | None = None, *,
        on: str | int | Callable[[Any], Any], how: str = "left", cache: LookupCache | None = None, ordered: bool = True,
        capacity: int = 100, timeout: Duration | None = "60s", retry: Retry | None = None, returns: Any = None,
        uid: str | None = None, name: str | None = None, parallelism: int | None = None, on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """Each record with the row that the outside has for its key when it is asked: a coroutine function from the key to a
        row or None, or a table (`tg.TableLookup`). `function(record, row)` gives what leaves; without it that is the pair. As
        SQL over
        the whole input, for a table that does not change: `SELECT * FROM l LEFT JOIN r ON l.key = r.key`.

            >>> async def person(id):
            ...     return {1: "Ann"}.get(id)
            >>> visits = env.from_collection([(1, "/"), (2, "/tea")], type=tuple[int, str])
            >>> named = visits.lookup_join(person, lambda visit, name: (name, visit[1]), on=0, uid="people")
            >>> list(named.execute_and_collect())
            [('Ann', '/'), (None, '/tea')]

        :param on: the key of a record: a column, a position, or a function.
        :param how: "left": without a row, None stands for it. "inner": such records are left out.
        :param cache: what is remembered in each subtask, `tg.LookupCache(ttl="1min", rows=10_000)`. None: nothing.

        All else is as in `async_map`.
        """
        if how not in ("left", "inner"):
            raise ConfigurationError(f"lookup_join: how={how!r} is not one of left, inner")
        taken = self._upstream._type
        if not isinstance(source, LookupSource):
            async_calls(source, call_settings(source, ordered, capacity, timeout, retry, None))  # a coroutine function
            source = FunctionSource(source)
        key = make_key_selector(taken, (on,), None, "lookup_join").row_key()
        joined = LookupJoin(source, key, function or _pair, how, cache)
        settings = call_settings(joined, ordered, capacity, timeout, retry, source.batch_size)
        out = record_type(
            return_annotation_of(function, False) if returns is None and function is not None else returns
        )
        calls = AsyncCalls(joined, replace(settings, is_flat=True))
        spec = async_spec(calls, self._own_key, taken, out)
        asked = Asked(uid, name, parallelism, on_error=on_error)
        return self._apply(spec, named("lookup_join", function or _pair), out, asked)


def _pair(record: Any, row: Any) -> tuple[Any, Any]:
    return record, row


def call_settings(
    function: Any, ordered: bool, capacity: int, timeout: Duration | None, retry: Retry | None, batch_size: int | None
) -> CallSettings:
    """:raises ConfigurationError: for what makes no sense together."""
    if not isinstance(capacity, int) or not 0 < capacity <= MAX_CAPACITY:
        raise ConfigurationError(f"async_map(capacity={capacity!r}): a number of records, 1 to {MAX_CAPACITY}")
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigurationError(f'async_map(retry={retry!r}): write tg.Retry(3, "100ms", on=IOError)')
    is_batched = isinstance(function, AsyncFunction) and has_batch_form(function)
    if batch_size is not None and not is_batched:
        raise ConfigurationError("async_map(batch_size=) is for an AsyncFunction that defines async_invoke_batch")
    size = (batch_size or 32) if is_batched else 1
    if size < 1:
        raise ConfigurationError(f"async_map(batch_size={batch_size!r}): 1 or more")
    timeout_s = None if timeout is None else seconds(timeout, "async_map(timeout)")
    if timeout_s == 0:
        raise ConfigurationError("async_map(timeout) needs a time above 0, or None for none")
    return CallSettings(ordered, capacity, timeout_s, retry or NO_RETRY, min(size, capacity))


def async_calls(function: Any, settings: CallSettings) -> AsyncCalls:
    """:raises GraphError: for a function that cannot be awaited, or that has keyed state."""
    if isinstance(function, (type, AsyncFunction)):
        need_instance(function, AsyncFunction, "async_map")
        if declared_states(function):
            raise GraphError(
                f"{type(function).__name__} declares keyed state, which asynchronous functions cannot have: they run beside "
                "the task's thread, many at a time. Keep it in a KeyedProcessFunction before or after."
            )
        assert isinstance(function, AsyncFunction)
        return AsyncCalls(function, settings)
    if not callable(function):
        raise GraphError(f"async_map needs a coroutine function or an AsyncFunction, not a {type(function).__name__}")
    if (
        isinstance(function, FunctionType)
        and function.__name__ != "<lambda>"
        and not inspect.iscoroutinefunction(function)
    ):
        raise GraphError(
            f"async_map needs a coroutine function: write `async def {function.__name__}(...)`. For one that answers at "
            "once use map; for one that blocks, `await asyncio.to_thread(...)` in an `async def`."
        )
    return AsyncCalls(PlainCall(function), settings)


def async_spec(calls: AsyncCalls, key: KeySelector | None, taken: RecordType, out: RecordType) -> specs.AsyncSpec:
    if key is None:
        return specs.AsyncSpec(calls, None)

    class KeyedCalls(AsyncCalls):
        in_flight = ListState(in_flight_type(taken, out))

    return specs.AsyncSpec(KeyedCalls(calls.function, calls.settings), key)


def async_returns(function: Any, declared: Any) -> RecordType:
    """The type of the answers."""
    hook = function
    if isinstance(function, AsyncFunction):
        hook = function.async_invoke_batch if has_batch_form(function) else function.async_invoke
    if declared is None:
        declared = return_annotation_of(hook, isinstance(function, AsyncFunction) and has_batch_form(function))
    return record_type(declared)
