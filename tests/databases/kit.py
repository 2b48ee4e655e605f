"""What the database tests share: tables, contexts, and a job whose every record is known beforehand."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from typing import Any

from databases.servers import DatabaseServer
from tidegate.batch import Batch
from tidegate.connectors.contract import WriterContext
from tidegate.types import record_type

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Order:
    id: int
    customer: str
    amount: float


def new_table(
    server: DatabaseServer, columns: str = "id bigint PRIMARY KEY, customer varchar(40), amount double precision"
) -> str:
    """An empty table with a name of its own."""
    name = f"orders_{os.getpid()}_{next(_numbers)}"
    engine = "" if server.kind == "postgresql" else " ENGINE=InnoDB"
    server.ask(f"CREATE TABLE {name} ({columns}){engine}")
    return name


def ids_in(server: DatabaseServer, table: str) -> list[int]:
    """Every id that is committed, in order: a doubled one would be there twice."""
    return sorted(int(id) for (id,) in server.ask(f"SELECT id FROM {table}"))


def orders(*ids: int) -> list[Order]:
    return [Order(id, f"customer {id % 7}", id / 4) for id in ids]


def batch_of(rows: list[Any], type: Any = Order) -> Batch:
    return Batch(record_type(type), rows=rows)


def context(
    job: str = "job", uid: str = "out", subtask: int = 0, attempt: str = "g1-a1", type: Any = Order
) -> WriterContext:
    return WriterContext(
        job=job,
        uid=uid,
        subtask=subtask,
        parallelism=1,
        attempt=attempt,
        clock=time.monotonic,
        record_type=record_type(type),
        send_to_driver=lambda topic, payload: None,
    )


def prepared_of(server: DatabaseServer) -> list[str]:
    """The prepared transactions of Tidegate, by an independent look."""
    if server.kind == "postgresql":
        return [row[0] for row in server.ask("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'tidegate:%'")]
    return [row[3] for row in server.ask("XA RECOVER") if row[0] == "29799"]


def ledger_of(server: DatabaseServer, id: str) -> list[tuple[str, ...]]:
    """Checkpoint and number of records of one epoch, if it is committed."""
    return server.ask(f"SELECT checkpoint_id, row_count FROM tidegate_ledger WHERE id = '{id}'")
