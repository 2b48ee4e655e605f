"""The formats that files are read and written in, by the names that users give."""

from __future__ import annotations

from tidegate.connectors.formats.contract import FileFormat
from tidegate.connectors.formats.csv import CSV
from tidegate.connectors.formats.jsonl import JSON_LINES
from tidegate.connectors.formats.parquet import PARQUET
from tidegate.connectors.formats.text import TEXT
from tidegate.errors import ConfigurationError

FORMATS = {format.name: format for format in (TEXT, CSV, JSON_LINES, PARQUET)}


def format_named(name: str) -> FileFormat:
    """:raises ConfigurationError: when there is none."""
    if name not in FORMATS:
        raise ConfigurationError(f"There is no file format {name!r}; there are {', '.join(FORMATS)}.")
    return FORMATS[name]
