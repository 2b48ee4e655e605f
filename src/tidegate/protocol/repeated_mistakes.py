"""A mistake that must come again: is there any use in another attempt? Pure; asked by coordinator/job.py on the driver.

Before the first completed checkpoint of a run every attempt begins with the same input. A function that fails on it twice, with
the same error at the same line, will do so for ever, and whoever has written it waits for a job that looks busy.

Invariant 1. Only what a function of the user's has raised counts, and nothing of the world's: workers die, networks and storage
             fail, sources and sinks depend on others. All of that may pass.
Invariant 2. From the first completed checkpoint of the run on, nothing is refused any more.
Invariant 3. No mistake is refused when it comes for the first time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: What a message says of the one record: quoted text, numbers, addresses of objects.
_OF_THE_RECORD = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|0x[0-9a-fA-F]+|\d+(?:\.\d+)?""")


@dataclass(frozen=True, slots=True)
class Mistake:
    """Two failures are one mistake when these are equal."""

    uid: str  #: of the operator
    error: str  #: class and text, without what is the record's
    line: str  #: of the user's program


def mistake_of(uid: str, message: str, line: str) -> Mistake:
    """`message` begins with the class of the exception; its other lines are about the place."""
    first = message.splitlines()[0] if message else ""
    return Mistake(uid, _OF_THE_RECORD.sub("…", first), line)


@dataclass(slots=True)
class RepeatedMistakes:
    """One for the life of a job in one driver."""

    is_on: bool = True
    _seen: set[Mistake] = field(default_factory=set, init=False)

    def must_come_again(self, mistake: Mistake | None, has_progressed: bool) -> bool:
        """Whether the attempt that failed by it is the last. None: nobody can say that it must come again.

        :param has_progressed: a checkpoint was completed since the run began.
        """
        if has_progressed:
            self.is_on = False
        if not self.is_on or mistake is None:
            return False
        comes_again = mistake in self._seen
        self._seen.add(mistake)
        return comes_again
