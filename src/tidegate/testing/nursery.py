"""Processes that may be killed: a small parent that forks one child for each piece of work. For the crash matrix.

The parent has imported what the children need and has no threads, so a child costs milliseconds. It is a process of its own
because the tests' process may have threads, which do not survive a fork. Work comes pickled through a pipe from the process
that started it, and from nowhere else.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

import cloudpickle

_LENGTH = struct.Struct("<Q")


class Nursery:
    """A context manager; `run` may be called many times. Temporary files of those who are killed stay in `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> Nursery:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidegate.testing.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": self._folder},
        )
        return self

    def run(self, work: Callable[[], Any]) -> int:
        """Do `work` in a process of its own. 0, or minus the number of the signal that killed it.

        :raises ChildFailed: with its traceback, when it raised.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("r", suffix=".txt") as report:
            data = cloudpickle.dumps((work, report.name))
            self._process.stdin.write(_LENGTH.pack(len(data)) + data)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise ChildFailed("the parent of the processes has ended")
            code = int(line)
            if code > 0:
                raise ChildFailed(report.read() or f"exit status {code}")
            return code

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class ChildFailed(AssertionError):
    """A child ended with an exception, not by a signal."""


def main() -> None:
    import tidegate.testing.runner  # noqa: F401 - so that no child has to

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the work prints must not be taken for an answer
    while (data := _read_work(sys.stdin.buffer)) is not None:
        child = os.fork()
        if child == 0:
            _work(data)
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")


def _read_work(pipe: BinaryIO) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    return pipe.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else None


def _work(data: bytes) -> None:
    report = ""
    try:
        work, report = cloudpickle.loads(data)
        work()
        code = 0
    except BaseException:
        code = 1
        text = traceback.format_exc()
        if report:
            with open(report, "w") as file:
                file.write(text)
        else:
            sys.stderr.write(text)
    os._exit(code)


if __name__ == "__main__":
    main()
