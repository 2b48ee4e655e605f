"""A command whose reader has enough (`tidegate inspect ... | head`) ends quietly, as other commands do. Any machine."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

EXIT_PIPE = 141  #: 128 + SIGPIPE, as shells count it


def until_nobody_reads(command: Callable[[], int]) -> int:
    """The command's exit code; EXIT_PIPE where it wrote into a pipe that nobody reads any more.

    What it wrote is flushed here: at the end of the process Python could only complain.
    """
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not output_is_closed():
            raise  # a pipe or a connection of the program's own
        for stream in (sys.stdout, sys.stderr):
            if nobody_reads(stream):
                _let_go(stream)
        return EXIT_PIPE


def output_is_closed() -> bool:
    return nobody_reads(sys.stdout) or nobody_reads(sys.stderr)


def nobody_reads(stream: TextIO | None) -> bool:
    """Whether the stream is a pipe, or a socket, whose other end is closed."""
    try:
        descriptor = stream.fileno()  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):  # no stream, closed, or not one of the system's
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are told in any case
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _let_go(stream: TextIO) -> None:
    """What is still buffered goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
