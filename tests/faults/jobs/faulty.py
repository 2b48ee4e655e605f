"""User code that raises: once at each place, over all processes and attempts."""

from __future__ import annotations

import os
import sys
from typing import Any

import cloudpickle

from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, WriterContext
from tidegate.connectors.file_sink import FileSink
from tidegate.ids import CheckpointId

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the executors cannot import the tests


class Tripped(Exception):
    """Raised on purpose."""


def trip(notes: str | None, place: str) -> None:
    """Raise, if nobody has raised at this place before. `notes` None: never."""
    if notes is None:
        return
    try:
        os.close(os.open(os.path.join(notes, f"tripped {place}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    raise Tripped(place)


class FaultyFileSink(Sink):
    """A FileSink whose methods raise."""

    guarantee = "exactly-once"

    def __init__(self, path: str, notes: str | None) -> None:
        self._sink = FileSink(path, "jsonl")
        self._notes = notes

    def writer(self, context: WriterContext) -> SinkWriter:
        trip(self._notes, "sink writer")
        return _FaultyWriter(self._sink.writer(context), self._notes)

    def committer(self, context: WriterContext) -> Committer | None:
        trip(self._notes, "sink committer")
        committer = self._sink.committer(context)
        return _FaultyCommitter(committer, self._notes)


class _FaultyWriter(SinkWriter):
    def __init__(self, writer: SinkWriter, notes: str | None) -> None:
        self._writer = writer
        self._notes = notes

    def write(self, batch: Batch) -> None:
        self._writer.write(batch)
        if max(row[1] for row in batch.rows()) > 120:
            trip(self._notes, "write")

    def flush(self) -> None:
        self._writer.flush()
        trip(self._notes, "flush")

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        prepared = self._writer.prepare(checkpoint)
        trip(self._notes, "prepare")
        return prepared

    def end_input(self) -> None:
        trip(self._notes, "sink end_input")
        self._writer.end_input()

    def close(self) -> None:
        self._writer.close()
        trip(self._notes, "sink close")


class _FaultyCommitter(Committer):
    def __init__(self, committer: Any, notes: str | None) -> None:
        self._committer = committer
        self._notes = notes

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        trip(self._notes, "commit")
        outcomes: list[CommitOutcome] = self._committer.commit(committables)
        trip(self._notes, "after the commit")
        return outcomes

    def close(self) -> None:
        trip(self._notes, "committer close")
