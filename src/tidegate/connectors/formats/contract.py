"""What a file format is: how its files are read from a position, and how batches become its bytes. Executor, the task's thread.

A cursor gets an open binary file, which the caller closes, and continues at a position that it once gave out itself.
The size is the one that was noted when the file was first opened: what was appended since is not read. An error of the
data names the file and the line.

The size and the checksum of a file that is written are taken from the bytes on their way to it, so nothing is read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from tidegate.batch import Batch
from tidegate.connectors.row_reader import SplitCursor
from tidegate.connectors.staged_file import StagedFile
from tidegate.errors import ConfigurationError, ConnectorError


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

    def abandon(self) -> None:
        """Nobody wants the file: write nothing more, also when this object goes."""


def any_encoding(settings: ReadSettings) -> None:
    """:raises ConfigurationError: for an encoding that does not exist."""
    try:
        "".encode(settings.encoding)
    except LookupError as error:
        raise ConfigurationError(f"There is no encoding named {settings.encoding!r}.") from error


def any_records(record_type: Any) -> None:
    """All can be written."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One format, whole."""

    name: str
    extension: str
    cursor: type[FileCursor]
    encoder: type[PartEncoder]
    #: Driver, at construction. Raises ConfigurationError when the format cannot hold the type or the encoding.
    check_readable: Callable[[ReadSettings], None] = any_encoding
    #: Executor. Raises ConfigurationError when the format cannot hold the stream's records.
    check_writable: Callable[[Any], None] = any_records
