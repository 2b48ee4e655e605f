"""Text: a line a record, `str(record)`. A record that holds a line feed becomes two lines; use jsonl for such text."""

from __future__ import annotations

from tidegate.batch import Batch
from tidegate.connectors.formats.contract import FileFormat, PartEncoder, ReadSettings, any_encoding
from tidegate.connectors.formats.lines import LineCursor
from tidegate.errors import ConfigurationError


class TextCursor(LineCursor):
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


class TextEncoder(PartEncoder):
    def write(self, batch: Batch) -> None:
        self._file.write("".join([f"{row}\n" for row in batch.rows()]).encode())


def check_readable(settings: ReadSettings) -> None:
    any_encoding(settings)
    if "\r\n".encode(settings.encoding) != b"\r\n":
        raise ConfigurationError(
            f"Lines are cut in the bytes, which the encoding {settings.encoding!r} does not allow. Use one that keeps "
            "ASCII as it is, such as utf-8 or latin-1."
        )


TEXT = FileFormat("text", "txt", TextCursor, TextEncoder, check_readable)
