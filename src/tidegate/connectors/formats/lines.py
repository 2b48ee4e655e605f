"""Formats of lines: where one ends in the bytes. Executor, the task's thread."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any

import numpy as np

from tidegate.connectors.formats.contract import FileCursor
from tidegate.errors import ConnectorError

MAX_LINE_BYTES = 64 * 1024 * 1024  #: a file without line feeds must not fill the memory
_CHUNK_BYTES = 256 * 1024
_LINE_FEED = ord("\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  #: of UTF-8; spreadsheets write it


class LineCursor(FileCursor):
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
        if not lines[-1]:  # after the last line feed; a last line without one stays
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
