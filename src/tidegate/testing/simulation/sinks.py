"""Which outside a sink gets in a simulated run, and how what is committed there is read. Driver.

    collect(), print()       as they are
    FileSink                 a folder of the run's own; of a store, one in memory
    ParquetTableSink         the same
    DatabaseSink, ...        a model of the server (databases.py)
    KafkaSink                a model of the brokers (brokers.py)
    of your own              `at_place(folder)`: the same sink in a folder that goes with the run; its path is no other run's.
                             `read_back()`: what a reader finds there

For any other sink there is no outside, and it is refused: it would write to the real one, in each of a thousand runs.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq

from tidegate.connectors.collect_sink import CollectedResults, CollectSink
from tidegate.connectors.contract import Sink
from tidegate.connectors.database.sink import DatabaseSink, DatabaseUpsertSink
from tidegate.connectors.file_sink import STAGING, FileSink
from tidegate.connectors.kafka_sink import KafkaSink
from tidegate.connectors.print_sink import PrintSink
from tidegate.connectors.tables.manifest import ParquetTableSink, manifest_files
from tidegate.storage.store import open_store
from tidegate.testing.ledger_sink import LedgerSink
from tidegate.testing.simulation.brokers import KAFKA_CALLS, ModelConnection, broker
from tidegate.testing.simulation.databases import DATABASE_CALLS, server_of
from tidegate.testing.simulation.outside import Outside, WatchedSink
from tidegate.types import RecordType

ReadBack = Callable[[Outside, CollectedResults], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Door:
    """A sink in its simulated outside."""

    sink: Sink
    read_back: ReadBack
    notes_records: bool = False


def failing_calls(sink: Sink) -> tuple[str, ...]:
    """What may fail in the model of its outside, besides the calls of the contract."""
    match sink:
        case DatabaseSink() | DatabaseUpsertSink():
            return DATABASE_CALLS
        case KafkaSink():
            return KAFKA_CALLS
        case FileSink() if sink.store is None:
            return ("link",)
    return ()


def outside_in_words(sink: Sink) -> str:
    """What stands in for its outside; "" where there is nothing."""
    match sink:
        case CollectSink() | PrintSink():
            return "as it is"
        case FileSink() | ParquetTableSink():
            return "a folder of each run's own" if getattr(sink, "store", None) is None else "a store in memory"
        case DatabaseSink() | DatabaseUpsertSink():
            return f"a model of the database ({sink.url.kind})"
        case KafkaSink():
            return "a model of Kafka's brokers"
    return "a place of each run's own" if is_placeable(sink) else ""


def is_placeable(sink: Sink) -> bool:
    return callable(getattr(sink, "at_place", None)) and callable(getattr(sink, "read_back", None))


def door(sink: Sink, uid: str, record_type: RecordType, outside: Outside) -> Door:
    """The sink in the outside of one run; `record_type` is that of its stream."""
    match sink:
        case CollectSink():
            return Door(sink, lambda outside, collected: _collected(collected, uid, record_type))
        case PrintSink():
            return Door(sink, lambda outside, collected: outside.written.get(uid, []), notes_records=True)
        case FileSink():
            moved = copy.copy(sink)
            if sink.store is None:
                moved.path = folder_of(uid, outside)
                return Door(moved, lambda outside, collected: _rows_of_folder(moved))
            moved.store = open_store(_in_memory(uid, outside))
            return Door(moved, lambda outside, collected: _rows_of_store(moved))
        case ParquetTableSink():
            table = copy.copy(sink)
            table.location = _in_memory(uid, outside)
            table.store = open_store(table.location)
            return Door(table, lambda outside, collected: _rows_of_table(table))
        case DatabaseSink() | DatabaseUpsertSink():
            server = server_of(outside, sink.url)
            server.make_table(sink.table, record_type.field_names if record_type.typed else (), sink.key)
            return Door(sink, lambda outside, collected: server.rows_of(sink.table))
        case KafkaSink():
            connected = copy.copy(sink)
            connected.connection = ModelConnection(sink.connection, outside.name, uid)
            return Door(
                connected, lambda outside, collected: broker(outside, sink.connection.servers).read(sink.markers)
            )
    os.makedirs(folder_of(uid, outside), exist_ok=True)
    placed: Any = sink.at_place(folder_of(uid, outside))  # type: ignore[attr-defined]
    return Door(placed, lambda outside, collected: placed.read_back())


def folder_of(uid: str, outside: Outside) -> str:
    """Where a sink of files writes."""
    return os.path.join(outside.folder, quote(uid, safe=""))


def _in_memory(uid: str, outside: Outside) -> str:
    return f"memory://{outside.name}-sinks/{quote(uid, safe='')}"


def instead(place: str) -> Sink:
    """For a sink whose own code is not to run: a transactional outside in memory."""
    return LedgerSink(place)


def watched(opened: Door, uid: str, outside: Outside) -> WatchedSink:
    return WatchedSink(opened.sink, uid, outside.name, opened.notes_records)


def _collected(collected: CollectedResults, uid: str, record_type: RecordType) -> list[Any]:
    collected.expect(uid, record_type)
    return collected.rows(uid)


def _rows_of_folder(sink: FileSink) -> list[Any]:
    rows: list[Any] = []
    for folder, folders, files in os.walk(sink.path):
        folders[:] = sorted(each for each in folders if each != STAGING)
        inside = os.path.relpath(folder, sink.path)
        for name in sorted(files):
            with open(os.path.join(folder, name), "rb") as file:
                rows += _rows(sink.format, inside, file.read())
    return rows


def _rows_of_store(sink: FileSink) -> list[Any]:
    assert sink.store is not None
    rows: list[Any] = []
    for path in sink.store.list(""):
        folder, _, name = path.rpartition("/")
        if name.startswith("part-"):
            rows += _rows(sink.format, folder or ".", sink.store.get(path))
    return rows


def _rows_of_table(sink: ParquetTableSink) -> list[Any]:
    rows: list[Any] = []
    for file in manifest_files(sink.store):
        rows += _rows("parquet", repr(file.partition), sink.store.get(file.path))
    return rows


def _rows(format: str, folder: str, data: bytes) -> list[Any]:
    """The folder is part of a record where records are parted by it."""
    import pyarrow as pa

    found: list[Any]
    if format == "parquet":
        found = pq.read_table(pa.BufferReader(data)).to_pylist()
    else:
        lines = data.decode("utf-8", "backslashreplace").splitlines()
        found = list(lines[1:] if format == "csv" else lines)
    return found if folder in (".", "[]") else [(folder, each) for each in found]
