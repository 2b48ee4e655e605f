"""A sink of one's own, exactly once: rows into SQLite, committed with their checkpoint.

    python examples/own_sink.py [folder]

The writer keeps rows until the barrier, and `prepare` hands them to the checkpoint. When the checkpoint is complete, the
committer writes them in one transaction together with their name. A commit that is asked for again finds the name: that is the
evidence.

    tidegate simulate examples/own_sink.py

kills the job in every way, a hundred times, and finds nothing. Take the evidence away, and it says what is doubled, and how.
"""

import json
import sqlite3
import sys
import tempfile
from pathlib import Path

import tidegate as tg


class SqliteSink(tg.Sink):
    guarantee = "exactly-once"

    def __init__(self, file: str) -> None:
        self.file = file  # settings only: the sink is sent to the executors

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return Writer(context)

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return Committer(self.file)

    def at_place(self, folder: str) -> "SqliteSink":
        """The same sink in a folder of a simulated run's own."""
        return SqliteSink(make_tables(f"{folder}/squares.db"))

    def read_back(self) -> list:
        """What a reader finds there."""
        database = sqlite3.connect(self.file)
        try:
            return database.execute("SELECT * FROM squares").fetchall()
        finally:
            database.close()


def make_tables(file: str) -> str:
    database = sqlite3.connect(file)
    database.execute("CREATE TABLE IF NOT EXISTS squares (n int, square int)")
    database.execute("CREATE TABLE IF NOT EXISTS done (name text PRIMARY KEY)")
    database.close()
    return file


class Writer(tg.SinkWriter):
    def __init__(self, context: tg.WriterContext) -> None:
        self.context = context
        self.rows: list = []

    def write(self, batch) -> None:
        self.rows += batch.rows()

    def prepare(self, checkpoint) -> list[bytes]:
        if not self.rows:
            return []
        name = f"{self.context.uid}-{self.context.attempt}-{self.context.subtask}-{checkpoint}"
        rows, self.rows = self.rows, []
        return [json.dumps({"name": name, "rows": rows}).encode()]


class Committer(tg.Committer):
    def __init__(self, file: str) -> None:
        self.file = file

    def commit(self, committables: list[bytes]) -> list[tg.CommitOutcome]:
        database = sqlite3.connect(self.file, timeout=30)
        try:
            return [self._commit(database, json.loads(each)) for each in committables]
        finally:
            database.close()

    def _commit(self, database: sqlite3.Connection, part: dict) -> tg.CommitOutcome:
        with database:  # one transaction: rows and evidence, or neither
            if database.execute("INSERT OR IGNORE INTO done VALUES (?)", [part["name"]]).rowcount == 0:
                return tg.CommitOutcome.ALREADY_DONE
            database.executemany("INSERT INTO squares VALUES (?, ?)", part["rows"])
        return tg.CommitOutcome.DONE


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="own-sink-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    file = make_tables(str(folder / "squares.db"))
    env = tg.StreamEnvironment("own-sink", parallelism=2)
    env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")
    squares = env.from_sequence(1, 100, uid="numbers").map(lambda n: (n, n * n), returns=tuple[int, int])
    squares.sink_to(SqliteSink(file), uid="squares")
    env.execute()
    for count, total in sqlite3.connect(file).execute("SELECT count(*), sum(square) FROM squares"):
        print(count, total)
