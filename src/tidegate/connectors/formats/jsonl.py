"""JSON lines: a JSON value a line. Dataclass and dict are an object, tuple and list an array, scalars as they are; dates and
times in ISO, Decimal as a string, bytes in base64, NaN and infinity null (JSON has no such numbers)."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.batch import Batch
from tidegate.connectors.formats.contract import FileFormat, PartEncoder, ReadSettings, any_encoding
from tidegate.connectors.formats.lines import LineCursor
from tidegate.connectors.json_records import json_decoder, json_encoder
from tidegate.errors import ConfigurationError
from tidegate.types import record_type


class JsonLinesCursor(LineCursor):
    """A JSON value a line; blank lines are skipped. Typed lines are read as the encoder writes them."""

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


class JsonLinesEncoder(PartEncoder):
    def write(self, batch: Batch) -> None:
        self._file.write(json_encoder.encode_lines(batch.rows()))


def check_readable(settings: ReadSettings) -> None:
    any_encoding(settings)
    try:
        json_decoder(settings.type)
    except (TypeError, NameError) as error:
        name = record_type(settings.type).name
        raise ConfigurationError(f"{name} cannot be read from JSON lines ({error}).") from error


JSON_LINES = FileFormat("jsonl", "jsonl", JsonLinesCursor, JsonLinesEncoder, check_readable)
