"""Where text for the user goes: this process's own streams, or a display that prints it above itself. Driver.

One for the process: text comes from the coordinator's thread (`print()` sinks) and from the JVM (what the user's functions
print on local executors, Spark's errors).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Console(Protocol):
    """Called from any thread. Text has whole lines, each with its line feed."""

    def out(self, text: str) -> None: ...
    def err(self, text: str) -> None: ...


class StandardStreams:
    def out(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def err(self, text: str) -> None:
        """Past sys.stderr: this is called from daemon threads, which must not hold its lock when Python shuts down."""
        os.write(2, text.encode(errors="backslashreplace"))


_consoles: list[Console] = [StandardStreams()]


def current_console() -> Console:
    return _consoles[-1]


@contextmanager
def printing_through(console: Console) -> Iterator[None]:
    """Inside, text goes to `console`."""
    _consoles.append(console)
    try:
        yield
    finally:
        _consoles.remove(console)
