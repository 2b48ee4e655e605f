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


#: Each of these ends its attempt. In this order, one an attempt, so that each is the one that the driver hears of.
FATAL = (
    "source function",
    "open",
    "filter function",
    "process_element",
    "map function",
    "key function",
    "sink writer",
    "sink committer",
    "write",
    "flush",
    "prepare",
    "end_input",
    "sink end_input",
)
#: A commit is tried again, and after the end of the job there is nothing to restart.
HARMLESS = ("commit", "after the commit", "close", "sink close", "committer close")


class Tripped(Exception):
    """Raised on purpose."""


class Trips:
    """Places in user code that raise, once each over all processes and attempts. `notes` None: never."""

    def __init__(self, notes: str | None) -> None:
        self._notes = notes
        self._shipped: int | None = None  #: how many fatal ones had happened when the attempt was shipped

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shipped": self._happened() if self._shipped is None else self._shipped}

    def reach(self, place: str) -> None:
        if self._notes is None or (place in FATAL and FATAL.index(place) != self._shipped):
            return
        try:
            os.close(os.open(self._note(place), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
        raise Tripped(place)

    def _happened(self) -> int:
        return sum(os.path.exists(self._note(place)) for place in FATAL)

    def _note(self, place: str) -> str:
        return os.path.join(str(self._notes), f"tripped {place}")


class FaultyFileSink(Sink):
    """A FileSink whose methods raise."""

    guarantee = "exactly-once"

    def __init__(self, path: str, trips: Trips) -> None:
        self._sink = FileSink(path, "jsonl")
        self._trips = trips

    def writer(self, context: WriterContext) -> SinkWriter:
        self._trips.reach("sink writer")
        return _FaultyWriter(self._sink.writer(context), self._trips)

    def committer(self, context: WriterContext) -> Committer | None:
        self._trips.reach("sink committer")
        committer = self._sink.committer(context)
        return _FaultyCommitter(committer, self._trips)


class _FaultyWriter(SinkWriter):
    def __init__(self, writer: SinkWriter, trips: Trips) -> None:
        self._writer = writer
        self._trips = trips

    def write(self, batch: Batch) -> None:
        self._writer.write(batch)
        if max(row[1] for row in batch.rows()) > 120:
            self._trips.reach("write")

    def flush(self) -> None:
        self._writer.flush()
        self._trips.reach("flush")

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        prepared = self._writer.prepare(checkpoint)
        self._trips.reach("prepare")
        return prepared

    def end_input(self) -> None:
        self._trips.reach("sink end_input")
        self._writer.end_input()

    def close(self) -> None:
        self._writer.close()
        self._trips.reach("sink close")


class _FaultyCommitter(Committer):
    def __init__(self, committer: Any, trips: Trips) -> None:
        self._committer = committer
        self._trips = trips

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        self._trips.reach("commit")
        outcomes: list[CommitOutcome] = self._committer.commit(committables)
        self._trips.reach("after the commit")
        return outcomes

    def close(self) -> None:
        self._trips.reach("committer close")
