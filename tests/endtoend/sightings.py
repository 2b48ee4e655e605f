"""A reader that looks all the time, and notes when it first saw each row; then the log says whether that was too early.

Which rows were prepared for which checkpoint is known from the notes of the sink's writers (`Noted`), and when a checkpoint
counted from the job's log. So a sink is judged by its rows alone, whatever it keeps beside them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from faults.jobs.tally import Settings

Row = Sequence[Any]
_PAUSE_S = 0.05


class FirstSightings:
    """`look` gives rows that an independent client sees; all of them, or those that are new."""

    def __init__(self, look: Callable[[], Iterable[Row]], settings: Settings) -> None:
        self._look = look
        self._settings = settings
        self.seen: dict[tuple[int, ...], float] = {}
        self.trouble: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FirstSightings:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            try:
                rows = list(self._look())
            except Exception as error:  # the service is down
                self.trouble = error
                continue
            now = time.time()
            for row in rows:
                self.seen.setdefault(tuple(row), now)

    def assert_none_was_early(self) -> None:
        assert self.seen, f"nothing was ever seen: {self.trouble}"
        counted = when_rows_counted(Path(self._settings.log), Path(self._settings.epochs))
        early = {row: (at, counted.get(row)) for row, at in self.seen.items() if at < counted.get(row, float("inf"))}
        assert not early, f"{len(early)} of {len(self.seen)} rows were seen too early: {list(early.items())[:5]}"


def when_rows_counted(log: Path, epochs: Path) -> dict[tuple[int, ...], float]:
    """When the first checkpoint that holds a row stood in the log."""
    counted: dict[tuple[int, ...], float] = {}
    for file in log.glob("*.json"):
        record = json.loads(file.read_text())["record"]
        if record["kind"] != "checkpoint":
            continue
        newest, stood = record["latest"], file.stat().st_mtime
        for notes in epochs.glob(f"{newest['id']}.g{newest['generation']}-a{newest['attempt']}.*.json"):
            for row in json.loads(notes.read_text()):
                counted[tuple(row)] = min(stood, counted.get(tuple(row), float("inf")))
    return counted
