"""What jobs of the end-to-end tests read and write, and who else can read it: plain clients, no code of ours.

An *inlet* is where the readings come from, an *outlet* where the rows go. Both name themselves to the job by a tuple of
words (faults/jobs/outsides.py).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from deltalake import DeltaTable

from databases.kit import new_table, prepared_of
from databases.servers import DatabaseServer
from faults.jobs.outsides import TRANSACTION_TIMEOUT_S
from faults.jobs.tally import KAFKA_PARTITIONS, SOURCES, Settings
from kafka.kit import make_topic, read_json

Rows = list[list[int]]

CHUNK = 10  #: readings of each source that are sent at a time; the next ones follow when the job's log has grown
COLUMNS = [f"f{number}" for number in range(6)]
ROW_PARTITIONS = 2


# -- where readings come from -----------------------------------------------------------------------------------------


class Inlet(ABC):
    words: tuple[str, ...]

    @abstractmethod
    def open(self, settings: Settings) -> contextlib.AbstractContextManager[None]:
        """Readings come."""

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Its own service, if it has one, is killed, and started again at the end."""
        yield


class KafkaInlet(Inlet):
    """A topic that gets readings bit by bit, as checkpoints complete: so that every epoch has some. `mortal`: its broker may
    be killed here, because nobody else does."""

    def __init__(self, broker: Any, name: str, mortal: bool) -> None:
        self._broker = broker if mortal else None
        self._servers = servers = broker.address
        self._topic = f"{name}-readings"
        self.words = ("kafka", servers, self._topic)
        make_topic(servers, self._topic, KAFKA_PARTITIONS)

    @contextlib.contextmanager
    def open(self, settings: Settings) -> Iterator[None]:
        ending = threading.Event()
        thread = threading.Thread(target=self._feed, args=(settings, ending), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        if self._broker is not None:
            self._broker.kill()
        yield
        if self._broker is not None:
            self._broker.start()

    def _feed(self, settings: Settings, ending: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True})
        for start in range(0, settings.readings, CHUNK):
            before = length_of_log(settings)  # it may grow while these are on their way, and that counts
            for number in range(start, min(start + CHUNK, settings.readings)):
                for source in range(SOURCES):
                    reading = json.dumps([source, number]).encode()
                    producer.produce(self._topic, reading, partition=source % KAFKA_PARTITIONS)
            while producer.flush(0.1) and not ending.is_set():
                pass
            while length_of_log(settings) <= before and not ending.wait(0.02):
                pass
        if ending.is_set():
            producer.purge()


def length_of_log(settings: Settings) -> int:
    return max((int(file.stem) for file in Path(settings.log).glob("*.json")), default=-1)


class FilesInlet(Inlet):
    """A file of JSON lines for each source."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.words = ("files", str(folder))

    @contextlib.contextmanager
    def open(self, settings: Settings) -> Iterator[None]:
        self._folder.mkdir()
        for source in range(SOURCES):
            lines = (json.dumps([source, number]) + "\n" for number in range(settings.readings))
            (self._folder / f"source-{source:02}.jsonl").write_text("".join(lines))
        yield


# -- where rows go ----------------------------------------------------------------------------------------------------


class Outlet(ABC):
    words: tuple[str, ...]
    secret: str | None = None  #: must not be found in anything that the job stores

    @abstractmethod
    def rows(self) -> Rows:
        """Everything that is committed."""

    @contextlib.contextmanager
    def looking(self) -> Iterator[Any]:
        """A function that gives rows that can be seen now; all, or those that are new."""
        yield self.rows

    def outage(self) -> None:
        """The service is killed, and away for longer than its transactions may last. A folder has none."""

    def allow_doubles(self) -> None:
        """Rows that are there may come again: whoever goes back asks for that."""

    def in_doubt(self) -> list[str] | None:
        """What is prepared and waits for its commit; None where only the checkpoint knows."""
        return None


def outage_of(service: Any) -> None:
    service.kill()
    time.sleep(TRANSACTION_TIMEOUT_S + 0.5)
    service.start()


class KafkaOutlet(Outlet):
    def __init__(self, broker: Any, name: str) -> None:
        self._broker = broker
        self._servers, self._topic = broker.address, f"{name}-rows"
        markers = f"{name}-markers"
        self.words = ("kafka", self._servers, self._topic, markers)
        make_topic(self._servers, self._topic, ROW_PARTITIONS)
        make_topic(self._servers, markers, 1, {"cleanup_policy": "compact"})

    def rows(self) -> Rows:
        return read_json(self._servers, self._topic)

    @contextlib.contextmanager
    def looking(self) -> Iterator[Any]:
        """One read-committed consumer, which stays."""
        settings = {"group.id": "sightings", "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self._servers, **settings})
        consumer.assign([TopicPartition(self._topic, part, OFFSET_BEGINNING) for part in range(ROW_PARTITIONS)])

        def look() -> Iterable[list[int]]:
            messages = consumer.consume(1000, 0.05)
            return [json.loads(message.value()) for message in messages if message.error() is None]

        try:
            yield look
        finally:
            consumer.close()

    def outage(self) -> None:
        outage_of(self._broker)


class DatabaseOutlet(Outlet):
    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self.secret = server.password
        columns = ", ".join(f"{column} bigint NOT NULL" for column in COLUMNS)
        self._table = new_table(server, f"{columns}, PRIMARY KEY (f0, f1)")
        self.words = ("database", server.url, self._table)

    def rows(self) -> Rows:
        found = self._server.ask(f"SELECT {', '.join(COLUMNS)} FROM {self._table}")
        return [[int(value) for value in row] for row in found]

    def outage(self) -> None:
        outage_of(self._server)

    def allow_doubles(self) -> None:
        key = f"CONSTRAINT {self._table}_pkey" if self._server.kind == "postgresql" else "PRIMARY KEY"
        self._server.ask(f"ALTER TABLE {self._table} DROP {key}")

    def in_doubt(self) -> list[str]:
        return prepared_of(self._server)


class FolderOutlet(Outlet):
    """Parquet files, read by pyarrow. `kind`: how they become a whole."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self.words = (kind, str(folder))

    def rows(self) -> Rows:
        return [row for file in self._files() for row in rows_of(file)]

    @contextlib.contextmanager
    def looking(self) -> Iterator[Any]:
        """Files never change: each is read once."""
        known: set[str] = set()

        def look() -> Iterable[list[int]]:
            new = [file for file in self._files() if file not in known]
            known.update(new)
            return [row for file in new for row in rows_of(file)]

        yield look

    def _files(self) -> list[str]:
        match self._kind:
            case "parquet":
                return sorted(map(str, self._folder.glob("part-*.parquet")))
            case "table":  # as the page of the docs says, without our reader
                manifests = sorted(self._folder.glob("_manifest/*/*.json"))
                return [
                    f"{self._folder}/{file['path']}"
                    for manifest in manifests
                    for file in json.loads(manifest.read_text())["files"]
                ]
            case "delta":
                there = DeltaTable.is_deltatable(str(self._folder))
                return DeltaTable(str(self._folder)).file_uris() if there else []
        raise ValueError(self._kind)


def rows_of(file: str) -> Rows:
    return [list(row.values()) for row in pq.ParquetFile(file.removeprefix("file://")).read().to_pylist()]
