"""What a setting's value may be, and its three forms: as Flink writes it, in a program, and in JobConfig. Pure.

    kind             "-D" or a file       a program           JobConfig
    SECONDS          10 s, 500 (ms)       "10s", timedelta    10.0
    BYTES            2 mb, 4096           "2mb"               2097152
    Choice(...)      EXACTLY_ONCE         "exactly-once"      CheckpointMode.EXACTLY_ONCE

Each reader takes the value and `where` it was given, and raises a ConfigurationError that begins with that.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tidegate.durations import seconds
from tidegate.errors import ConfigurationError
from tidegate.sizes import size_bytes

V = TypeVar("V")
E = TypeVar("E", bound=enum.StrEnum)

INFINITE = 2**31 - 1  #: Java's largest int, which Flink's users write for "no limit"
_DURATIONS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 0.001))
_SIZES = (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10))


class Kind(ABC, Generic[V]):
    """See the module."""

    @abstractmethod
    def from_text(self, text: str, where: str) -> V:
        """As Flink writes it."""

    def from_program(self, value: Any, where: str) -> V:
        """As a keyword of the environment's methods takes it."""
        taken: V = value
        return taken

    def to_text(self, value: V) -> str:
        """As it could be written in a configuration."""
        return str(value)


class _Seconds(Kind[float]):
    def from_text(self, text: str, where: str) -> float:
        """A bare number is in milliseconds: Flink reads it so, and its users' files are full of them."""
        return seconds(f"{text} ms" if text.strip().isdecimal() else text, where)

    def from_program(self, value: Any, where: str) -> float:
        return seconds(value, where)

    def to_text(self, value: float) -> str:
        for unit, size in _DURATIONS:
            count = value / size
            if count >= 1 and abs(count - round(count)) < 1e-9:
                return f"{round(count)} {unit}"
        return f"{value:g} s"


class _Bytes(Kind[int]):
    def from_text(self, text: str, where: str) -> int:
        return size_bytes(text, where)

    def from_program(self, value: Any, where: str) -> int:
        return size_bytes(value, where)

    def to_text(self, value: int) -> str:
        for unit, size in _SIZES:
            if value and value % size == 0:
                return f"{value // size} {unit}"
        return f"{value} bytes"


@dataclass(frozen=True, slots=True)
class _Count(Kind[int]):
    least: int = 0

    def from_text(self, text: str, where: str) -> int:
        if not text.strip().isdecimal():
            raise ConfigurationError(f"{where}: {text!r} is not a whole number")
        if int(text) < self.least:
            raise ConfigurationError(f"{where}: must be at least {self.least}, not {int(text)}")
        return int(text)


class _Limit(Kind[int | None]):
    def from_text(self, text: str, where: str) -> int | None:
        if text.strip().lower() == "infinite":
            return None
        number = COUNT.from_text(text, where)
        return None if number >= INFINITE else number

    def to_text(self, value: int | None) -> str:
        return "infinite" if value is None else str(value)


class _Number(Kind[float]):
    def from_text(self, text: str, where: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ConfigurationError(f"{where}: {text!r} is not a number") from None
        if not 0 <= value < float("inf"):
            raise ConfigurationError(f"{where}: {text!r} must be a number from 0 on")
        return value

    def to_text(self, value: float) -> str:
        return f"{value:g}"


class _Flag(Kind[bool]):
    def from_text(self, text: str, where: str) -> bool:
        match text.strip().lower():
            case "true":
                return True
            case "false":
                return False
        raise ConfigurationError(f"{where}: {text!r} is neither true nor false")

    def to_text(self, value: bool) -> str:
        return "true" if value else "false"


class _Word(Kind[str]):
    def from_text(self, text: str, where: str) -> str:
        if not text.strip():
            raise ConfigurationError(f"{where}: the value is empty")
        return text.strip()


class _Words(Kind[tuple[str, ...]]):
    """With commas between them."""

    def from_text(self, text: str, where: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in WORD.from_text(text, where).split(",") if part.strip())

    def from_program(self, value: Any, where: str) -> tuple[str, ...]:
        return tuple(value)

    def to_text(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


SECONDS, BYTES = _Seconds(), _Bytes()
COUNT, POSITIVE, LIMIT, NUMBER = _Count(), _Count(1), _Limit(), _Number()
FLAG, WORD, WORDS = _Flag(), _Word(), _Words()


@dataclass(frozen=True, slots=True)
class Choice(Kind[E]):
    """One word of a few. In a configuration, capitals do not matter, nor does it whether parts are joined by - or _."""

    words: type[E]
    label: str  #: what it is, for messages
    flink: Mapping[str, str] = field(default_factory=dict)  #: words that Flink has for ours, where they differ
    others: Mapping[str, str] = field(
        default_factory=dict
    )  #: more words that are understood, and which of ours they mean
    hint: str = ""  #: the end of the message about an unknown one

    def from_text(self, text: str, where: str) -> E:
        known = {_plain(self.to_text(word)): word for word in self.words}
        known |= {_plain(word): self.words(meaning) for word, meaning in self.others.items()}
        word = known.get(_plain(text))
        if word is None:
            raise ConfigurationError(
                f"{where}: {self.label} {text!r} is unknown: use {_listed([self.to_text(word) for word in self.words])}"
            )
        return word

    def from_program(self, value: Any, where: str = "") -> E:
        try:
            return self.words(self.others.get(value, value))
        except (ValueError, TypeError):
            choices = _listed([f'"{word.value}"' for word in self.words])
            raise ConfigurationError(f"{self.label} {value!r} is unknown: use {choices}{self.hint}") from None

    def to_text(self, value: E) -> str:
        return self.flink.get(value.value, value.value)


def _plain(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
