"""CSV: a header line in every file, then a line a record.

A value is written as "true" or "false", dates and times in ISO, bytes in base64, null as an empty field, lists and structs
as JSON; and is read again as that, where a field can hold it.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import datetime
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.connectors.formats.contract import FileCursor, FileFormat, PartEncoder, ReadSettings, any_encoding
from tidegate.connectors.json_records import json_encoder
from tidegate.connectors.row_reader import Records
from tidegate.connectors.staged_file import StagedFile
from tidegate.errors import ConfigurationError, ConnectorError, TypeDeclarationError
from tidegate.types import DataType, RecordType, record_type
from tidegate.types.arrow_types import ArrowType
from tidegate.types.pickled import PickledType
from tidegate.types.scalars import is_bytes, is_text

# -- a value ----------------------------------------------------------------------------------------------------------


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict | list | tuple) or dataclasses.is_dataclass(value):
        return json_encoder.encode(value).decode()
    return str(value)


_CONVERSION_ERRORS = (msgspec.MsgspecError, pa.ArrowException, TypeDeclarationError, ValueError)


def _from_text(texts: tuple[str, ...], column_type: DataType) -> pa.Array:
    """A whole column at once. Raises one of _CONVERSION_ERRORS."""
    if is_text(column_type.arrow) or (is_bytes(column_type.arrow) and not column_type.nullable):
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


# -- a file -----------------------------------------------------------------------------------------------------------


class CsvCursor(FileCursor):
    """Records of a CSV file with a header line. Untyped: dicts of str. Typed: Arrow batches; columns are found by name
    for dataclasses and schemas, by place for tuples and scalars. An empty field of a text column is an empty text, of
    bytes that may not be null no bytes, of any other column null, where the type allows it."""

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
                f"The position in {self._path} is after {self._record} records, but it has {skipped}.", path=self._path
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
        if not self._type.typed or _has_field_names(self._type):
            read = self._type.field_names if self._type.typed else self._header
            if twice := sorted({name for name in read if self._header.count(name) > 1}):
                raise self._bad_line(1, f"the header has {', '.join(map(repr, twice))} more than once")
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
                    problem = f"column {name!r}: {text!r} is not of the type {column_type.name}"
                    raise self._bad_line(line, problem) from error
            raise

    def close(self) -> None:
        # The file is the caller's; without this the wrapper would close it a second time when it is collected.
        if not self._text.closed:
            self._text.detach()


def _has_field_names(records: RecordType) -> bool:
    """Whether the names of the columns are the user's: dataclasses and schemas. Tuples and scalars have none."""
    return isinstance(records.annotation, pa.Schema) or dataclasses.is_dataclass(records.annotation)


class _Lines:
    """What csv.writer writes, with line feeds alone at the ends of lines. Before Python 3.13 it quotes a carriage return in a
    field only where lines end with one: readers would take it for the end of the record."""

    ENDS_WITH = "\r\n"

    def __init__(self) -> None:
        self.whole: list[str] = []

    def write(self, line: str) -> None:
        self.whole.append(f"{line.removesuffix(self.ENDS_WITH)}\n")


class CsvEncoder(PartEncoder):
    """Columns are those of the stream's type; of an untyped stream, those of the first record of the file."""

    def __init__(self, file: StagedFile, record_type: Any) -> None:
        super().__init__(file, record_type)
        self._names: list[str] | None = None

    def write(self, batch: Batch) -> None:
        text = _Lines()
        lines = csv.writer(text, lineterminator=_Lines.ENDS_WITH)
        records = self._records(batch)
        if self._names is None:
            self._names = self._type.schema.names if self._type.typed else _names_of(batch.rows()[0])
            lines.writerow(self._names)
        lines.writerows(records)
        self._file.write("".join(text.whole).encode())

    def _records(self, batch: Batch) -> Iterable[list[str]]:
        if self._type.typed:
            columns = [
                [_to_text(value) for value in column_type.from_arrow(column)]
                for column_type, column in zip(self._type.field_types, batch.columns().columns, strict=True)
            ]
            return map(list, zip(*columns, strict=True))
        rows = batch.rows()
        names = self._names or _names_of(rows[0])
        return [[_to_text(value) for value in _values_of(row, names)] for row in rows]


def _names_of(row: Any) -> list[str]:
    if isinstance(row, dict):
        return [str(name) for name in row]
    if dataclasses.is_dataclass(row):
        return [field.name for field in dataclasses.fields(row)]
    if isinstance(row, tuple) and hasattr(row, "_fields"):
        return list(row._fields)
    raise ConfigurationError(
        f"A csv file needs the names of its columns, and a record of type {type(row).__qualname__} in a stream without "
        "a type has none. Give returns= to the operator before the sink, or write dicts or dataclasses."
    )


def _values_of(row: Any, names: list[str]) -> list[Any]:
    found = _names_of(row)
    if set(found) != set(names):
        raise TypeDeclarationError(
            f"A record has the columns {', '.join(found)}, but the csv file that it goes to has {', '.join(names)}. "
            "All records must have the same; give returns= to the operator before the sink to fix them."
        )
    if isinstance(row, dict):
        by_name = {str(name): value for name, value in row.items()}
        return [by_name[name] for name in names]
    return [getattr(row, name) for name in names]


def check_readable(settings: ReadSettings) -> None:
    any_encoding(settings)
    records = record_type(settings.type)
    for name, column_type in zip(records.field_names, records.field_types, strict=True):
        if pa.types.is_nested(column_type.arrow) or isinstance(column_type, PickledType):
            raise ConfigurationError(
                f"The column {name!r} of type {column_type.name} does not fit in a csv field; use jsonl or parquet."
            )


CSV = FileFormat("csv", "csv", CsvCursor, CsvEncoder, check_readable)
