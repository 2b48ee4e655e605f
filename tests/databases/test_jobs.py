"""Whole jobs into real tables, in one process, with processes dying at every step of the protocol, twice in a row."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate as tg
from databases.kit import Order, ids_in, new_table, orders, prepared_of
from databases.servers import DatabaseServer
from tidegate.coordinator.observing import JobStatus
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.runner import RunResult, run_in_process

RECORDS = 240
_runs = itertools.count(1)


@pytest.fixture(autouse=True)
def the_dead_leave_connections_behind() -> Iterator[None]:
    """A process that dies here is an object that is dropped with its connection open, which its driver complains of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def run(sink: Any, crashes: list[Crash], seed: int = 7) -> RunResult:
    number = next(_runs)
    env = tg.StreamEnvironment(f"orders-{number}", parallelism=2)
    env.checkpointing(every="20ms", storage=f"memory://databases-{number}")
    env.restart_strategy("fixed-delay", attempts=100, delay="0s")
    stream = env.from_collection(orders(*range(RECORDS)), uid="orders", type=Order).rebalance()
    stream.sink_to(sink, uid="table")
    return run_in_process(env, seed=seed, crashes=crashes)


@pytest.mark.parametrize("commit", ["two-phase", "ledger"])
@pytest.mark.parametrize("points", [ALL_POINTS[:6], ALL_POINTS[6:12], ALL_POINTS[12:]], ids=["cut", "commit", "end"])
def test_every_record_is_in_the_table_once_wherever_a_process_dies(
    server: DatabaseServer, commit: str, points: tuple[str, ...]
) -> None:
    for point in points:
        table = new_table(server)

        result = run(tg.DatabaseSink(server.url, table, commit=commit, lock_timeout_s=5), [Crash(point, times=2)])

        assert result.status is JobStatus.FINISHED
        assert result.attempts + result.drivers > 2, f"nothing has crashed at {point}"
        assert ids_in(server, table) == list(range(RECORDS)), point
    assert prepared_of(server) == []


def test_upserts_leave_each_key_once_wherever_a_process_dies(server: DatabaseServer) -> None:
    for number, sink_type in enumerate([tg.DatabaseSink, tg.DatabaseUpsertSink]):
        table = new_table(server)
        crashes = [
            Crash("slot.before-ack", nth=2, times=2),
            Crash("slot.after-commit"),
            Crash("driver.after-log", nth=2),
        ]

        result = run(sink_type(server.url, table, key="id", lock_timeout_s=5), crashes, seed=number)

        assert result.attempts > 2
        assert ids_in(server, table) == list(range(RECORDS))
