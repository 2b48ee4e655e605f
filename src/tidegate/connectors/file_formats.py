"""How each file format is read from a position. Executor, the task's thread.

A cursor gets an open binary file, which the caller closes, and continues at a position that it once gave out itself.
The size is the one that was noted when the file was first opened: what was appended since is not read.

An error of the data names the file and the line.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import os
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.json_records import json_decoder
from tidegate.connectors.row_reader import Records, SplitCursor
from tidegate.errors import ConfigurationError, ConnectorError, TypeDeclarationError
from tidegate.types import DataType, RecordType, record_type
from tidegate.types.arrow_types import ArrowType
from tidegate.types.pickled import PickledType
from tidegate.types.scalars import is_bytes, is_text

MAX_LINE_BYTES = 64 * 1024 * 1024  #: a file without line feeds must not fill the memory
_CHUNK_BYTES = 256 * 1024
_LINE_FEED = ord("\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  #: of UTF-8; spreadsheets write it


@dataclass(frozen=True, slots=True)
class ReadSettings:
    type: Any  #: annotation, pyarrow schema or None
    batch_rows: int
    encoding: str
    delimiter: str


class FileCursor(SplitCursor):
    """A place in one file."""

    def __init__(self, path: str, file: BinaryIO, size: int, position: dict[str, Any], settings: ReadSettings) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._settings = settings
        self._start(position)

    @abstractmethod
    def _start(self, position: dict[str, Any]) -> None:
        """Continue there; {} is the beginning."""

    @abstractmethod
    def position(self) -> dict[str, Any]: ...

    def _bad_line(self, line: int, problem: object) -> ConnectorError:
        return ConnectorError(
            f"{self._path}, line {line}: {problem}. Correct the file and start again without resume, or read it as "
            "text and skip what does not parse.",
            path=self._path,
            line=line,
        )


# -- lines --------------------------------------------------------------------------------------------------------


class _LineCursor(FileCursor):
    """Cuts at line feeds in the bytes, so an offset is exact whatever the characters. "\\r\\n" ends a line too."""

    def _start(self, position: dict[str, Any]) -> None:
        self._offset: int = position.get("offset", 0)
        self._line: int = position.get("line", 0)  #: lines before the offset
        self._prepare()

    def _prepare(self) -> None: ...

    def position(self) -> dict[str, Any]:
        return {"offset": self._offset, "line": self._line}

    def read(self, wanted: int) -> list[Any] | None:
        chunk = self._whole_lines(min(wanted, self._settings.batch_rows))
        if not chunk:
            return None
        data = chunk.removeprefix(_BYTE_ORDER_MARK) if self._offset == 0 else chunk
        lines = data.split(b"\n")
        if not lines[-1]:  # behind the last line feed; a last line without one stays
            lines.pop()
        if b"\r" in data:
            lines = [line.removesuffix(b"\r") for line in lines]
        records = self._parsed(lines)
        self._offset += len(chunk)
        self._line += len(lines)
        return records

    @abstractmethod
    def _parsed(self, lines: list[bytes]) -> list[Any]: ...

    def _whole_lines(self, most: int) -> bytes:
        """Up to `most` lines at the offset, with their line feeds; empty at the end of the file."""
        left = self._size - self._offset
        wanted = _CHUNK_BYTES
        while True:
            asked = min(wanted, left)
            chunk = os.pread(self._file.fileno(), asked, self._offset)
            if len(chunk) < asked:
                raise ConnectorError(
                    f"The file {self._path} was cut short while it was read: it had {self._size} bytes, and ends at "
                    f"{self._offset + len(chunk)} now. Put the old file back.",
                    path=self._path,
                )
            feeds = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == _LINE_FEED)
            if asked == left and len(feeds) < most:
                return chunk
            if len(feeds) > 0:
                return chunk[: int(feeds[min(len(feeds), most) - 1]) + 1]
            if asked >= MAX_LINE_BYTES:
                raise self._bad_line(self._line + 1, f"longer than {MAX_LINE_BYTES} bytes")
            wanted *= 4


class TextCursor(_LineCursor):
    def _parsed(self, lines: list[bytes]) -> list[str]:
        encoding = self._settings.encoding
        try:
            return [line.decode(encoding) for line in lines]
        except UnicodeDecodeError:
            for number, line in enumerate(lines, start=self._line + 1):
                try:
                    line.decode(encoding)
                except UnicodeDecodeError as error:
                    raise self._bad_line(number, error) from error
            raise


class JsonLinesCursor(_LineCursor):
    """A JSON value a line; blank lines are skipped. Typed lines are read as FileSink writes them."""

    def _prepare(self) -> None:
        self._decode = json_decoder(self._settings.type).decode

    def _parsed(self, lines: list[bytes]) -> list[Any]:
        decode = self._decode
        try:
            return [decode(line) for line in lines if line and not line.isspace()]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            for number, line in enumerate(lines, start=self._line + 1):
                try:
                    if line and not line.isspace():
                        decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise self._bad_line(number, error) from error
            raise


# -- CSV ----------------------------------------------------------------------------------------------------------


class CsvCursor(FileCursor):
    """Records of a CSV file with a header line. Untyped: dicts of str. Typed: Arrow batches; columns are found by name
    for dataclasses and schemas, by place for tuples and scalars. An empty field of a text column is an empty text, of
    any other column null, where the type allows it."""

    def _start(self, position: dict[str, Any]) -> None:
        settings = self._settings
        encoding = (
            "utf-8-sig" if settings.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else settings.encoding
        )
        self._text = io.TextIOWrapper(self._file, encoding=encoding, newline="")
        self._reader = csv.reader(self._text, delimiter=settings.delimiter, strict=True)
        self._rows_with_lines = self._without_blank_lines()
        self._type: RecordType = record_type(settings.type)
        _, self._header = next(self._rows_with_lines, (1, []))
        self._columns = self._column_places()
        self._record: int = position.get("record", 0)
        skipped = sum(1 for _ in islice(self._rows_with_lines, self._record))
        if skipped != self._record:
            raise ConnectorError(
                f"The position in {self._path} is behind {self._record} records, but it has {skipped}.", path=self._path
            )

    def position(self) -> dict[str, Any]:
        return {"record": self._record}

    def _without_blank_lines(self) -> Iterator[tuple[int, list[str]]]:
        """(line that the record begins at, fields)"""
        while True:
            line = self._reader.line_num + 1
            try:
                fields = next(self._reader)
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                raise self._bad_line(line, error) from error
            if fields:
                yield line, fields

    def _column_places(self) -> list[int]:
        """Where in a record each column of the type stands."""
        if not self._type.typed or not self._header:
            return []
        names = self._type.field_names
        if not _has_field_names(self._type):
            if len(names) != len(self._header):
                raise self._bad_line(1, f"the header has {len(self._header)} columns, the type {len(names)}")
            return list(range(len(names)))
        missing = [name for name in names if name not in self._header]
        if missing:
            raise self._bad_line(1, f"the header lacks {', '.join(missing)}; it has {', '.join(self._header)}")
        return [self._header.index(name) for name in names]

    def read(self, wanted: int) -> Records | None:
        lines: list[int] = []
        records: list[list[str]] = []
        width = len(self._header)
        for line, fields in islice(self._rows_with_lines, min(wanted, self._settings.batch_rows)):
            if len(fields) != width:
                raise self._bad_line(line, f"{len(fields)} fields, the header has {width}")
            lines.append(line)
            records.append(fields)
        if not records:
            return None
        if not self._type.typed:
            made: Records = [dict(zip(self._header, fields, strict=True)) for fields in records]
        else:
            by_place = list(zip(*records, strict=True))
            arrays = [
                self._converted(by_place[place], name, column_type, lines)
                for place, name, column_type in zip(
                    self._columns, self._type.field_names, self._type.field_types, strict=True
                )
            ]
            made = pa.RecordBatch.from_arrays(arrays, schema=self._type.schema)
        self._record += len(records)
        return made

    def _converted(self, texts: tuple[str, ...], name: str, column_type: DataType, lines: list[int]) -> pa.Array:
        try:
            return _from_text(texts, column_type)
        except _CONVERSION_ERRORS:
            for line, text in zip(lines, texts, strict=True):
                try:
                    _from_text((text,), column_type)
                except _CONVERSION_ERRORS as error:
                    problem = f"column {name!r}: {text!r} is no {column_type.name}"
                    raise self._bad_line(line, problem) from error
            raise

    def close(self) -> None:
        # The file is the caller's; without this the wrapper would close it a second time when it is collected.
        if not self._text.closed:
            self._text.detach()


_CONVERSION_ERRORS = (msgspec.MsgspecError, pa.ArrowException, TypeDeclarationError, ValueError)


def _from_text(texts: tuple[str, ...], column_type: DataType) -> pa.Array:
    """A whole column at once. Raises one of _CONVERSION_ERRORS."""
    if is_text(column_type.arrow):
        values: list[Any] = list(texts)
    else:
        values = [text or None for text in texts]
    if isinstance(column_type, ArrowType):
        if is_bytes(column_type.arrow):
            values = [None if text is None else base64.b64decode(text, validate=True) for text in values]
            return pa.array(values, type=column_type.arrow)
        return pa.array(values, type=pa.string()).cast(column_type.arrow)
    # Lax: a number or date may come as text. What is not exactly of the type is then refused by to_arrow.
    return column_type.to_arrow(msgspec.convert(values, list.__class_getitem__(column_type.annotation), strict=False))


def _has_field_names(records: RecordType) -> bool:
    """Whether the names of the columns are the user's: dataclasses and schemas. Tuples and scalars have none."""
    return isinstance(records.annotation, pa.Schema) or dataclasses.is_dataclass(records.annotation)


# -- Parquet ------------------------------------------------------------------------------------------------------


def open_parquet(file: Any) -> pq.ParquetFile:
    """Spark's INT96 timestamps as microseconds: in pyarrow's nanoseconds the year 9999 silently becomes 1816."""
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


class ParquetCursor(FileCursor):
    """Arrow batches of the declared columns. Other columns are not read."""

    def _start(self, position: dict[str, Any]) -> None:
        self._type = record_type(self._settings.type)
        assert self._type.schema is not None  # the settings refuse a type without columns
        self._schema = self._type.schema
        try:
            self._parquet = open_parquet(self._file)
        except pa.ArrowException as error:
            raise ConnectorError(f"{self._path} is not a Parquet file ({error}).", path=self._path) from error
        found = self._parquet.schema_arrow
        missing = [name for name in self._schema.names if name not in found.names]
        if missing:
            raise ConnectorError(
                f"{self._path} lacks the columns {', '.join(missing)}; it has {', '.join(found.names)}. All files of a "
                "source must have the columns of its type, which is that of the first file when type= is not given.",
                path=self._path,
            )
        self._row_group: int = position.get("row_group", 0)
        self._row: int = position.get("row", 0)
        self._batches: Iterator[pa.RecordBatch] | None = None  #: of the row group, behind _read_ahead
        self._read_ahead: pa.RecordBatch | None = None  #: at _row

    def position(self) -> dict[str, Any]:
        return {"row_group": self._row_group, "row": self._row}

    def read(self, wanted: int) -> pa.RecordBatch | None:
        while self._row_group < self._parquet.num_row_groups:
            if self._batches is None:
                self._batches = self._from_row(self._row)
            batch = next(self._batches, None) if self._read_ahead is None else self._read_ahead
            if batch is not None:
                self._read_ahead = batch.slice(wanted) if wanted < batch.num_rows else None
                batch = batch.slice(0, wanted)
                self._row += batch.num_rows
                return self._cast(batch)
            self._row_group += 1
            self._row = 0
            self._batches = None
        return None

    def _from_row(self, row: int) -> Iterator[pa.RecordBatch]:
        """Batches of the row group; what stands before `row` is read and dropped."""
        before = 0
        for batch in self._parquet.iter_batches(
            self._settings.batch_rows, row_groups=[self._row_group], columns=self._schema.names
        ):
            skip = max(0, row - before)
            before += batch.num_rows
            if skip < batch.num_rows:
                yield batch.slice(skip)

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, column_type in zip(self._schema, self._type.field_types, strict=True):
            column = batch.column(field.name)
            try:
                columns.append(column if column.type.equals(field.type) else column.cast(field.type))
            except pa.ArrowException as error:
                raise self._bad_column(
                    field.name, f"{column.type} cannot be read as {column_type.name}: {error}"
                ) from error
            if column.null_count and not column_type.nullable:
                raise self._bad_column(field.name, f"there are nulls, which {column_type.name} does not allow")
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _bad_column(self, name: str, problem: str) -> ConnectorError:
        return ConnectorError(
            f"{self._path}, row group {self._row_group}, column {name!r}: {problem}. Give type= what the files hold.",
            path=self._path,
        )

    def close(self) -> None:
        self._parquet.close()


CURSORS: dict[str, type[FileCursor]] = {
    "text": TextCursor,
    "csv": CsvCursor,
    "jsonl": JsonLinesCursor,
    "parquet": ParquetCursor,
}


def check_readable(format: str, settings: ReadSettings) -> None:
    """Driver, at construction. :raises ConfigurationError: when the format cannot hold the type or the encoding."""
    try:
        cuts_at_bytes = "\r\n".encode(settings.encoding) == b"\r\n"
    except LookupError as error:
        raise ConfigurationError(f"There is no encoding named {settings.encoding!r}.") from error
    if format == "text" and not cuts_at_bytes:
        raise ConfigurationError(
            f"Lines are cut in the bytes, which the encoding {settings.encoding!r} does not allow. Use one that keeps "
            "ASCII as it is, such as utf-8 or latin-1."
        )
    records = record_type(settings.type)
    if format == "jsonl":
        try:
            json_decoder(settings.type)
        except (TypeError, NameError) as error:
            raise ConfigurationError(f"{records.name} cannot be read from JSON lines ({error}).") from error
    elif format == "csv":
        for name, column_type in zip(records.field_names, records.field_types, strict=True):
            if pa.types.is_nested(column_type.arrow) or isinstance(column_type, PickledType):
                raise ConfigurationError(
                    f"The column {name!r} of type {column_type.name} does not fit in a csv field; use jsonl or parquet."
                )
