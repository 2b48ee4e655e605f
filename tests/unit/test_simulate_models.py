"""The models of the outside: our own sinks write to them without a fault, and mistakes planted into those are found.

That the models do what the servers do is shown beside the servers: tests/databases/test_model.py, tests/kafka/test_model.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.connectors import kafka_epochs, kafka_sink
from tidegate.connectors.contract import CommitOutcome
from tidegate.connectors.database import bookkeeping
from tidegate.connectors.database.committer import DatabaseCommitter
from tidegate.connectors.file_sink import FileCommitter
from tidegate.testing import forget_ledgers, simulate
from tidegate.testing.simulation.simulating import Report

SEEDS = 3  #: of those that are not slow


@dataclass(frozen=True)
class Sale:
    n: int
    country: str


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    forget_ledgers()


def simulated(sink: tg.Sink, seeds: int = SEEDS, **options: Any) -> Report:
    env = tg.StreamEnvironment("sales", parallelism=2)
    env.checkpointing(every="10s", storage="file:///nowhere")
    sales = env.from_collection([Sale(n, "df"[n % 2]) for n in range(16)], uid="sales")
    sales.rebalance().sink_to(sink, uid="out")
    return simulate(env, seeds=seeds, **options)


SINKS = {
    "files": lambda: tg.FileSink("/nowhere/files"),
    "folders": lambda: tg.FileSink("/nowhere/files", "parquet", partition_by="country"),
    "a store": lambda: tg.FileSink("memory://nowhere", "csv"),
    "a table": lambda: tg.ParquetTableSink("memory://nowhere"),
    "postgres": lambda: tg.DatabaseSink("postgresql://nobody@nowhere/db", "sales", commit="two-phase"),
    "mysql": lambda: tg.DatabaseSink("mysql://nobody@nowhere/db", "sales", commit="two-phase"),
    "ledger": lambda: tg.DatabaseSink("mysql://nobody@nowhere/db", "sales", commit="ledger"),
    "upserts": lambda: tg.DatabaseSink("postgresql://nobody@nowhere/db", "sales", key="n"),
    "at once": lambda: tg.DatabaseUpsertSink("postgresql://nobody@nowhere/db", "sales", key="n"),
    "kafka": lambda: tg.KafkaSink("nowhere:9092", "sales"),
    "kafka at least once": lambda: tg.KafkaSink("nowhere:9092", "sales", guarantee="at-least-once"),
}


@pytest.mark.parametrize("name", ["files", "a store", "mysql", "ledger", "kafka"])
def test_a_sink_of_ours_loses_and_doubles_nothing(name: str) -> None:
    report = simulated(SINKS[name]())

    report.check()
    assert report.expected["out"].rows.total() == 16
    assert report.happened["DiesInSink"] + report.happened["OutsideFails"] > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", SINKS)
def test_each_sink_of_ours_loses_and_doubles_nothing_with_many_seeds(name: str) -> None:
    report = simulated(SINKS[name](), seeds=150, first_seed=SEEDS)

    report.check()
    assert {"DiesInSink", "OutsideFails", "ProcessDies", "StorageFails"} <= set(report.happened)


def not_looked_at(self: Any, session: Any, epoch: Any) -> CommitOutcome:
    """As if what a server does not know had not been committed."""
    return CommitOutcome.LOST


def markers_of_owners(*asked: Any, read: Any = kafka_epochs.read_markers) -> dict[str, Any]:
    """Of all markers only the first of each owner is seen, as if nothing had ever been committed."""
    return {key: marker for key, marker in read(*asked).items() if key.count("/") == 2}


def taken_for_another(self: Any, part: Any) -> CommitOutcome:
    """A part that is there is taken for another's."""
    return CommitOutcome.LOST


MISTAKES = {
    "no look at the ledger": ("postgres", DatabaseCommitter, "_by_the_ledger", not_looked_at),
    "no look at the ledger, XA": ("mysql", DatabaseCommitter, "_by_the_ledger", not_looked_at),
    "the ledger is not believed": ("ledger", bookkeeping, "write_entry", lambda *entry: True),
    "no evidence is read": ("kafka", kafka_epochs, "read_markers", markers_of_owners),
    "what is there is another's": ("files", FileCommitter, "_final_name_taken", taken_for_another),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_sink_of_ours_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, owner, attribute, wrong = MISTAKES[name]
    monkeypatch.setattr(owner, attribute, wrong)

    report = simulated(SINKS[sink](), seeds=60, most_failures=1, shrink=False)
    assert report.failures, f"not found with {report.seeds} seeds"


def test_nothing_of_the_real_outside_is_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*given: Any, **more: Any) -> Any:
        raise AssertionError("the real outside was asked for")

    monkeypatch.setattr(kafka_sink.KafkaConnection, "_build", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    for name in ("kafka", "postgres"):
        simulated(SINKS[name](), seeds=1).check()
    simulated(tg.FileSink(tmp_path / "real"), seeds=1).check()
    assert not (tmp_path / "real").exists()
