"""Sources that are written to files first, as DataFrames are: a job reads the rows of its first start, each once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from protocol_kit import environment

import tidegate as tg
from tidegate.connectors.files_source import Files
from tidegate.errors import JobFolderInUse, Superseded
from tidegate.storage.log import JobLog, LogKind, decode_record
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import Crash, SimulatedCrash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, RunResult

ROWS = 50
SCHEMA = pa.schema([("n", pa.int64()), ("of", pa.string())])


class Rows(tg.Source):
    """What Spark does with a DataFrame: each start gives the files other names, and computing the rows takes its time."""

    record_type = SCHEMA

    def __init__(self, name: str, during: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.during: Callable[[], None] | None = during
        self.folder = ""

    def check_storage(self, storage: str) -> None: ...

    def write_to(self, folder: str) -> None:
        path = Path(folder.removeprefix("file://"))
        path.mkdir(parents=True)
        (path / f"part-{self.name}.parquet").write_bytes(b"half of it")
        assert self.during is not None
        self.during()
        table = pa.table({"n": range(ROWS), "of": [self.name] * ROWS}, schema=SCHEMA)
        pq.write_table(table, path / f"part-{self.name}.parquet")
        (path / "_SUCCESS").touch()

    def read_from(self, folder: str) -> None:
        self.folder = folder

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return self._files().discover_splits(parallelism)

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return self._files().reader(context)

    def _files(self) -> Files:
        return Files(self.folder, "parquet", type=SCHEMA)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "during": None}


class Scene:
    def __init__(self, folder: Path) -> None:
        forget_ledgers()
        self.folder = folder
        self.storage = f"file://{folder}"

    def start(self, rows: Rows, resume: str | None = None, *crashes: Crash) -> RunResult:
        env = environment(every="10ms", parallelism=1, storage=self.storage)
        env._config = replace(env._config, resume=resume)
        numbers = env.from_source(rows, uid="rows", returns=SCHEMA)
        numbers.map(lambda row: (row["of"], row["n"]), returns=tuple[str, int]).sink_to(LedgerSink("rows"), uid="out")
        return InProcessRun(env, 1, list(crashes), storage=self.storage, max_drivers=1).run()

    def dies_before_finished(self, rows: Rows, resume: str | None = None) -> None:
        with pytest.raises(AllDriversDied):
            self.start(rows, resume, Crash("driver.before-finished"))

    def written(self) -> list[str]:
        """Of which starts there are files."""
        return sorted(path.name[5:-8] for path in self.folder.glob("job/input/**/part-*.parquet"))

    def came_out(self) -> Counter[Any]:
        return Counter(ledger("rows").rows())


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def once(name: str) -> Counter[Any]:
    return Counter({(name, n): 1 for n in range(ROWS)})


def test_a_second_start_is_refused_before_it_has_written_anything(scene: Scene) -> None:
    scene.dies_before_finished(Rows("first"))
    with pytest.raises(JobFolderInUse):
        scene.start(Rows("second"))
    assert scene.written() == ["first"]

    assert scene.start(Rows("third"), "latest").status.value == "FINISHED"
    assert scene.came_out() == once("first")
    assert scene.written() == ["first"]


def test_a_second_start_while_the_first_computes_its_rows_is_refused(scene: Scene) -> None:
    def start_again() -> None:
        with pytest.raises(JobFolderInUse):
            scene.start(Rows("second"))

    scene.dies_before_finished(Rows("first", during=start_again))
    assert scene.start(Rows("third"), "latest").status.value == "FINISHED"
    assert scene.came_out() == once("first")


def test_a_driver_that_takes_over_while_the_first_computes_its_rows_reads_its_own(scene: Scene) -> None:
    slow = Rows("first", during=lambda: scene.dies_before_finished(Rows("second"), "latest"))

    assert isinstance(scene.start(slow).error, Superseded)
    assert scene.written() == ["second"]

    assert scene.start(Rows("third"), "latest").status.value == "FINISHED"
    assert scene.came_out() == once("second")


def test_what_a_start_has_left_that_died_while_it_wrote_is_removed_by_the_next(scene: Scene) -> None:
    def die() -> None:
        raise SimulatedCrash("while the rows were written")

    with pytest.raises(AllDriversDied):
        scene.start(Rows("first", during=die))
    assert scene.written() == ["first"]

    assert scene.start(Rows("second"), "latest").status.value == "FINISHED"
    assert scene.written() == ["second"]
    assert scene.came_out() == once("second")


def test_rows_that_cannot_be_computed_end_the_job_and_a_fresh_start_may_follow(scene: Scene) -> None:
    def fail() -> None:
        raise ValueError("a bad row")

    for _ in range(2):
        result = scene.start(Rows("first", during=fail))
        with pytest.raises(tg.ConfigurationError, match=r"the rows of Rows \(uid rows\) at .*ValueError: a bad row"):
            raise result.error  # type: ignore[misc]
    assert scene.start(Rows("second")).status.value == "FINISHED"
    assert scene.came_out() == once("second")
    with pytest.raises(JobFolderInUse):
        scene.start(Rows("third"))


def older_log(scene: Scene) -> None:
    """As a release wrote it that knew one folder for each DataFrame, and no record of it."""
    for path in sorted((scene.folder / "job/log").glob("*.json")):
        envelope = json.loads(path.read_text())
        record = {name: value for name, value in envelope["record"].items() if name not in ("inputs", "never_ran")}
        if record["kind"] == "input":
            record["kind"] = "generation"
        body = json.dumps(record)
        checksum = xxhash.xxh3_128_hexdigest(body.encode())
        path.write_text(f'{{"format_version":1,"checksum":"{checksum}","record":{body}}}')
        assert decode_record(path.read_bytes(), "here").inputs == {}
    (written,) = (scene.folder / "job/input/rows").iterdir()
    for file in written.iterdir():
        file.rename(scene.folder / "job/input/rows" / file.name)
    written.rmdir()


def test_a_job_of_an_older_release_goes_on_with_its_files(scene: Scene) -> None:
    with pytest.raises(AllDriversDied):
        scene.start(Rows("first"), None, Crash("driver.before-metadata"))
    older_log(scene)

    scene.dies_before_finished(Rows("second"), "latest")
    assert scene.start(Rows("third"), "latest").status.value == "FINISHED"

    assert scene.came_out() == once("first")
    assert scene.written() == ["first"]
    newest = JobLog(open_store(scene.storage), JobPaths("job")).read_newest()
    assert newest is not None
    assert (newest.kind, newest.inputs) == (LogKind.FINISHED, {"rows": "input/rows/"})
