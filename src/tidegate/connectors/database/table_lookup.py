"""Rows of a table by their key, for lookup joins. Executor; the asyncio loop, and a thread for each query that runs.

One query for as many keys as wait: `SELECT ... WHERE key IN (...)`. Of several rows with one key the last that the database
gives counts: the key should be unique. Rows are dicts by column.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from tidegate.connectors.database.session import Session, connect
from tidegate.connectors.database.urls import parse_url
from tidegate.errors import ConfigurationError
from tidegate.functions.lookups import LookupSource

BATCH_KEYS = 100


class TableLookup(LookupSource):
    """A table of PostgreSQL, MySQL or MariaDB, by one column: `tg.TableLookup(url, "customers", key="id")`.

    :param columns: which to read; default: all. The key is always among them.
    :param password_env: an environment variable of the driver that holds the password, in place of the URL
    """

    batch_size = BATCH_KEYS

    def __init__(
        self, url: str, table: str, *, key: str, columns: Sequence[str] | None = None, password_env: str | None = None
    ) -> None:
        self.url = parse_url(url, password_env)
        self.table = table
        session = connect(self.url, "")
        try:
            with session.explained(f"looking at table {table}", table):
                types = {column.name: column.type for column in session.columns_of(table)}
        finally:
            session.close()
        known = list(types)
        if not known:
            raise ConfigurationError(f"{self.url}: there is no table {table!r}. Create it, or correct its name.")
        self.columns = list(dict.fromkeys([key, *(known if columns is None else columns)]))
        if missing := [name for name in self.columns if name not in known]:
            raise ConfigurationError(
                f"The table {table!r} has no column {', '.join(missing)}; it has {', '.join(known)}."
            )
        self._is_padded = types[key].startswith(("character(", "char("))  #: blanks at the end of a value mean nothing
        self._session: Session | None = None
        self._free: asyncio.Lock | None = None
        self._running: asyncio.Future[list[dict[str, Any] | None]] | None = None

    async def look_up(self, keys: list[Any]) -> Sequence[Any]:
        """One connection, one query at a time. A call that is given up does not end its thread, which has the connection still:
        the next one waits for it."""
        self._free = self._free or asyncio.Lock()
        async with self._free:
            await self._is_idle()
            self._running = asyncio.ensure_future(asyncio.to_thread(self._query, keys))
            return await asyncio.shield(self._running)

    async def _is_idle(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.exception()  # it was told to whoever asked, or nobody is left to be told

    def _query(self, keys: list[Any]) -> list[dict[str, Any] | None]:
        if self._session is None:
            self._session = connect(self.url, "")
        session = self._session
        names = ", ".join(map(session.quoted, self.columns))
        holes = ", ".join(["%s"] * len(keys))
        where = f"{session.quoted(self.columns[0])} IN ({holes})"
        doing = f"looking up {len(keys)} keys in {self.table}"
        try:
            with session.explained(doing, self.table):
                rows = session.run(f"SELECT {names} FROM {session.quoted(self.table)} WHERE {where}", *keys)
        except BaseException:
            self._session = None  # the next attempt gets a new connection
            with contextlib.suppress(Exception):  # it may be lost
                session.close()
            raise
        found = {self._plain(row[0]): dict(zip(self.columns, row, strict=True)) for row in rows}
        self._check_types(keys, found, doing)
        return [found.get(self._plain(key)) for key in keys]

    def _plain(self, key: Any) -> Any:
        return key.rstrip(" ") if self._is_padded and isinstance(key, str) else key

    def _check_types(self, keys: list[Any], found: dict[Any, Any], doing: str) -> None:
        """A database takes '1' for 1, and Python does not: every record would be without a row, and nobody would know why."""
        asked = set(keys)
        for other in found:
            if other not in asked and not any(isinstance(key, type(other)) for key in keys):
                raise ConfigurationError(
                    f"{self.url}: {doing}: the column {self.columns[0]!r} holds {type(other).__name__}, and the keys of the "
                    f"records are {type(keys[0]).__name__}, as {keys[0]!r}. Give keys of the type of the column: "
                    "on=lambda record: ..."
                )

    async def close(self) -> None:
        await self._is_idle()
        if self._session is not None:
            await asyncio.to_thread(self._session.close)
            self._session = None
