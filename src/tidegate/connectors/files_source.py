"""Files as a bounded source: text, CSV, JSON lines and Parquet. A split is a file.

Where it runs: paths are expanded on the driver, at construction (Parquet, for the schema) and before each attempt;
files are opened on the executors, so all of them must see the same paths.

A file must not change while a job reads it. Its size and modification time are noted when it is first opened and stored
with every position; a file that differs is refused, because a position in another file means nothing. Appending to a
file that the job has finished is not noticed: add new files instead.

Positions (all with `size` and `mtime_ns`):

    text, jsonl   {"offset": byte of the next line, "line": lines before it}
    csv           {"record": records before the next}, found again by parsing from the top: a quoted field may hold line
                  feeds, so no byte is known to begin a record
    parquet       {"row_group": g, "row": next row in it}
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tidegate.connectors.contract import JsonValue, ReaderContext, Source, SourceReader, Split
from tidegate.connectors.formats.contract import FileCursor, ReadSettings
from tidegate.connectors.formats.known import format_named
from tidegate.connectors.formats.parquet import open_parquet
from tidegate.connectors.local_paths import expand, local_path
from tidegate.connectors.row_reader import OneByOneReader, Records, SplitCursor
from tidegate.errors import ConfigurationError, ConnectorError


class Files(Source):
    """The records of files, in order within each file.

    :param paths: a file, a folder (read with its subfolders) or a glob, or several of them; bare paths or file:// URIs.
        Names that begin with "." or "_" are skipped.
    :param format: "text" (a record is a line, str), "csv" (with a header line), "jsonl" or "parquet".
    :param type: annotation or pyarrow schema of a record. Without it: csv gives dicts of str, jsonl whatever each line
        holds, parquet the schema of the first file.
    :param batch_rows: the most rows that one poll returns.
    :param delimiter: between the fields of a csv file.
    """

    bounded = True
    makes_new_records = True

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        format: str = "text",
        *,
        type: Any = None,
        batch_rows: int = 8192,
        encoding: str = "utf-8",
        delimiter: str = ",",
    ) -> None:
        known = format_named(format)
        if batch_rows < 1:
            raise ConfigurationError(f"batch_rows must be at least 1; got {batch_rows}.")
        if format == "text" and type not in (None, str):
            raise ConfigurationError("A line of a text file is a str; read it as text and map it, or use csv or jsonl.")
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        if not given:
            raise ConfigurationError("Give a file source at least one path.")
        self.paths = [local_path(path) for path in given]
        self.format = format
        if format == "text":
            type = str
        elif format == "parquet" and type is None:
            type = self._schema_of_first_file()
        self.record_type = type
        self.settings = ReadSettings(type, batch_rows, encoding, delimiter)
        known.check_readable(self.settings)

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split(path) for path in self._files()]

    def reader(self, context: ReaderContext) -> SourceReader:
        return OneByOneReader(context, self._open)

    def _files(self) -> list[str]:
        return sorted({file for path in self.paths for file in expand(path)})

    def _schema_of_first_file(self) -> Any:
        files = self._files()
        if not files:
            raise ConfigurationError(
                f"There are no Parquet files under {', '.join(self.paths)} to take the schema from. Give type=."
            )
        with open_parquet(files[0]) as first:
            return first.schema_arrow.remove_metadata()

    def _open(self, split: Split) -> SplitCursor:
        return _PinnedFile(split, format_named(self.format).cursor, self.settings)


class _PinnedFile(SplitCursor):
    """A file that is still the one which the position was noted in."""

    def __init__(self, split: Split, cursor_kind: type[FileCursor], settings: ReadSettings) -> None:
        self._path = split.id
        try:
            self._file = open(split.id, "rb")  # noqa: SIM115 - held until close
        except OSError as error:
            raise ConnectorError(
                f"The file {split.id} cannot be opened ({error}). Every executor must see the files of the job until "
                "it ends.",
                path=split.id,
            ) from error
        try:
            self._identity = self._stat()
            position = self._checked(split.position)
            self._cursor = cursor_kind(self._path, self._file, self._identity["size"], position, settings)
        except BaseException:
            self._file.close()
            raise

    def _stat(self) -> dict[str, int]:
        found = os.fstat(self._file.fileno())
        return {"size": found.st_size, "mtime_ns": found.st_mtime_ns}

    def _checked(self, position: JsonValue) -> dict[str, Any]:
        if position is None:
            return {}
        if not isinstance(position, dict):
            raise ConnectorError(
                f"The position of {self._path} is {position!r}, which is none of a file.", path=self._path
            )
        then = {name: position.get(name) for name in self._identity}
        if then != self._identity:
            raise self._changed(then, self._identity, "between the checkpoint and the restore")
        return position

    def _changed(self, then: dict[str, Any], now: dict[str, int], when: str) -> ConnectorError:
        return ConnectorError(
            f"The file {self._path} has changed {when}: it had {then['size']} bytes (modified at {then['mtime_ns']} "
            f"ns), now {now['size']} ({now['mtime_ns']} ns). A position in it means nothing any more. Put the old file "
            "back, or start without resume; new data belongs into new files.",
            path=self._path,
        )

    def read(self, wanted: int) -> Records | None:
        records = self._cursor.read(wanted)
        if records is None and (now := self._stat()) != self._identity:
            raise self._changed(self._identity, now, "while it was read")
        return records

    def position(self) -> JsonValue:
        return {**self._cursor.position(), **self._identity}

    def close(self) -> None:
        self._cursor.close()
        self._file.close()
