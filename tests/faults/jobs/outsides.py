"""Where the readings of the fault tests come from and where their rows go, by a tuple of words that survives JSON.

    source   ("kafka", servers, topic), ("files", folder), or () for a generator
    sink     ("kafka", servers, topic, markers), ("kafka-login", servers, topic, password), ("database", url, table),
             ("parquet", folder), ("table", folder), ("delta", folder), or () for JSON lines

`Noted` writes down which rows were prepared for which checkpoint: for readers that want to know whether they saw one early.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle

import tidegate as tg
from tidegate.batch import Batch
from tidegate.connectors.contract import Committer, Sink, SinkWriter, Source, WriterContext
from tidegate.ids import AttemptId, CheckpointId

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the executors cannot import the tests

TRANSACTION_TIMEOUT_S = 2.0  #: of every service; outages are longer
ROWS_PER_POLL = 5  #: of files: so that a checkpoint can cut through one


def sink_of(words: Sequence[str]) -> Sink:
    match tuple(words):
        case ("kafka", servers, topic, markers):
            return tg.KafkaSink(servers, topic, markers=markers, transaction_timeout=f"{TRANSACTION_TIMEOUT_S:g}s")
        case ("kafka-login", servers, topic, password):
            from kafka.kit import LOGIN

            return tg.KafkaSink(servers, topic, options={**LOGIN, "sasl.password": password})
        case ("database", url, table):
            return tg.DatabaseSink(url, table)
        case ("parquet", folder):
            return tg.FileSink(folder, "parquet")
        case ("table", folder):
            return tg.ParquetTableSink(folder)
        case ("delta", folder):
            return tg.DeltaSink(folder)
    raise ValueError(words)


def source_of(words: Sequence[str], type: Any, ends: dict[int, int]) -> Source:
    """`ends`: the offsets at which the partitions of a topic end."""
    match tuple(words):
        case ("kafka", servers, topic):
            return tg.KafkaSource(servers, topic, type=type, end=ends)
        case ("files", folder):
            return tg.Files(folder, "jsonl", type=type, batch_rows=ROWS_PER_POLL)
    raise ValueError(words)


class Noted(Sink):
    """Does what `inner` does; each prepare leaves a file <checkpoint>.<attempt>.<subtask>.json with its rows in `folder`."""

    def __init__(self, inner: Sink, folder: str) -> None:
        self.inner = inner
        self.folder = folder
        self.guarantee = inner.guarantee  # type: ignore[misc]
        self.commits_on_driver = inner.commits_on_driver  # type: ignore[misc]
        os.makedirs(folder, exist_ok=True)

    def writer(self, context: WriterContext) -> SinkWriter:
        return _NotedWriter(self.inner.writer(context), self.folder, f"{context.attempt}.{context.subtask}")

    def committer(self, context: WriterContext) -> Committer | None:
        return self.inner.committer(context)

    def commit_on_driver(self, prepared: list[tuple[CheckpointId, bytes]], restored: bool) -> None:
        self.inner.commit_on_driver(prepared, restored)

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        self.inner.clean_up(job, uid, attempt, uncommitted)


class _NotedWriter(SinkWriter):
    def __init__(self, inner: SinkWriter, folder: str, who: str) -> None:
        self._inner = inner
        self._folder = folder
        self._who = who
        self._rows: list[Any] = []

    def write(self, batch: Batch) -> None:
        self._rows += batch.rows()
        self._inner.write(batch)

    def flush(self) -> None:
        self._inner.flush()

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        rows, self._rows = self._rows, []
        with open(f"{self._folder}/{checkpoint}.{self._who}.json", "w") as file:
            json.dump(rows, file)
        return self._inner.prepare(checkpoint)

    def end_input(self) -> None:
        self._inner.end_input()

    def close(self) -> None:
        self._inner.close()
