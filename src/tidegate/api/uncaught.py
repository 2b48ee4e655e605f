"""Errors that the program does not catch: a sentence with its line (telling/programs.py), from when the environment is made.
Driver. What says it is loaded only when there is something to say.
"""

from __future__ import annotations

import sys
from types import TracebackType


def say_errors_in_words() -> None:
    """For a program whose errors Python would show; one that shows them in a way of its own keeps it."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _say


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from tidegate.telling.programs import say_error

    say_error(kind, error, trace)
