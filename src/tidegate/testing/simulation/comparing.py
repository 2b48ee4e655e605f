"""What came out of a run, held against what comes out without any misfortune. Pure.

Records are compared as they are shown, without their order: for each sink, how often each of them is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Rows = Counter[str]


def counted(rows: Iterable[Any]) -> Rows:
    """Rows need not be hashable. A dict is the same in any order of its keys."""
    return Counter(_shown(row) for row in rows)


def _shown(row: Any) -> str:
    if isinstance(row, str):
        return row
    return repr(dict(sorted(row.items(), key=repr))) if isinstance(row, dict) else repr(row)


@dataclass(frozen=True, slots=True)
class Expected:
    """Of one sink: what it has without a misfortune, and how much of that can be compared."""

    uid: str
    rows: Rows
    exact: bool = True  #: False: the sink is at-least-once, so what comes twice is as it says
    stable: bool = True  #: False: runs without a misfortune differ among each other
    count: int | None = None  #: of those that differ: how many records each of them has, if all have as many

    @property
    def is_compared(self) -> bool:
        return self.stable or self.count is not None

    def in_words(self) -> str:
        if self.stable:
            return "" if self.exact else "at-least-once: records may be there twice"
        return "not compared" if self.count is None else f"only compared: that there are {self.count:,} records"


@dataclass(frozen=True, slots=True)
class Difference:
    """What is wrong in one sink."""

    uid: str
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)  #: are in no run without a misfortune
    said: str = ""  #: where nothing of the above can be told

    def __str__(self) -> str:
        parts = [
            (len(self.lost), "lost"),
            (len(self.doubled), "doubled"),
            (len(self.foreign), "that should not be there"),
        ]
        return self.said or ", ".join(f"{number:,} {what}" for number, what in parts if number)


def expected(uid: str, exact: bool, plain: Sequence[Rows]) -> Expected:
    """From runs without a misfortune, which differ in the order of events alone."""
    stable = all(rows == plain[0] for rows in plain)
    totals = {rows.total() for rows in plain}
    return Expected(uid, plain[0], exact, stable, totals.pop() if len(totals) == 1 and exact else None)


def difference(expected: Expected, found: Rows) -> Difference | None:
    """None: nothing is wrong, as far as it can be compared."""
    if not expected.stable:
        if expected.count is None or found.total() == expected.count:
            return None
        return Difference(expected.uid, said=f"{found.total():,} records instead of {expected.count:,}")
    more = found - expected.rows
    lost = sorted((expected.rows - found).elements())
    foreign = sorted(row for row in more.elements() if row not in expected.rows)
    doubled = sorted(row for row in more.elements() if row in expected.rows) if expected.exact else []
    return Difference(expected.uid, lost, doubled, foreign) if lost or foreign or doubled else None


def differences(wanted: Mapping[str, Expected], found: Mapping[str, Rows]) -> list[Difference]:
    compared = (difference(each, found.get(uid, Counter())) for uid, each in wanted.items())
    return [each for each in compared if each is not None]
