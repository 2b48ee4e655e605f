"""What a command prints: for people, tables that fit the terminal; in a pipe, one line for each row; with --json, one value."""

from __future__ import annotations

import io
import sys
from typing import Any

import msgspec
from rich.console import Console, RenderableType

_PIPE_COLUMNS = 1_000_000  #: nothing is wrapped or cut for whoever greps


def columns() -> int:
    """How wide a table may be."""
    return Console().width if sys.stdout.isatty() else _PIPE_COLUMNS


def show(*shown: RenderableType) -> None:
    """A sentence is not wrapped in a terminal either: a path in it can be copied."""
    if sys.stdout.isatty():
        console = Console(highlight=False)
        for part in shown:
            console.print(part, soft_wrap=isinstance(part, str))
        return
    text = io.StringIO()
    console = Console(file=text, highlight=False, width=_PIPE_COLUMNS, color_system=None)
    for part in shown:
        console.print(part)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in text.getvalue().splitlines()))


def show_json(value: Any) -> None:
    """Bytes as base64, times as ISO 8601, decimals as text; what JSON has no word for as Python shows it."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=repr).decode() + "\n")
