"""A source that does what its script says: failure stands in the input of the test. One process: for the in-process runner.

ScriptedSource([1, 2, Checkpoint(), 3, Fail(), 4])

1, 2, 3, 4      records, one a poll, in order
Checkpoint()    continue only after a checkpoint that covers everything before has completed
Fail()          raise, once over all restarts: the attempt ends, and the script is read again from the checkpoint
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.errors import ConfigurationError
from tidegate.ids import CheckpointId

WAIT_S = 0.005  #: between two looks whether the checkpoint has completed


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Wait for a checkpoint."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise ScriptedFailure, the first time that the script gets here."""

    message: str = "the script says so"


class ScriptedFailure(RuntimeError):
    """Raised by Fail()."""


_scripts = itertools.count()
_failed: set[tuple[int, int]] = set()  #: (script, line) of every Fail() that has raised in this process


class ScriptedSource(Source):
    """One split, read by one subtask.

    :param type: annotation or schema of the records; None: untyped.
    """

    def __init__(self, script: Iterable[Any], type: Any = None) -> None:
        self.script = list(script)
        self.record_type = type
        self._number = next(_scripts)  #: shipped with the source, so that every attempt means the same script

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split("script")]

    def reader(self, context: ReaderContext) -> SourceReader:
        return _ScriptReader(self.script, self._number, context)

    @property
    def records(self) -> list[Any]:
        """What a run without failures would read."""
        return [line for line in self.script if not isinstance(line, (Checkpoint, Fail))]


class _ScriptReader(SourceReader):
    """The position is the line after the last record handed on; Checkpoint() and Fail() count as lines."""

    def __init__(self, script: list[Any], number: int, context: ReaderContext) -> None:
        self._script = script
        self._number = number
        self._context = context
        self._line: int | None = None  #: None: this subtask has no split
        self._covered = 0  #: everything before this line is part of a completed checkpoint
        self._kept: dict[CheckpointId, int] = {}  #: the line that each running checkpoint has kept

    def add_splits(self, splits: Sequence[Split]) -> None:
        (split,) = splits
        line = 0 if split.position is None else split.position
        if not isinstance(line, int) or not 0 <= line <= len(self._script):
            raise ConfigurationError(f"the script has {len(self._script)} lines; a checkpoint continues at {line!r}")
        self._line = self._covered = line

    def poll(self, deadline: float) -> list[Any] | None:
        while self._line is not None and self._line < len(self._script):
            line = self._script[self._line]
            if isinstance(line, Fail):
                self._fail_once(line)
            elif not isinstance(line, Checkpoint):
                self._line += 1
                return [line]
            elif self._covered < self._line:
                self._context.sleep(max(0.0, min(WAIT_S, deadline - self._context.clock())))
                return None
            self._line += 1
        return None

    def splits(self) -> list[Split]:
        if self._line is None:
            return []
        return [Split("script", self._line, finished=self._line == len(self._script))]

    def snapshot(self, checkpoint: CheckpointId) -> list[Split]:
        if self._line is not None:
            self._kept[checkpoint] = self._line
        return self.splits()

    def notify_complete(self, checkpoint: CheckpointId) -> None:
        self._covered = max(self._covered, self._kept.get(checkpoint, 0))
        self._kept = {id: line for id, line in self._kept.items() if id > checkpoint}

    def _fail_once(self, line: Fail) -> None:
        assert self._line is not None
        if (self._number, self._line) not in _failed:
            _failed.add((self._number, self._line))
            raise ScriptedFailure(line.message)
