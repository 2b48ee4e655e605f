"""What a job says of itself in a plain Python program: `python job.py`. Driver.

A line for each thing that happens (the dashboard's address, failures with the user's line, restarts, failed checkpoints, the
end), on standard error: standard output belongs to the job. Where the program has set up logging, the lines go there instead,
as "tidegate.jobs". `execute(quiet=True)`, or TIDEGATE_QUIET=1 in the environment, switches them off; `tidegate run` has
displays of its own.

And what an error looks like that nobody catches: the message and the line of the program, without frames of ours. Where another
driver has the job, the program ends with an exit code of its own (telling/exit_codes.py), so that nobody starts it again.
"""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType

from tidegate.console import show_err
from tidegate.errors import Superseded, TidegateError
from tidegate.other_driver import where_it_goes_on
from tidegate.telling.exit_codes import NOT_AGAIN, exit_code_of
from tidegate.telling.failures import describe_error, is_ours
from tidegate.telling.plain import PlainDisplay

log = logging.getLogger("tidegate.jobs")

QUIET_VARIABLE = "TIDEGATE_QUIET"
INTERRUPTED = (
    'interrupted: the job ends with the program. resume="latest" continues from its newest checkpoint, if one is kept'
)


class JobTeller(PlainDisplay):
    """Implements overrides.Onlooker."""

    def __init__(self) -> None:
        super().__init__(show_err)

    def _say(self, job: str, text: str, level: int = logging.INFO) -> None:
        if log.hasHandlers():
            log.log(level, "%s: %s", job, text)
        else:
            super()._say(job, text, level)


def is_quiet(asked: bool) -> bool:
    return asked or os.environ.get(QUIET_VARIABLE, "0") not in ("", "0")


def say_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Of one that the program does not catch (api/uncaught.py)."""
    if isinstance(error, TidegateError):
        show_err(f"error: {describe_error(error)}\n")
        if isinstance(error, Superseded):
            show_err(f"{where_it_goes_on(error)}\n")
        code = exit_code_of(error)
        if code in NOT_AGAIN and not hasattr(sys, "ps1"):  # there, an error does not end the session
            sys.exit(code)
    elif kind is KeyboardInterrupt and _ends_in_our_code(trace):
        show_err(f"{INTERRUPTED}\n")
    else:
        sys.__excepthook__(kind, error, trace)


def _ends_in_our_code(trace: TracebackType | None) -> bool:
    """Whether the program was in a call of ours: waiting for a job."""
    while trace is not None:
        if is_ours(trace.tb_frame.f_code.co_filename):
            return True
        trace = trace.tb_next
    return False
