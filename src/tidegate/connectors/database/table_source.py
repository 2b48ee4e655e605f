"""The rows of a table as a bounded source. Splits and their bounds on the driver; pages of rows on the executors.

A table is read along a unique key, a page at a time: `WHERE key > <last> ORDER BY key LIMIT n`. No cursor and no transaction
is held, so a reader can stop and continue anywhere. With an integer key the range from the smallest to the largest is divided
into splits; the bounds are part of the positions, so they are those of the first look for as long as the job lives.

What is read: every row that is there from the first look to the end, once. A row that is added, changed or deleted
meanwhile may be read in either form, or not; one whose key lies outside the bounds of the first look is not. For a view of
one moment copy the table first.

Position: {"above": the key before the first row, "to": the last key of the split or null, "after": the last key read}.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.connectors.contract import JsonValue, ReaderContext, Source, SourceReader, Split
from tidegate.connectors.database.session import Column, Session, connect
from tidegate.connectors.database.urls import parse_url
from tidegate.connectors.row_reader import OneByOneReader, SplitCursor
from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.types import DataType, RecordType, record_type
from tidegate.types.containers import OptionalType
from tidegate.types.scalars import DecimalType

PAGE_ROWS = 2000
#: Types of keys that compare as they are sorted, and whose values can be part of a position.
_TEXT_KEYS = ("char", "varchar", "text", "citext", "uuid", "bigint")


class DatabaseTable(Source):
    """Reads a table of PostgreSQL, MySQL or MariaDB. Bounded.

    :param url: postgresql://user:password@host/database or mysql://...
    :param table: its name, or schema.table
    :param type: a dataclass or pyarrow schema with the columns to read; default: all columns, as the database has them
    :param key: the column to read along: unique, not null, integer, text or UUID; default: the primary key
    :param splits: how many parts can be read at once (integer keys). Keep it when a job is resumed: parts are named by it
    :param password_env: an environment variable of the driver that holds the password, in place of the URL
    """

    bounded = True
    makes_new_records = True

    def __init__(
        self,
        url: str,
        table: str,
        *,
        type: Any = None,
        key: str | None = None,
        splits: int = 8,
        password_env: str | None = None,
    ) -> None:
        if splits < 1:
            raise ConfigurationError(f"splits must be at least 1; got {splits}.")
        self.url = parse_url(url, password_env)
        self.table = table
        session = connect(self.url, "")
        try:
            with session.explained(f"looking at table {table}", table):
                columns = {column.name: column for column in session.columns_of(table)}
                keys = session.unique_keys(table)
        finally:
            session.close()
        if not columns:
            raise ConfigurationError(f"{self.url}: there is no table {table!r}. Create it, or correct its name.")
        self.key = _key_of(keys, key, table)
        self._key_is_integer = _arrow_type(columns[self.key]) == pa.int64()
        if not self._key_is_integer and not columns[self.key].type.startswith(_TEXT_KEYS):
            raise ConfigurationError(
                f"The key {self.key!r} of table {table!r} is of type {columns[self.key].type}; a table is read along an "
                "integer or a text. Name another unique column with key=."
            )
        self.splits = splits if self._key_is_integer else 1
        self.record_type = _schema_of(columns) if type is None else type
        if missing := [name for name in record_type(self.record_type).field_names if name not in columns]:
            raise ConfigurationError(
                f"The table {table!r} has no column {', '.join(missing)}; it has {', '.join(columns)}."
            )

    def discover_splits(self, parallelism: int) -> list[Split]:
        if not self._key_is_integer:
            return [Split("0/1", {"above": None, "to": None, "after": None})]
        session = connect(self.url, "")
        try:
            name = session.quoted(self.key)
            with session.explained(f"looking for the bounds of {self.table}", self.table):
                ((low, high),) = session.run(f"SELECT MIN({name}), MAX({name}) FROM {session.quoted(self.table)}")
        finally:
            session.close()
        if low is None:
            low, high = 0, -1
        low, high = int(low), int(high)
        edges = [low - 1 + (high - low + 1) * number // self.splits for number in range(self.splits + 1)]
        return [
            Split(f"{number}/{self.splits}", {"above": edges[number], "to": edges[number + 1], "after": None})
            for number in range(self.splits)
        ]

    def reader(self, context: ReaderContext) -> SourceReader:
        return OneByOneReader(context, lambda split: _TableCursor(self, split))


class _TableCursor(SplitCursor):
    """One split; a connection of its own while it is read."""

    def __init__(self, source: DatabaseTable, split: Split) -> None:
        self._source = source
        self._type: RecordType = record_type(source.record_type)
        position = split.position
        assert isinstance(position, dict)
        self._above, self._to, self._after = position["above"], position["to"], position["after"]
        self._session: Session | None = None
        self._ended = False

    def read(self, wanted: int) -> pa.RecordBatch | None:
        if self._ended or (self._to is not None and self._above == self._to):
            return None
        if self._session is None:
            self._session = connect(self._source.url, "")
        names = self._type.field_names
        rows = self._page(self._session, [*names, self._source.key])
        if not rows:
            return None
        self._ended = len(rows) < PAGE_ROWS
        last = rows[-1][-1]
        self._after = last if isinstance(last, int) else str(last)  # PostgreSQL's UUIDs are objects
        columns = list(zip(*rows, strict=True))
        return self._batch(columns[:-1])

    def _page(self, session: Session, names: Sequence[str]) -> list[tuple[Any, ...]]:
        key = session.quoted(self._source.key)
        after = self._above if self._after is None else self._after
        limits = [(f"{key} > %s", after)] if after is not None else []
        limits += [(f"{key} <= %s", self._to)] if self._to is not None else []
        where = f"WHERE {' AND '.join(text for text, _ in limits)} " if limits else ""
        with session.explained(f"reading {self._source.table}", self._source.table):
            return session.run(
                f"SELECT {', '.join(map(session.quoted, names))} FROM {session.quoted(self._source.table)} "
                f"{where}ORDER BY {key} LIMIT {PAGE_ROWS}",
                *(value for _, value in limits),
            )

    def _batch(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        arrays = []
        for name, type, values in zip(self._type.field_names, self._type.field_types, columns, strict=True):
            try:
                arrays.append(type.to_arrow([_fitted(value, type) for value in values]))
            except TypeDeclarationError as error:
                raise TypeDeclarationError(
                    f"{self._source.url}: column {name!r} of table {self._source.table!r}: {error} Declare the type that "
                    "the column has."
                ) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._type.schema)

    def position(self) -> JsonValue:
        return {"above": self._above, "to": self._to, "after": self._after}

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _fitted(value: Any, type: DataType) -> Any:
    """What drivers give in another class than the declared one, where nothing is lost."""
    if value is None:
        return None
    arrow = type.arrow
    if pa.types.is_timestamp(arrow) and arrow.tz is not None and value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # MySQL gives no zone; the session's is UTC
    if pa.types.is_boolean(arrow) and value in (0, 1):
        return bool(value)  # MySQL's boolean is a small integer, which may hold others
    if pa.types.is_timestamp(arrow) and arrow.tz is None and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    if not pa.types.is_string(arrow) or isinstance(value, str | bytes) or _holds_decimals(type):
        return value
    if isinstance(value, timedelta):
        return _time_text(value)
    return msgspec.json.encode(value).decode() if isinstance(value, (dict, list)) else str(value)


def _holds_decimals(type: DataType) -> bool:
    """They are text in columns, and Decimals in records."""
    return isinstance(type.inner if isinstance(type, OptionalType) else type, DecimalType)


def _time_text(value: timedelta) -> str:
    """As databases write it: 25:00:03.500000."""
    seconds, rest = divmod(abs(value), timedelta(seconds=1))
    text = f"{'-' if value < timedelta() else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{rest.microseconds:06}" if rest else text


def _key_of(keys: list[list[str]], wanted: str | None, table: str) -> str:
    single = [columns[0] for columns in keys if len(columns) == 1]
    if wanted is None and single:
        return single[0]
    if wanted is not None and wanted in single:
        return wanted
    raise ConfigurationError(
        f"The table {table!r} has no unique index on one column{'' if wanted is None else f' {wanted!r}'} that is NOT NULL. "
        "A table is read along such a column, or rows could be read twice or not at all."
    )


def _schema_of(columns: dict[str, Column]) -> pa.Schema:
    return pa.schema(
        [pa.field(column.name, _arrow_type(column), nullable=column.nullable) for column in columns.values()]
    )


def _arrow_type(column: Column) -> pa.DataType:
    """As the stream sees it: exact types where there is one, else text."""
    name = column.type
    if name.startswith(("tinyint(1)", "boolean")):
        return pa.bool_()
    for prefixes, arrow in _TYPES:
        if name.startswith(prefixes) and not (arrow == pa.int64() and "unsigned" in name and name.startswith("bigint")):
            return arrow
    return pa.string()


_TYPES: list[tuple[tuple[str, ...], pa.DataType]] = [
    (("smallint", "integer", "int", "bigint", "tinyint", "mediumint"), pa.int64()),
    (("double", "real", "float"), pa.float64()),
    (("bytea", "blob", "binary", "varbinary", "tinyblob", "mediumblob", "longblob"), pa.binary()),
    (("timestamp with time zone",), pa.timestamp("us", tz="UTC")),
    (("timestamp", "datetime"), pa.timestamp("us")),
    (("date",), pa.date32()),
]
