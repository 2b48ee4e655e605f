"""How each file format is written: a staged file and what turns batches into its bytes. Executor, the task's thread.

    text      str(record), a line each. A record that holds a line feed becomes two lines; use jsonl for such text
    csv       a header line in every file, then a line a record: "true"/"false", ISO dates and times, bytes in base64,
              null as an empty field, lists and structs as JSON
    jsonl     a JSON value a line: dataclass and dict an object, tuple and list an array, scalars as they are; dates and
              times in ISO, Decimal as a string, bytes in base64, NaN and infinity null (JSON has no such numbers)
    parquet   the stream's schema, so the stream must have a type

The size and the checksum are taken from the bytes on their way to the file, so nothing is read again.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import datetime
import errno
import io
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import xxhash

from tidegate.batch import Batch
from tidegate.errors import ConfigurationError, TypeDeclarationError

EXTENSIONS = {"text": "txt", "csv": "csv", "jsonl": "jsonl", "parquet": "parquet"}
_BUFFER_BYTES = 256 * 1024
#: What kernels and filesystems without O_TMPFILE answer; older ones see a folder that is to be opened for writing.
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)


class StagedFile(io.RawIOBase):
    """A new file that knows the size and checksum of what was written to it. Written once, from front to back.

    It has no name before `sync`, where the filesystem can do that: of a process that dies nothing stays, also of one that was
    stopped, and wakes up when everybody has tidied up after it.
    """

    def __init__(self, path: str) -> None:
        unnamed = _open_unnamed(os.path.dirname(path))
        # "x": never the file of another writer, whatever its name.
        file = open(path, "xb", buffering=_BUFFER_BYTES) if unnamed is None else unnamed  # noqa: SIM115 - held until close
        self._begin(path, file)
        self._has_name = unnamed is None

    def _begin(self, path: str, file: Any) -> None:
        super().__init__()
        self.path = path
        self._file = file
        self._checksum = xxhash.xxh3_128()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view)
        self._checksum.update(view)
        self.size_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def checksum(self) -> str:
        return self._checksum.hexdigest()

    def sync(self) -> None:
        """All bytes are on the disk, under the file's name, when it returns. Its folder is the caller's to sync."""
        self._file.flush()
        number = self._file.fileno()
        os.fsync(number)
        if not self._has_name:
            _give_name(number, self.path)
            self._has_name = True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()


def _open_unnamed(folder: str) -> Any | None:
    """None where there are no files without a name: not on Linux, or on a network mount."""
    if not hasattr(os, "O_TMPFILE") or not os.path.exists("/proc/self/fd"):
        return None
    try:
        number = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NO_UNNAMED:
            return None
        raise
    return os.fdopen(number, "wb", buffering=_BUFFER_BYTES)


def _give_name(number: int, path: str) -> None:
    try:
        # A descriptor is passed so that the call follows the link of /proc: linkat(2) with AT_SYMLINK_FOLLOW.
        os.link(f"/proc/self/fd/{number}", path, src_dir_fd=number)
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        os.lseek(number, 0, os.SEEK_SET)
        with open(number, "rb", closefd=False) as source, open(path, "xb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())


def file_checksum(path: str) -> str:
    """As `StagedFile.checksum`, of a file that is there."""
    checksum = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(1024 * 1024):
            checksum.update(chunk)
    return checksum.hexdigest()


class PartEncoder(ABC):
    """Writes batches into one file. `size_bytes` is what rolling goes by."""

    def __init__(self, file: StagedFile, record_type: Any) -> None:
        self._file = file
        self._type = record_type

    @abstractmethod
    def write(self, batch: Batch) -> None: ...

    def size_bytes(self) -> int:
        return self._file.size_bytes

    def finish(self) -> None:
        """Write what comes last; the file stays open."""


class TextEncoder(PartEncoder):
    def write(self, batch: Batch) -> None:
        self._file.write("".join([f"{row}\n" for row in batch.rows()]).encode())


class JsonLinesEncoder(PartEncoder):
    def write(self, batch: Batch) -> None:
        self._file.write(json_encoder.encode_lines(batch.rows()))


class CsvEncoder(PartEncoder):
    """Columns are those of the stream's type; of an untyped stream, those of the first record of the file."""

    def __init__(self, file: StagedFile, record_type: Any) -> None:
        super().__init__(file, record_type)
        self._names: list[str] | None = None

    def write(self, batch: Batch) -> None:
        text = io.StringIO(newline="")
        lines = csv.writer(text, lineterminator="\n")
        records = self._records(batch)
        if self._names is None:
            self._names = self._type.schema.names if self._type.typed else _names_of(batch.rows()[0])
            lines.writerow(self._names)
        lines.writerows(records)
        self._file.write(text.getvalue().encode())

    def _records(self, batch: Batch) -> Iterable[list[str]]:
        if self._type.typed:
            columns = [
                [_csv_text(value) for value in column_type.from_arrow(column)]
                for column_type, column in zip(self._type.field_types, batch.columns().columns, strict=True)
            ]
            return map(list, zip(*columns, strict=True))
        rows = batch.rows()
        names = self._names or _names_of(rows[0])
        return [[_csv_text(value) for value in _values_of(row, names)] for row in rows]


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


ENCODERS: dict[str, type[PartEncoder]] = {
    "text": TextEncoder,
    "csv": CsvEncoder,
    "jsonl": JsonLinesEncoder,
    "parquet": ParquetEncoder,
}


def check_writable(format: str, record_type: Any) -> None:
    """:raises ConfigurationError: when the format cannot hold the stream's records."""
    if format == "parquet" and not record_type.typed:
        raise ConfigurationError(
            "A Parquet file needs columns, but the stream that goes into the sink has no type. Give returns= to the "
            "operator before the sink (a dataclass, an annotation or a pyarrow schema), or write format='jsonl'."
        )


def _plain(value: Any) -> Any:
    """What msgspec does not know by itself."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeDeclarationError(
        f"A value of type {type(value).__qualname__} cannot be written as JSON. Map the records to dataclasses, dicts, "
        "tuples or scalars before the sink."
    )


json_encoder = msgspec.json.Encoder(enc_hook=_plain)


def _csv_text(value: Any) -> str:
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
