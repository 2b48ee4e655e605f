"""A driver that was stopped, and wakes up when another one has started the job from an older checkpoint, changes nothing.

The second driver runs to its end inside the crash point of the first: there the first one stands still, and then continues.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from protocol_kit import Numbered, environment, fresh_storage

import tidegate as tg
from tidegate.errors import Superseded
from tidegate.ids import SlotId
from tidegate.storage import short_log
from tidegate.storage.log import JobLog
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import InProcessCrashPoints
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import InProcessRun

#: Workers that died with a file open never close it: the system does, and here the garbage collector, which says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SOURCE = Numbered(1, 2, 300, (3,))


@pytest.fixture(autouse=True)
def logs_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that wakes up late finds old numbers of the log free."""
    monkeypatch.setattr(short_log, "KEPT_RECORDS", 2)


@pytest.fixture(autouse=True)
def files_of_dead_workers_are_closed() -> Iterator[None]:
    yield
    gc.collect()


class Stopped(InProcessCrashPoints):
    """Does something else at the nth time that a point is reached, and lets the driver continue."""

    def __init__(self, point: str, nth: int, meanwhile: Callable[[], None]) -> None:
        super().__init__([])
        self.point, self.left, self.meanwhile = point, nth, meanwhile

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                self.meanwhile()


def read_table(folder: str) -> Counter[Any]:
    files = tg.read_manifest(folder)
    assert all(map(os.path.exists, files)), "the table names files that are not there"
    return Counter((row["f0"], row["f1"]) for file in files for row in ds.dataset(file).to_table().to_pylist())


def read_delta(folder: str) -> Counter[Any]:
    deltalake = pytest.importorskip("deltalake")
    return Counter((row["f0"], row["f1"]) for row in deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist())


def read_files(folder: str) -> Counter[Any]:
    return Counter(
        (row["f0"], row["f1"])
        for row in ds.dataset(folder, format="parquet", exclude_invalid_files=False).to_table().to_pylist()
    )


class CarryingSink(tg.Sink):
    """The checkpoint holds the rows themselves, as with Kafka: nothing that the second driver deletes stops a late commit."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return CarryingWriter(context.attempt)

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return CarryingCommitter(self.folder)


class CarryingWriter(tg.SinkWriter):
    def __init__(self, attempt: str) -> None:
        self.attempt, self.rows = attempt, []

    def write(self, batch: Any) -> None:
        self.rows += batch.rows()

    def prepare(self, checkpoint: Any) -> list[bytes]:
        rows, self.rows = self.rows, []
        return [json.dumps([f"{self.attempt}-{checkpoint}", rows]).encode()] if rows else []


class CarryingCommitter(tg.Committer):
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def commit(self, committables: list[bytes]) -> list[tg.CommitOutcome]:
        self.folder.mkdir(exist_ok=True)
        for epoch, rows in map(json.loads, committables):
            (self.folder / epoch).write_text(json.dumps(rows))
        return [tg.CommitOutcome.DONE] * len(committables)


def read_carried(folder: str) -> Counter[Any]:
    return Counter(tuple(row) for file in Path(folder).iterdir() for row in json.loads(file.read_text()))


SINKS: dict[str, tuple[Callable[[str], tg.Sink], Callable[[str], Counter[Any]]]] = {
    "table": (tg.ParquetTableSink, read_table),
    "delta": (tg.DeltaSink, read_delta),
    "files": (lambda folder: tg.FileSink(folder, "parquet"), read_files),
    "carried": (CarryingSink, read_carried),
    "ledger": (lambda folder: LedgerSink(folder), lambda folder: Counter(ledger(folder).rows())),
}
#: Where a driver asks the log once more after it was stopped, before anything is done to the outside.
POINTS = ["driver.before-metadata", "driver.before-log", "driver.after-log"]


@pytest.mark.property
@pytest.mark.parametrize("goes_back", [True, False], ids=["from an older checkpoint", "latest"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", SINKS)
def test_a_driver_that_wakes_up_behind_another_adds_nothing(
    kind: str, point: str, goes_back: bool, tmp_path: Path
) -> None:
    forget_ledgers()
    make, read = SINKS[kind]
    out, storage = str(tmp_path / "out"), fresh_storage()

    def job(resume: str | None = None) -> tg.StreamEnvironment:
        env = environment(every="10ms", parallelism=1, storage=storage, retained=5)
        env.from_source(SOURCE, uid="numbers", returns=tuple[int, int]).sink_to(make(out), uid="out")
        env._config = replace(env._config, resume=resume)
        return env

    seen: list[Counter[Any]] = []

    def second_driver() -> None:
        newest = JobLog(open_store(storage), JobPaths("job")).read_newest()
        assert newest is not None
        resume = f"chk-{newest.retained[-2].id}" if goes_back else "latest"
        assert InProcessRun(job(resume), 2, storage=storage).run().status.value == "FINISHED"
        seen.append(read(out))

    result = InProcessRun(job(), 1, storage=storage, crash_points=Stopped(point, 3, second_driver)).run()

    assert isinstance(result.error, Superseded)
    assert seen == [read(out)]
    if not goes_back:
        assert seen == [Counter(SOURCE.rows())]
