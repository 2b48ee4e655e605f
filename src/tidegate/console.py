"""Where text for the user goes: this process's own streams, or a display that prints it above itself. Driver.

One for the process: text comes from the coordinator's thread (`print()` sinks) and from the JVM (what the user's functions
print on local executors, Spark's errors).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger("tidegate.console")


class Console(Protocol):
    """Called from any thread. Text has whole lines, each with its line feed."""

    def out(self, text: str) -> None: ...
    def err(self, text: str) -> None: ...


class StandardStreams:
    def out(self, text: str) -> None:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:  # a terminal that is not UTF-8
            encoding = sys.stdout.encoding
            sys.stdout.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
        sys.stdout.flush()

    def err(self, text: str) -> None:
        """Past sys.stderr: this is called from daemon threads, which must not hold its lock when Python shuts down."""
        os.write(2, text.encode(errors="backslashreplace"))


_consoles: list[Console] = [StandardStreams()]


_trouble: list[str] = []  #: said once for each kind: it comes with every line


def current_console() -> Console:
    return _consoles[-1]


def show_out(text: str) -> None:
    """Never raises: a job does not end because nobody can read what it prints (a closed pipe, a full disk)."""
    _show(current_console().out, text)


def show_err(text: str) -> None:
    _show(current_console().err, text)


def _show(write: Callable[[str], None], text: str) -> None:
    try:
        write(text)
    except Exception as error:
        kind = type(error).__name__
        if kind not in _trouble:
            _trouble.append(kind)
            log.warning("what is printed cannot be shown, and is left out: %s: %s", kind, error)


@contextmanager
def printing_through(console: Console) -> Iterator[None]:
    """Inside, text goes to `console`."""
    _consoles.append(console)
    try:
        yield
    finally:
        _consoles.remove(console)
