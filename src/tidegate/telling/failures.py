"""Errors as the user should read them: what happened, where, the cause; none of our own frames. Driver; pure."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import traceback
from types import TracebackType

from tidegate.errors import JobFailed, TidegateError

_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line ')


def describe_error(error: TidegateError) -> str:
    """One message: what happened, then the user's line and what the executor said, where they are known."""
    what, *details = error.message.splitlines() or [type(error).__name__]
    lines = [f"the job failed: {what}" if isinstance(error, JobFailed) else what, *details]
    user_line = str(error.context.get("user_line") or "")
    if not isinstance(error, JobFailed):  # of a failed job the traceback only says who waited for it
        user_line = user_line or line_in_program(error.__traceback__)
    if user_line:
        said = next((place for place, line in enumerate(lines) if line.endswith(user_line)), None)
        if said is None:
            if not any(user_line in line for line in lines):
                lines.append(f"  at {user_line}")
            said = len(lines) - 1
        lines[said + 1 : said + 1] = _source_of(user_line)
    cause = without_our_frames(str(error.context.get("cause") or ""))
    if cause:
        lines += ["", *(f"  {line}" for line in cause.splitlines())]
    return "\n".join(lines)


def line_in_program(trace: TracebackType | None) -> str:
    """The innermost line that is neither ours nor a library's, as file:line; "" where there is none."""
    found = ""
    for frame in traceback.extract_tb(trace):
        if not frame.filename.startswith((_OUR_FOLDER, "<", *_LIBRARIES)):
            found = f"{frame.filename}:{frame.lineno}"
    return found


def format_program_error(error: BaseException, script: str) -> str:
    """Python's own traceback of an exception in the program, from the program's first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def without_our_frames(text: str) -> str:
    """A traceback as text, without the frames of this package."""
    kept: list[str] = []
    ours = False
    frames = 0
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            ours = is_ours(frame["file"])
            frames += not ours
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    return "\n".join(kept) if frames else text.strip()


def is_ours(file: str) -> bool:
    return file.startswith(_OUR_FOLDER + os.sep) or f"{os.sep}site-packages{os.sep}tidegate{os.sep}" in file


def _source_of(user_line: str) -> list[str]:
    file, _, number = user_line.rpartition(":")
    source = linecache.getline(file, int(number)).strip() if number.isdecimal() else ""
    return [f"      {source}"] if source else []
