"""Values as Flink writes them in its configuration: durations, memory sizes, numbers, flags. Pure.

Each reader takes (text, where) and gives a value, or raises a ConfigurationError that begins with `where`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.durations import seconds
from tidegate.errors import ConfigurationError
from tidegate.sizes import size_bytes

Reader = Callable[[str, str], Any]

INFINITE = 2**31 - 1  #: Java's largest int, which Flink's users write for "no limit"


def duration(text: str, where: str) -> float:
    """Seconds. A bare number is in milliseconds: Flink reads it so, and its users' files are full of them."""
    return seconds(f"{text} ms" if text.strip().isdecimal() else text, where)


def size(text: str, where: str) -> int:
    return size_bytes(text, where)


def positive(text: str, where: str) -> int:
    number = count(text, where)
    if number < 1:
        raise ConfigurationError(f"{where}: must be at least 1, not {number}")
    return number


def count(text: str, where: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigurationError(f"{where}: {text!r} is no whole number")
    return int(text)


def limit(text: str, where: str) -> int | None:
    """A count, or None for no limit."""
    if text.strip().lower() == "infinite":
        return None
    number = count(text, where)
    return None if number >= INFINITE else number


def number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigurationError(f"{where}: {text!r} is no number") from None
    if not 0 <= value < float("inf"):
        raise ConfigurationError(f"{where}: {text!r} must be a number from 0 on")
    return value


def flag(text: str, where: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ConfigurationError(f"{where}: {text!r} is neither true nor false")


def mode(text: str, where: str) -> str:
    found = text.strip().upper().replace("-", "_")
    if found not in ("EXACTLY_ONCE", "AT_LEAST_ONCE"):
        raise ConfigurationError(f"{where}: {text!r} is neither EXACTLY_ONCE nor AT_LEAST_ONCE")
    return found.lower().replace("_", "-")


def claim_mode(text: str, where: str) -> str:
    found = text.strip().upper().replace("-", "_")
    if found not in ("CLAIM", "NO_CLAIM"):
        raise ConfigurationError(f"{where}: {text!r} is neither CLAIM nor NO_CLAIM")
    return found.lower().replace("_", "-")


def retention(text: str, where: str) -> str:
    known = {"RETAIN_ON_CANCELLATION": "retain", "DELETE_ON_CANCELLATION": "delete"}
    found = known.get(text.strip().upper().replace("-", "_"))
    if found is None:
        raise ConfigurationError(f"{where}: {text!r} is neither {' nor '.join(known)}")
    return found


def type_checks(text: str, where: str) -> str:
    found = text.strip().lower()
    if found not in ("first", "all", "none"):
        raise ConfigurationError(f"{where}: {text!r} is neither first nor all nor none")
    return found


def word(text: str, where: str) -> str:
    if not text.strip():
        raise ConfigurationError(f"{where}: the value is empty")
    return text.strip()


def words(text: str, where: str) -> tuple[str, ...]:
    """With commas between them."""
    return tuple(part.strip() for part in word(text, where).split(",") if part.strip())


def restart_kind(text: str, where: str) -> str:
    kinds = {
        "none": "none", "off": "none", "disable": "none",
        "fixed-delay": "fixed-delay", "fixeddelay": "fixed-delay",
        "failure-rate": "failure-rate", "failurerate": "failure-rate",
        "exponential-delay": "exponential-delay", "exponentialdelay": "exponential-delay",
    }  # fmt: skip
    kind = kinds.get(text.strip().lower())
    if kind is None:
        raise ConfigurationError(
            f"{where}: {text!r} is no restart strategy: use exponential-delay, fixed-delay, failure-rate or none"
        )
    return kind
