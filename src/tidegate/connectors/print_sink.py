"""`print()`: records as lines on the driver's standard output.

Where it runs: the writer on the executors; the lines travel to the driver on the control connection (topic "print"; the
payload is UTF-8, whole lines, each with its line feed).

At-least-once: a line is on its way as soon as its record is written, before any checkpoint, so records that are
processed again after a failure are printed again.
"""

from __future__ import annotations

from typing import Any

from tidegate.batch import Batch
from tidegate.connectors.contract import Sink, SinkWriter, WriterContext

TOPIC = "print"
_MESSAGE_BYTES = 64 * 1024
_LINE_CHARACTERS = 64 * 1024  #: what comes after is cut off: it is for reading, and a message has a limit


class PrintSink(Sink):
    """Prints `str(record)`, with Flink's marks in front: the prefix, and the subtask where there are several.

    At-least-once: after a failure lines may come again.
    """

    guarantee = "at-least-once"

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def writer(self, context: WriterContext) -> SinkWriter:
        return _PrintWriter(self._mark(context), context)

    def _mark(self, context: WriterContext) -> str:
        """ "prefix:2> ", "prefix> ", "2> " or nothing; subtasks are counted from 1, as in Flink."""
        subtask = str(context.subtask + 1) if context.parallelism > 1 else ""
        mark = ":".join(part for part in (self.prefix, subtask) if part)
        return f"{mark}> " if mark else ""


class _PrintWriter(SinkWriter):
    def __init__(self, mark: str, context: WriterContext) -> None:
        self._mark = mark
        self._send = context.send_to_driver

    def write(self, batch: Batch) -> None:
        """One message, or a few where the lines are many."""
        pending: list[bytes] = []
        pending_bytes = 0
        for row in batch.rows():
            line = self._line(row)
            if pending and pending_bytes + len(line) > _MESSAGE_BYTES:
                self._send(TOPIC, b"".join(pending))
                pending, pending_bytes = [], 0
            pending.append(line)
            pending_bytes += len(line)
        if pending:
            self._send(TOPIC, b"".join(pending))

    def _line(self, row: Any) -> bytes:
        text = str(row)
        if len(text) > _LINE_CHARACTERS:
            text = f"{text[:_LINE_CHARACTERS]}... ({len(text) - _LINE_CHARACTERS} more characters)"
        # A lone surrogate must not fail a job that only wants to show it.
        return f"{self._mark}{text}\n".encode(errors="backslashreplace")
