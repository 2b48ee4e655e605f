"""What the connector tests share: a clock that is moved by hand, contexts, and readers that are stopped and
restored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from tidegate.batch import Batch
from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split, WriterContext
from tidegate.types import RecordType, record_type


class HandClock:
    """Monotonic seconds that pass only when somebody sleeps."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds


def reader_context(clock: HandClock | None = None, subtask: int = 0, parallelism: int = 1) -> ReaderContext:
    clock = clock or HandClock()
    return ReaderContext(subtask=subtask, parallelism=parallelism, clock=clock, sleep=clock.sleep)


def writer_context(
    record: Any = None,
    subtask: int = 0,
    parallelism: int = 1,
    attempt: str = "g1-a1",
    uid: str = "out",
    incarnation: str = "",
) -> tuple[WriterContext, list[tuple[str, bytes]]]:
    """The context, and what goes through it to the driver."""
    sent: list[tuple[str, bytes]] = []
    context = WriterContext(
        job="orders",
        uid=uid,
        subtask=subtask,
        parallelism=parallelism,
        attempt=attempt,
        clock=HandClock(),
        record_type=record_type(record),
        send_to_driver=lambda topic, payload: sent.append((topic, payload)),
        incarnation=incarnation,
    )
    return context, sent


def batch_of(rows: list[Any], record: Any = None) -> Batch:
    return Batch(record_type(record), rows=rows)


def as_rows(records: list[Any] | pa.RecordBatch, type: RecordType) -> list[Any]:
    return records if isinstance(records, list) else type.to_rows(records)


def restored_readers(source: Source, splits: Sequence[Split], parallelism: int) -> list[SourceReader]:
    """Readers that share the unfinished splits, whose positions went through a savepoint's JSON."""
    stored = [Split(split.id, json.loads(json.dumps(split.position))) for split in splits if not split.finished]
    readers = []
    for subtask in range(parallelism):
        readers.append(source.reader(reader_context(subtask=subtask, parallelism=parallelism)))
        readers[-1].add_splits(stored[subtask::parallelism])
    return readers


def drain(reader: SourceReader, type: RecordType, deadline: float = 10_000.0) -> list[Any]:
    """Everything that is left."""
    rows: list[Any] = []
    while not all(split.finished for split in reader.splits()):
        records = reader.poll(deadline)
        if records is not None:
            rows.extend(as_rows(records, type))
    return rows


def read_all(source: Source, parallelism: int = 1) -> list[Any]:
    rows: list[Any] = []
    for reader in restored_readers(source, source.discover_splits(parallelism), parallelism):
        with closing(reader):
            rows.extend(drain(reader, record_type(source.record_type)))
    return rows


def rows_of_each_split(source: Source) -> dict[str, list[Any]]:
    rows = {}
    for split in source.discover_splits(1):
        (reader,) = restored_readers(source, [split], 1)
        rows[split.id] = drain(reader, record_type(source.record_type))
        reader.close()
    return rows


def read_with_restores(source: Source, rounds: Sequence[tuple[int, Sequence[int]]]) -> list[Any]:
    """Each round has a parallelism and a number of polls for each reader; then all readers are restored from their
    splits. The last readers read to the end."""
    type = record_type(source.record_type)
    splits = source.discover_splits(rounds[0][0] if rounds else 1)
    ids = sorted(split.id for split in splits)
    rows: list[Any] = []
    for parallelism, polls in rounds:
        done = [split for split in splits if split.finished]
        readers = restored_readers(source, splits, parallelism)
        for reader, count in zip(readers, polls, strict=False):
            for _ in range(count):
                rows.extend(as_rows(reader.poll(10_000.0) or [], type))
        splits = done + [split for reader in readers for split in reader.splits()]
        assert sorted(split.id for split in splits) == ids  # none lost, none twice
        for reader in readers:
            reader.close()
    for reader in restored_readers(source, splits, 1):
        rows.extend(drain(reader, type))
        reader.close()
    return rows


def assert_each_record_once_and_in_order(source: Source, rounds: Sequence[tuple[int, Sequence[int]]]) -> None:
    """For sources whose records are all different."""
    got = read_with_restores(source, rounds)
    of_splits = rows_of_each_split(source)
    split_of = {repr(row): id for id, rows in of_splits.items() for row in rows}
    found: dict[str, list[Any]] = {id: [] for id in of_splits}
    for row in got:
        found[split_of[repr(row)]].append(row)
    assert found == of_splits
