"""Every state backend there is, for suites that hold for all of them; one that is added here meets them all.

That of sqlite_backend.py is there to show that a backend is one module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rocksdb_kit import AMPLE, LITTLE, RocksBackends, rocks_backends
from sqlite_backend import SqliteStateBackend
from state_kit import MAX_PARALLELISM, Everything, backend_for

from tidegate.state.backend import KeyedStateBackend, bind_states
from tidegate.state.keys import KeyType

ROOMS = {"rocksdb": AMPLE, "rocksdb without memory": LITTLE}
EVERY_BACKEND = ["heap", "sqlite", *ROOMS]


class Backends:
    """Makes backends of one sort."""

    def __init__(self, make: Callable[..., KeyedStateBackend], rocks: RocksBackends | None = None) -> None:
        self._make = make
        self.rocks = rocks  #: None: they are not in RocksDB

    def new(
        self,
        key_type: KeyType,
        key_groups: range = range(MAX_PARALLELISM),
        wall_clock: Callable[[], float] = time.time,
    ) -> KeyedStateBackend:
        return self._make(key_type, key_groups, wall_clock=wall_clock)

    def bound(
        self,
        key_type: KeyType,
        columnar: bool = False,
        key_groups: range = range(MAX_PARALLELISM),
        function: Any = None,
    ) -> tuple[KeyedStateBackend, Any]:
        """A backend, and a function with handles of it."""
        backend, function = self.new(key_type, key_groups), Everything() if function is None else function
        bind_states(function, backend, columnar)
        return backend, function


@contextmanager
def backends_of(sort: str) -> Iterator[Backends]:
    if sort == "heap":
        yield Backends(backend_for)
    elif sort == "sqlite":
        yield Backends(partial(SqliteStateBackend, max_parallelism=MAX_PARALLELISM))
    else:
        with rocks_backends(ROOMS[sort]) as rocks:
            yield Backends(rocks.backend, rocks)
