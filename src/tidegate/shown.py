"""What users write and we only show: log lines, messages of exceptions, counters. Fit for every wire and screen. Both sides.

Python's text may hold lone surrogates (a file name that is not UTF-8, `json.loads('"\\ud83d"')`), its integers have no bound,
and an exception may fail to say what it is. None of this may end a job that only wants to tell somebody.
"""

from __future__ import annotations

MAX_TEXT = 20_000  #: characters of one message
MAX_COUNT = 2**63 - 1
_MIN_COUNT = -(2**63)


def shown_text(text: str, limit: int = MAX_TEXT) -> str:
    """Text that every encoder takes: lone surrogates as `\\udXXX`, and no more than about `limit` characters."""
    if len(text) > limit:
        text = f"{text[:limit]} ... ({len(text) - limit} more characters)"
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def is_writable(text: str) -> bool:
    """Whether UTF-8 has it: text that is not only shown must be, or be refused where it comes in."""
    return text.isascii() or text.encode(errors="backslashreplace").decode() == text


def shown_error(error: BaseException) -> str:
    """The class and the text of an exception, of one too whose `__str__` raises."""
    text = _message(error)
    return shown_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def shown_message(error: BaseException) -> str:
    """The text alone."""
    return shown_text(_message(error))


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as trouble:
        text = f"(its message cannot be shown: {type(trouble).__name__})"
    return text


def first_line(error: BaseException) -> str:
    """For one line of a display or a log; an error may be without text."""
    try:
        lines = str(error).splitlines()
    except Exception:
        lines = []
    return shown_text(lines[0]) if lines else type(error).__name__


def shown_count(value: object) -> int | None:
    """A user's number as 64 bits hold it, the nearest one where they do not. None: it is not a number."""
    try:
        return max(_MIN_COUNT, min(MAX_COUNT, int(value)))  # type: ignore[call-overload, no-any-return]
    except OverflowError:  # infinity
        return MAX_COUNT if value > 0 else _MIN_COUNT  # type: ignore[operator]
    except (TypeError, ValueError):
        return None
