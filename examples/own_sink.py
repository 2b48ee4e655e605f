"""A sink of one's own, exactly once: rows into SQLite, committed with their checkpoint.

    python examples/own_sink.py [folder]

`prepare` hands the rows since the last barrier to the checkpoint. When that is complete they are written in one transaction
with their name, which is the evidence for whoever commits again. Without it `tidegate simulate` says what is doubled.
"""

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass

import tidegate as tg


@dataclass
class SqliteSink(tg.Sink):
    file: str  # settings only: the sink is sent to the executors
    guarantee = "exactly-once"

    def __post_init__(self) -> None:
        with closing(sqlite3.connect(self.file)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS squares (n int, square int)")
            database.execute("CREATE TABLE IF NOT EXISTS done (name text PRIMARY KEY)")

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return Writer(context)

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return Committer(self.file)

    def at_place(self, folder: str) -> "SqliteSink":  # each simulated run has tables of its own
        return SqliteSink(f"{folder}/squares.db")

    def read_back(self) -> list:  # what a reader finds there
        with closing(sqlite3.connect(self.file)) as database:
            return database.execute("SELECT * FROM squares").fetchall()


class Writer(tg.SinkWriter):
    def __init__(self, context: tg.WriterContext) -> None:
        self.context, self.rows = context, []

    def write(self, batch) -> None:
        self.rows += batch.rows()

    def prepare(self, checkpoint) -> list[bytes]:
        name = f"{self.context.uid}-{self.context.attempt}-{self.context.subtask}-{checkpoint}"
        rows, self.rows = self.rows, []
        return [json.dumps({"name": name, "rows": rows}).encode()] if rows else []


@dataclass
class Committer(tg.Committer):
    file: str

    def commit(self, committables: list[bytes]) -> list[tg.CommitOutcome]:
        with closing(sqlite3.connect(self.file, timeout=30)) as database:
            return [self._commit(database, json.loads(each)) for each in committables]

    def _commit(self, database: sqlite3.Connection, part: dict) -> tg.CommitOutcome:
        with database:  # one transaction: rows and evidence, or neither
            if database.execute("INSERT OR IGNORE INTO done VALUES (?)", [part["name"]]).rowcount == 0:
                return tg.CommitOutcome.ALREADY_DONE
            database.executemany("INSERT INTO squares VALUES (?, ?)", part["rows"])
        return tg.CommitOutcome.DONE


if __name__ == "__main__":
    folder = tempfile.mkdtemp(prefix="own-sink-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    file = f"{folder}/squares.db"
    env = tg.StreamEnvironment("own-sink", parallelism=2)
    env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")
    squares = env.from_sequence(1, 100, uid="numbers").map(lambda n: (n, n * n), returns=tuple[int, int])
    squares.sink_to(SqliteSink(file), uid="squares")
    env.execute()
    print(*sqlite3.connect(file).execute("SELECT count(*), sum(square) FROM squares").fetchone())
