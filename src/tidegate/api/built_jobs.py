"""Jobs that a program has built and never executed: a sentence at its end. Driver.

A job is built when it has a sink, and taken up by execute, execute_async, explain, or a run of the test kit. A program that has
failed says why itself; in a notebook or a prompt the end of the session is not the end of a program.
"""

from __future__ import annotations

import atexit
import os
import sys
import sysconfig
from dataclasses import dataclass

from tidegate.console import show_err
from tidegate.errors import UserLine

#: A `__main__` from here is a tool (pytest, a kernel, a worker of Spark's) that runs the user's code for its own ends.
_TOOLS = tuple(
    {sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
)


@dataclass(slots=True)
class BuiltJob:
    """One environment; remembered apart from it, which may be gone at the end of the program."""

    name: str
    line: UserLine | None = None  #: of its first sink
    taken_up: bool = False

    def has_sink(self, line: UserLine) -> None:
        if self.line is None:
            self.line = line
            if _is_a_program():  # asked now: at its end Python has forgotten which file it was
                _jobs.append(self)


_jobs: list[BuiltJob] = []


def take_never_executed() -> list[str]:
    """A sentence for each; said once."""
    sentences = [
        f"the job {job.name!r} was built ({job.line}) and never executed: end the program with env.execute()"
        for job in _jobs
        if not job.taken_up
    ]
    _jobs.clear()
    return sentences


@atexit.register
def _at_exit() -> None:
    sentences = take_never_executed()
    if sentences and not _has_failed():
        show_err("".join(f"warning: {sentence}\n" for sentence in sentences))


def _is_a_program() -> bool:
    is_prompt = hasattr(sys, "ps1") or sys.flags.interactive or "ipykernel" in sys.modules
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return not is_prompt and file is not None and not os.path.abspath(file).startswith(_TOOLS)


def _has_failed() -> bool:
    """Python keeps what it has shown as the end of a program."""
    return getattr(sys, "last_value", None) is not None
