"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """In `file` (below src/tidegate), `new` instead of `old`, which stands there exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    what: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]  #: those that should catch it
