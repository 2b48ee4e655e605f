"""What becomes of a record on which a function has raised. Executor; written by the user where the job is built.

    stream.map(parse, on_error="fail")          the job fails with it, and restarts (the default)
    stream.map(parse, on_error="skip")          it is counted, logged once, and left out
    stream.map(parse, on_error="dead-letter")   it goes to `.dead_letters()`, with the operator and the exception

Of a call that raises nothing leaves, neither by the main output nor by a side output, whatever it had emitted before. What it
has done to state and timers stays, as after a `try` and `except` in the function: read and check first, then change state.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from tidegate.errors import ConfigurationError
from tidegate.types import Pickled


class OnError(enum.Enum):
    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"


DEAD_LETTERS = "dead letters"  #: the side output
FAILED_RECORDS = "failed_records"  #: the counter


@dataclass(frozen=True)
class FailedRecord:
    """A record on which a function has raised, as it came."""

    if TYPE_CHECKING:
        record: Any  #: of any type
    else:
        record: Pickled
    timestamp: Optional[int]  # noqa: UP045 - read by the types, which name it so. In ms; None without event time
    operator: str
    uid: str
    error: str  #: the exception's class
    message: str
    traceback: str


def on_error_of(given: Any) -> OnError:
    """:raises ConfigurationError: for another word."""
    try:
        return OnError(given)
    except ValueError:
        words = ", ".join(repr(each.value) for each in OnError)
        raise ConfigurationError(f"on_error={given!r}: it is one of {words}") from None
