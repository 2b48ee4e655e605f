"""Pathway, two workers, its input snapshotted each second: snapshots of the operators' state need a licence key. What it emits
are the changes of each of its own small batches.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import pathway as pw
import work

ROW = pw.schema_from_types(key=int, value=int)


class Numbers(pw.io.python.ConnectorSubject):
    def __init__(self, records: int) -> None:
        super().__init__()
        self.records = records

    def run(self) -> None:
        for index in range(self.records):
            self.next(key=work.key_of(index), value=work.value_of(index))


def worker(records: int, answers: str, state: str) -> None:
    numbers = pw.io.python.read(Numbers(records), schema=ROW, autocommit_duration_ms=100, name="numbers")
    sums = numbers.groupby(pw.this.key).reduce(pw.this.key, sum=pw.reducers.sum(pw.this.value))
    if answers:
        rows: list[tuple[int, int]] = []

        def keep(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
            if is_addition:
                rows.append((row["key"], row["sum"]))

        pw.io.subscribe(sums, keep, on_end=lambda: work.write(Path(answers), rows, os.getpid()))
    else:
        pw.io.null.write(sums)
    stored = pw.persistence.Config(
        pw.persistence.Backend.filesystem(state),
        snapshot_interval_ms=work.CHECKPOINT_S * 1000,
        persistence_mode=pw.PersistenceMode.PERSISTING,
    )
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=stored)


def run(task: work.Task) -> None:
    began = perf_counter()
    command = [sys.executable, __file__, "worker", str(task.records), str(task.answers or ""), str(task.state)]
    threads = {"PATHWAY_THREADS": str(work.PARALLELISM), "PATHWAY_PROCESSES": "1"}
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | threads)
    work.finish(task.records, perf_counter() - began)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        run(work.task())
