"""`tidegate run endless_job.py`, or plain Python, as a process of its own, and what it wrote, read without Tidegate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.rest import registry
from tidegate.rest.registry import Entry

PROGRAM = Path(__file__).parent / "endless_job.py"
KEYS, SPLITS = 7, 16
PATIENCE_S = 120.0


class Driver:
    """Ends with its `with`."""

    def __init__(self, folder: Path, *options: str, plain: bool = False) -> None:
        self.folder = folder
        self.storage = f"file://{folder}/storage"
        self.log = folder / f"driver-{time.monotonic_ns()}.log"
        run = [] if plain else ["-m", "tidegate.cli.main", "run", "--plain", *options]
        command = [sys.executable, *run, str(PROGRAM), self.storage, str(folder / "out")]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=dict(os.environ)
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def until(self, what: str, true: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := true()):
            gone = self._process.poll() is not None
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.log.read_text()[-3000:]}"
            assert not gone, f"the driver has ended before: {what}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.05)
        return found

    def entry(self) -> Entry:
        """Its job in the registry folder, once it runs."""
        own = lambda: [entry for entry in registry.entries() if entry.pid == self._process.pid]  # noqa: E731
        (entry,) = self.until("the job is registered", own)
        self.until("the job runs", lambda: re.search(r"endless: RUNNING", self.log.read_text()))
        return entry  # type: ignore[no-any-return]

    def terminate(self) -> None:
        """As a supervisor does."""
        self._process.terminate()

    def end(self) -> int:
        """Its exit code."""
        return self._process.wait(PATIENCE_S)


def rows_in(folder: Path) -> list[tuple[int, int, int]]:
    """(key, nth of its key, number)"""
    parts = (folder / "out").glob("part-*")
    return [tuple(json.loads(line)) for part in parts for line in part.read_text().splitlines()]


def assert_exact(folder: Path, at_least: int) -> int:
    """Every number up to some point came out once, and each key was counted without a gap. Gives how many."""
    rows = rows_in(folder)
    assert len(rows) >= at_least
    counts = defaultdict(list)
    for key, nth, number in rows:
        assert number % KEYS == key
        counts[key].append(nth)
    assert {key: sorted(nths) for key, nths in counts.items()} == {
        key: list(range(1, len(nths) + 1)) for key, nths in counts.items()
    }
    for split in range(SPLITS):  # number n is of split n % SPLITS, and each split comes in order
        numbers = sorted(number for _, _, number in rows if number % SPLITS == split)
        assert numbers == [split + SPLITS * n for n in range(len(numbers))], f"split {split} has a gap or doubles"
    return len(rows)
