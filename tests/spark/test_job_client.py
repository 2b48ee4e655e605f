"""A running job in the user's hands: status, waiting, checkpoints on request, cancelling, and continuing afterwards."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from job_kit import PATIENCE, finish

import tidegate as tg
from tidegate.connectors.contract import ReaderContext, SourceReader, Split
from tidegate.coordinator.observing import CheckpointStatus
from tidegate.durations import seconds

pytestmark = pytest.mark.spark

TOTAL = 6000
KEYS = 7


class CountByKey(tg.KeyedProcessFunction):
    count = tg.ValueState(int, default=0)

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[tuple[int, int, int]]:
        self.count.set(self.count.get() + 1)
        yield (ctx.key, self.count.get(), value)


class Gated(tg.DataGenerator):
    """Stops in the middle until the gate is a file: however slow the machine, the job does not end before."""

    def __init__(self, gate: Path, rate: float | None) -> None:
        super().__init__(lambda index: index, count=TOTAL, rate=rate, type=int)
        self.gate = gate

    def reader(self, context: ReaderContext) -> SourceReader:
        return _GatedReader(super().reader(context), self.gate, context)


class _GatedReader(SourceReader):
    def __init__(self, numbers: SourceReader, gate: Path, context: ReaderContext) -> None:
        self._numbers, self._gate, self._context = numbers, gate, context

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._numbers.add_splits(splits)

    def splits(self) -> list[Split]:
        return self._numbers.splits()

    def poll(self, deadline: float) -> Any:
        if any(split.position > TOTAL // 2 for split in self.splits()) and not self._gate.exists():
            self._context.sleep(max(0.0, min(0.02, deadline - self._context.clock())))
            return None
        return self._numbers.poll(deadline)


def counting(
    storage: str,
    out: Path,
    *,
    rate: float | None,
    every: str | None = "100ms",
    gate: Path | None = None,
    **checkpointing: Any,
) -> tg.StreamEnvironment:
    """Numbers, counted by key, in files. With a rate it takes its time, so that it can be cancelled on the way; with a gate
    it waits in the middle until that is opened."""
    env = tg.StreamEnvironment("counting", parallelism=2)
    env.checkpointing(every=every, storage=storage, **checkpointing)
    ungated = tg.DataGenerator(lambda i: i, count=TOTAL, rate=rate, type=int)
    numbers = env.from_source(ungated if gate is None else Gated(gate, rate), uid="numbers")
    counted = numbers.key_by(lambda n: n % KEYS, key_type=int).process(CountByKey(), uid="counts")
    counted.write_files(str(out), format="jsonl", uid="files")
    return env


def wait_until(client: tg.JobClient, true: Callable[[], bool]) -> None:
    """Every event of the job is a chance to look."""
    reached = threading.Event()

    def look(event: object) -> None:
        if true() or client.status.is_terminal:
            reached.set()

    client.view.subscribe(look)
    look(None)
    reached.wait(seconds(PATIENCE, ""))
    assert true(), f"{client.status}: {client.view.status_detail}"


def rows_in(out: Path) -> list[tuple[int, int, int]]:
    return [tuple(json.loads(line)) for part in out.glob("part-*") for line in part.read_text().splitlines()]


def test_a_canceled_job_goes_on_exactly_where_it_was(storage: str, tmp_path: Path) -> None:
    out = tmp_path / "out"

    # A run that is cancelled on the way.
    client = counting(storage, out, rate=500).execute_async()
    wait_until(client, lambda: client.view.completed >= 3)
    assert client.status is tg.JobStatus.RUNNING
    with pytest.raises(tg.TimedOut, match=r"is still RUNNING after 0\.01 s"):
        client.wait("10ms")
    assert len(client.workers()) == 4
    assert len({hello.pid for hello in client.workers().values()}) == 4
    client.cancel()
    assert client.wait(PATIENCE) is tg.JobStatus.CANCELED
    completed = [c for c in client.checkpoints() if c.status is CheckpointStatus.COMPLETED]
    assert [c.checkpoint for c in completed] == sorted(c.checkpoint for c in completed)
    assert all(
        c.path.endswith("_metadata.json") and c.duration_s is not None and len(c.acknowledged) == 4 for c in completed
    )
    written = rows_in(out)
    assert 0 < len(written) < TOTAL

    # Without resume the folder is refused, and nothing is touched.
    with pytest.raises(tg.StorageError, match=r"'counting' has already run in file://.*resume=\"latest\"") as refused:
        counting(storage, out, rate=None).execute()
    assert type(refused.value).__name__ == "JobFolderInUse"
    assert sorted(rows_in(out)) == sorted(written)

    # With it, the job continues.
    client = finish(counting(storage, out, rate=None), resume="latest")
    assert client.view.restored_from == completed[-1].checkpoint
    rows = rows_in(out)
    assert sorted(value for _, _, value in rows) == list(range(TOTAL))
    counts = defaultdict(list)
    for key, count, _ in rows:
        counts[key].append(count)
    assert {key: sorted(of_key) for key, of_key in counts.items()} == {
        key: list(range(1, len(range(key, TOTAL, KEYS)) + 1)) for key in range(KEYS)
    }
    assert client.checkpoints()[0].checkpoint > completed[-1].checkpoint, "ids are never used twice"

    # And when it has finished, there is nothing to resume.
    with pytest.raises(tg.StorageError, match=r"is FINISHED since .* nothing to resume"):
        counting(storage, out, rate=None).execute(resume="latest")
    assert sorted(rows_in(out)) == sorted(rows)


def test_a_checkpoint_can_be_asked_for(storage: str, tmp_path: Path) -> None:
    """Without an interval there are none but these, and the last one of a job that finishes."""
    client = counting(storage, tmp_path / "out", rate=100, every=None).execute_async()
    wait_until(client, lambda: client.status is tg.JobStatus.RUNNING)
    assert client.checkpoints() == []
    client.checkpoint()
    wait_until(client, lambda: client.view.completed == 1)
    (only,) = client.checkpoints()
    assert only.status is CheckpointStatus.COMPLETED
    assert Path(only.path.removeprefix("file://")).exists()
    client.cancel()
    client.wait(PATIENCE)
    assert [c.checkpoint for c in client.checkpoints()] == [only.checkpoint]


def test_a_job_goes_on_from_a_checkpoint_by_its_name(storage: str, tmp_path: Path) -> None:
    """chk-N and its path mean the same; the job of another width continues from it as well."""
    first = counting(storage, tmp_path / "out", rate=500, every=None)
    client = first.execute_async()
    wait_until(client, lambda: client.status is tg.JobStatus.RUNNING)
    client.checkpoint()
    wait_until(client, lambda: client.view.completed == 1)
    client.cancel()
    client.wait(PATIENCE)
    with pytest.raises(tg.ConfigurationError, match=r"no checkpoint 'chk-99' \(retained: chk-1\)"):
        counting(storage, tmp_path / "out", rate=None).execute(resume="chk-99")

    wider = counting(storage, tmp_path / "out", rate=None)
    wider._parallelism = 3
    client = finish(wider, resume="chk-1")

    assert client.view.restored_from == 1
    assert sorted(value for _, _, value in rows_in(tmp_path / "out")) == list(range(TOTAL))


def test_a_job_can_be_canceled_before_it_runs(storage: str, tmp_path: Path) -> None:
    client = counting(storage, tmp_path / "out", rate=100).execute_async()
    client.cancel()
    assert client.wait(PATIENCE) is tg.JobStatus.CANCELED
    assert rows_in(tmp_path / "out") == []


def test_results_are_there_while_an_endless_job_runs(storage: str) -> None:
    env = tg.StreamEnvironment("endless").checkpointing(every="50ms", storage=storage)
    env.from_source(tg.DataGenerator(lambda i: i, rate=500, type=int), uid="numbers").collect()
    client = env.execute_async()
    wait_until(client, lambda: len(client.results()) > 50)
    seen = client.results()
    assert sorted(seen) == list(range(len(seen)))
    client.cancel()
    assert client.wait(PATIENCE) is tg.JobStatus.CANCELED


def test_the_users_classes_are_the_same_after_a_job(storage: str, tmp_path: Path) -> None:
    """Unpickling a class of the main program in the driver would swap its methods for copies without its globals."""
    before = CountByKey.process_element
    client = counting(storage, tmp_path / "out", rate=100).execute_async()
    client.cancel()
    client.wait(PATIENCE)
    assert CountByKey.process_element is before
