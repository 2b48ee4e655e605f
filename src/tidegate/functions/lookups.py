"""Lookup joins: each record with what the outside has for its key, asked for when the record comes. Executor; the asyncio loop.

What was found is remembered for a while (LookupCache), also that there was nothing. The cache is of one subtask and of one
attempt, and no state: the answer for each record is what checkpoints keep (task/operators/async_calls.py). Two records that
ask for one key at the same time ask once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError
from tidegate.functions.asynchronous import AsyncContext, AsyncFunction
from tidegate.functions.process import Context
from tidegate.types.copying import copy_record


@dataclass(frozen=True, slots=True)
class LookupCache:
    """What a lookup remembers in each subtask: so many rows, the ones asked for last, each for so long.

    >>> tg.LookupCache(ttl="1min", rows=10_000)
    LookupCache(ttl='1min', rows=10000)
    """

    ttl: Duration = "1min"
    rows: int = 10_000

    def __post_init__(self) -> None:
        if seconds(self.ttl, "LookupCache(ttl)") <= 0 or self.rows < 1:
            raise ConfigurationError(f"LookupCache(ttl={self.ttl!r}, rows={self.rows}): both are above 0")


class LookupSource(ABC):
    """Something that has a row for a key."""

    batch_size: int = 1  #: keys that are asked for at once

    async def open(self) -> None:
        """In the loop, before the first lookup."""

    @abstractmethod
    async def look_up(self, keys: list[Any]) -> Sequence[Any]:
        """For each key its row, or None."""

    async def close(self) -> None: ...


class FunctionSource(LookupSource):
    """A coroutine function of the user's: from a key to its row, or None."""

    def __init__(self, function: Callable[[Any], Awaitable[Any]]) -> None:
        self._function = function

    async def look_up(self, keys: list[Any]) -> Sequence[Any]:
        return [await self._function(key) for key in keys]


class LookupJoin(AsyncFunction[Any, list[Any]]):
    """The function of `lookup_join`; its answer is a list of none or one record."""

    def __init__(
        self,
        source: LookupSource,
        key: Callable[[Any], Hashable],
        pair: Callable[[Any, Any], Any],
        how: str,
        cache: LookupCache | None,
    ) -> None:
        self._source = source
        self._key = key
        self._pair = pair
        self._keeps_left = how == "left"
        self._rows_max = 0 if cache is None else cache.rows
        self._ttl_s = 0.0 if cache is None else seconds(cache.ttl, "LookupCache(ttl)")
        self._cached: OrderedDict[Hashable, tuple[float, Any]] = (
            OrderedDict()
        )  #: until when, and the row; oldest use first
        self._asking: dict[Hashable, asyncio.Future[Any]] = {}

    def open(self, ctx: Context, /) -> None:
        ctx.gauge("cached_rows", lambda: len(self._cached))
        self._hits, self._misses = ctx.counter("cache_hits"), ctx.counter("cache_misses")

    async def async_open(self, ctx: Context, /) -> None:
        await self._source.open()

    async def async_close(self) -> None:
        await self._source.close()

    async def async_invoke_batch(self, values: list[Any], ctx: AsyncContext, /) -> Sequence[list[Any]]:
        keys = [self._key(value) for value in values]
        found = await self._found(list(dict.fromkeys(keys)))
        out: list[list[Any]] = []
        for value, key in zip(values, keys, strict=True):
            row = found[key]
            joined = row is not None or self._keeps_left
            out.append([self._pair(value, copy_record(row))] if joined else [])
        return out

    async def _found(self, keys: list[Any]) -> dict[Any, Any]:
        loop = asyncio.get_running_loop()
        now = loop.time()
        found: dict[Any, Any] = {}
        others: dict[Any, asyncio.Future[Any]] = {}
        missing: list[Any] = []
        for key in keys:
            until, row = self._cached.get(key, (now, None))
            if until > now:
                self._cached.move_to_end(key)
                found[key] = row
            elif key in self._asking:
                others[key] = self._asking[key]
            else:
                missing.append(key)
        self._hits.inc(len(found))
        self._misses.inc(len(missing))
        if missing:
            found |= await self._asked(missing)
        for key, future in others.items():
            try:
                found[key] = await asyncio.shield(future)
            except asyncio.CancelledError:
                if not future.cancelled() or _is_being_cancelled():
                    raise
                found |= await self._found([key])  # whoever had asked gave up: that is no answer for others
        return found

    async def _asked(self, keys: list[Any]) -> dict[Any, Any]:
        loop = asyncio.get_running_loop()
        futures = {key: loop.create_future() for key in keys}
        self._asking |= futures
        try:
            rows = dict(zip(keys, await self._source.look_up(keys), strict=True))
        except BaseException as error:
            for future in futures.values():
                if isinstance(error, Exception):
                    future.set_exception(error)
                    future.exception()  # whoever waits gets it; nobody need
                else:
                    future.cancel()
            raise
        finally:
            for key in keys:
                self._asking.pop(key, None)
        for key, row in rows.items():
            futures[key].set_result(row)
            self._remember(key, row, loop.time() + self._ttl_s)
        return rows

    def _remember(self, key: Hashable, row: Any, until: float) -> None:
        if self._rows_max:
            self._cached[key] = (until, row)
            self._cached.move_to_end(key)
            while len(self._cached) > self._rows_max:
                self._cached.popitem(last=False)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
