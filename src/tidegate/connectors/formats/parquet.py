"""Parquet: the columns of the stream's schema, so the stream must have a type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.batch import Batch
from tidegate.connectors.formats.contract import FileCursor, FileFormat, PartEncoder
from tidegate.connectors.staged_file import StagedFile
from tidegate.errors import ConfigurationError, ConnectorError
from tidegate.types import record_type


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
        self._batches: Iterator[pa.RecordBatch] | None = None  #: of the row group, after _read_ahead
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


class ParquetEncoder(PartEncoder):
    def __init__(self, file: StagedFile, record_type: Any) -> None:
        super().__init__(file, record_type)
        self._writer = pq.ParquetWriter(file, record_type.schema)
        self._taken_bytes = 0

    def write(self, batch: Batch) -> None:
        columns = batch.columns()
        self._writer.write_batch(columns)
        self._taken_bytes += columns.nbytes

    def size_bytes(self) -> int:
        # A row group is written when it is full, so the file's own size lags by megabytes. Bytes in memory are more
        # than bytes in the file: a part is smaller than asked for, never larger.
        return self._taken_bytes

    def finish(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        self._writer.is_open = False  # it closes itself when it goes, and would write to a file that is closed


def check_writable(record_type: Any) -> None:
    if not record_type.typed:
        raise ConfigurationError(
            "A Parquet file needs columns, but the stream that goes into the sink has no type. Give returns= to the "
            "operator before the sink (a dataclass, an annotation or a pyarrow schema), or write format='jsonl'."
        )


PARQUET = FileFormat("parquet", "parquet", ParquetCursor, ParquetEncoder, check_writable=check_writable)
