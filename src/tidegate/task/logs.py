"""What is logged in a slot's process: on its standard error with the place in each line, and to the driver. Executor.

Any thread may log. Lines wait here for the next heartbeat, at most MAX_LINES; what comes on top is counted and left out, so
that a function that logs each record slows neither the slot nor the driver down. Whose line it is, is found by looking up
the stack when something is logged: records pay nothing for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from types import FrameType

from tidegate.task.operators.base import RunningOperator
from tidegate.wire.control import LogLine

MAX_LINES = 200  #: between two heartbeats, so about in a second
MAX_MESSAGE = 4000  #: characters of one line, its traceback included
MAX_FRAMES = 60  #: that are looked at for an operator


class SlotLog(logging.Handler):
    """The root logger's handler in a worker."""

    def __init__(self, job: str, attempt: str, slot: str, log_format: str = "text") -> None:
        super().__init__(logging.INFO)
        self._place = {"job": job, "attempt": attempt, "slot": slot}
        self._json = log_format == "json"
        self._lock = threading.Lock()
        self._lines: list[LogLine] = []
        self._dropped = 0

    def install(self) -> None:
        """Of this process alone: a worker serves one slot, then ends."""
        root = logging.getLogger()
        root.addHandler(self)
        if root.level == logging.WARNING:  # Python's default: the user has not chosen
            root.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except Exception:
            self.handleError(record)
            return
        with self._lock:
            if len(self._lines) < MAX_LINES:
                self._lines.append(line)
            else:
                self._dropped += 1
        if record.levelno >= logging.WARNING:
            with contextlib.suppress(OSError, ValueError):  # a closed stderr: the driver gets the line all the same
                sys.stderr.write(self.format_line(line) + "\n")

    def take(self) -> tuple[list[LogLine], int]:
        """The lines since the last call, and how many were left out."""
        with self._lock:
            lines, dropped = self._lines, self._dropped
            self._lines, self._dropped = [], 0
        return lines, dropped

    def format_line(self, line: LogLine) -> str:
        if self._json:
            place = self._place | (
                {"operator": line.operator, "uid": line.uid, "subtask": line.subtask} if line.uid else {}
            )
            what = {"at": line.at, "level": line.level, "logger": line.logger, "message": line.message}
            return json.dumps(what | place, ensure_ascii=False)
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at)) + f",{int(line.at % 1 * 1000):03d}"
        whose = f" {line.uid}#{line.subtask}" if line.uid else ""
        where = f"{self._place['job']} {self._place['attempt']} {self._place['slot']}{whose}"
        return f"{at} {line.level} [{where}] {line.logger}: {line.message}"

    def _line(self, record: logging.LogRecord) -> LogLine:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        operator = operator_on_stack(sys._getframe())
        return LogLine(
            at=record.created,
            level=record.levelname,
            logger=record.name,
            message=message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ...",
            uid="" if operator is None else operator.uid,
            operator="" if operator is None else operator.name,
            subtask=-1 if operator is None else operator.subtask,
        )


def operator_on_stack(frame: FrameType | None) -> RunningOperator | None:
    """The innermost operator that is at work in this thread."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_varnames[:1] == ("self",):
            found = frame.f_locals.get("self")
            if isinstance(found, RunningOperator):
                return found
        frame = frame.f_back
    return None
