"""Bytewax, two processes, a snapshot each second. Its keys are strings."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import bytewax.operators as op
import work
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

BATCH = 1000


class Numbers(FixedPartitionedSource):
    def __init__(self, records: int) -> None:
        self.records = records

    def list_parts(self) -> list[str]:
        return [str(part) for part in range(work.PARALLELISM)]

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> StatefulSourcePartition:
        size = self.records // work.PARALLELISM
        first = int(for_part) * size
        return _Numbers(resume_state or first, first + size)


class _Numbers(StatefulSourcePartition):
    def __init__(self, at: int, end: int) -> None:
        self.at, self.end = at, end

    def next_batch(self) -> list[Any]:
        if self.at >= self.end:
            raise StopIteration
        batch = range(self.at, min(self.at + BATCH, self.end))
        self.at = batch.stop
        return [(str(work.key_of(i)), work.value_of(i)) for i in batch]

    def snapshot(self) -> int:
        return self.at


class Answers(DynamicSink):
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) if folder else None

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition:
        return _Answers(self.folder, worker_index)


class _Answers(StatelessSinkPartition):
    def __init__(self, folder: Path | None, worker: int) -> None:
        self.folder, self.worker = folder, worker

    def write_batch(self, items: list[Any]) -> None:
        if self.folder is not None:
            work.write(self.folder, items, self.worker)


def running_sum(total: int | None, value: int) -> tuple[int, int]:
    total = (total or 0) + value
    return total, total


def flow(records: int, answers: str) -> Dataflow:
    flow = Dataflow("peers")
    numbers = op.input("numbers", flow, Numbers(records))
    sums = op.stateful_map("sum", numbers, running_sum)
    op.output("answers", sums, Answers(answers))
    return flow


def run(task: work.Task) -> None:
    subprocess.run([sys.executable, "-m", "bytewax.recovery", str(task.state), str(work.PARALLELISM)], check=True)
    what = f"bytewax_flow:flow({task.records}, {str(task.answers or '')!r})"
    began = perf_counter()
    subprocess.run(
        [sys.executable, "-m", "bytewax.testing", what, "-p", str(work.PARALLELISM), "-r", str(task.state),
         "-s", str(timedelta(seconds=work.CHECKPOINT_S).seconds), "-b", "0"],
        check=True, env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)}, stdout=sys.stderr,
    )  # fmt: skip
    work.finish(task.records, perf_counter() - began)


if __name__ == "__main__":
    run(work.task())
