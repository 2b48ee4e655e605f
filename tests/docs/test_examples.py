"""Every example does what it says, twice in a row. Those that need no service run here, in this process and without Spark."""

from __future__ import annotations

import contextlib
import runpy
import socket
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from docs.blocks import ROOT
from tidegate.testing import crash_matrix, in_process

EXAMPLES = ROOT / "examples"
MAX_LINES = 80
#: Run elsewhere: on Spark, in a browser, with a socket, by pytest, or where there is a service.
ELSEWHERE = {
    "demo.py": "make demo",
    "sessions.py": "tests/spark/test_examples.py",
    "edit_state.py": "tests/spark/test_examples.py",
    "word_count.py": "below",
    "kafka_totals.py": "tests/kafka/test_docs.py",
    "database_totals.py": "tests/databases/test_docs.py",
    "kafka_to_postgres.py": "tests/kafka/test_docs.py",
    "test_kit.py": "below",
}
#: The last lines that each prints; in any order, where subtasks print side by side.
PRINTS = {
    "hello.py": ["('the', 3)", "('up', 1)"],
    "batches.py": [
        "Total(account=0, cents=945000)",
        "Total(account=1, cents=963000)",
        "Total(account=2, cents=981000)",
        "Total(account=3, cents=999000)",
        "Total(account=4, cents=1017000)",
    ],
    "side_outputs.py": [
        "bad> what is this",
        "late> o-4",
        "order> Order(id='o-1', at=36000000, amount=3)",
        "order> Order(id='o-2', at=36300000, amount=4)",
        "order> Order(id='o-3', at=36600000, amount=5)",
    ],
    "async_enrich.py": [
        "priced> Priced(id=0, item='tea', cents=3, attempts=1)",
        "priced> Priced(id=1, item='rope', cents=9, attempts=1)",
        "priced> Priced(id=2, item='sail', cents=120, attempts=2)",
        "priced> Priced(id=4, item='tea', cents=3, attempts=1)",
        "priced> Priced(id=5, item='rope', cents=9, attempts=1)",
        "priced> Priced(id=6, item='sail', cents=120, attempts=2)",
        "unknown> anchor: KeyError",
        "unknown> anchor: KeyError",
    ],
    "exchange_rates.py": ["('o-1', 15.0)", "('o-2', 20.0)", "('o-3', 20.0)"],
    "visits.py": [
        "ann at 0: 3 clicks, 3 pages, from / to /basket",
        "ann at 90: 1 clicks, 1 pages, from / to /",
        "bob at 2: 1 clicks, 1 pages, from /prices to /prices",
        "bob at 45: 1 clicks, 1 pages, from / to /",
    ],
    "top_sellers.py": ["0:00 rope 9, tea 6", "1:00 tea 6, sail 4"],
    "sensors.py": ["boiler: 90 until 15 s, where 28 is usual", "boiler: 90 until 20 s, where 28 is usual"],
    "rules.py": ["boiler: heat of 120", "cellar: damp of 70"],
    "deduplicate.py": ["o-0 came through again", "o-1 came through again", "o-2 came through again"],
    "enrich.py": ["('Ann', 'sail')", "('Ann', 'tea')", "('Bob', 'rope')", "unknown> oars of c9"],
    "files.py": ["de 10 sales 190 cents", "fr 10 sales 200 cents"],
    "own_sink.py": ["100 338350"],
    "bootstrap.py": ["ann 710", "bob 901", "cid 20"],
    "stream_join.py": [
        "00:00 tea: 7 ordered, 3 sent",
        "01:00 rope: 1 ordered, 0 sent",
        "02:00 tea: 1 ordered, 0 sent",
        "05:00 rope: 0 ordered, 1 sent",
        "30:00 tea: 0 ordered, 4 sent",
        "o-1 sent",
        "o-2 not sent within a day",
        "o-3 sent",
        "o-4 not sent within a day",
    ],
    "rescale.py": ["all sums are right: {0: 5997000, 1: 5999000, 2: 6001000}"],
    "pyflink_word_count.py": ["('shut', 1)", "('the', 3)"],
    "pyflink_timers.py": ["('north', 5500, 141.0)", "('south', -1.0)", "('south', 6000, 43.0)"],
    "pyflink_broadcast.py": ["ann 12 fine", "ann 40 large", "bob 7 fine", "bob 90 large+largest", "cid 3 fine"],
}


def run(name: str, argument: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(sys, "argv", [name, argument])
    with in_process():
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_does_what_it_says_twice_in_a_row(name, tmp_path, monkeypatch, capsys) -> None:
    for _ in range(2):
        assert set(PRINTS[name]) <= set(run(name, str(tmp_path), monkeypatch, capsys))


def test_words_over_a_socket_are_counted_twice_in_a_row(tmp_path, monkeypatch, capsys) -> None:
    for number in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            typing = threading.Thread(target=type_lines, args=(listening,))
            typing.start()
            options = ["--host", "127.0.0.1", "--port", str(listening.getsockname()[1])]
            monkeypatch.setattr(sys, "argv", ["word_count.py", *options, "--storage", f"file://{tmp_path}/{number}"])
            with in_process():
                runpy.run_path(str(EXAMPLES / "word_count.py"), run_name="__main__")
            typing.join()

        assert "('to', 2)" in capsys.readouterr().out


def test_the_sink_of_the_examples_loses_and_doubles_nothing_wherever_its_process_dies(tmp_path: Path) -> None:
    sink = runpy.run_path(str(EXAMPLES / "own_sink.py"))["SqliteSink"]

    def made(place: str) -> Any:
        with contextlib.closing(sqlite3.connect(tmp_path / place)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS squares (n int, square int)")
            database.execute("CREATE TABLE IF NOT EXISTS done (name text PRIMARY KEY)")
        return sink(str(tmp_path / place))

    def read(place: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(tmp_path / place)) as database:
            return database.execute("SELECT n, square FROM squares").fetchall()

    names = {"after prepare", "within commit", "after commit", "slot.after-ack", "driver.after-log"}
    records = [(n, n * n) for n in range(24)]

    report = crash_matrix(made, read, records=records, type=tuple[int, int], only=lambda case: case.name in names)

    report.check()
    assert len(report.results) == 1 + len(names)


def type_lines(listening: socket.socket) -> None:
    """What somebody types into `nc -lk`, who then ends it."""
    connection, _ = listening.accept()
    with connection:
        connection.sendall(b"to be or\nnot to be\n")


def test_the_tests_of_the_test_kit_pass(harness) -> None:
    names = runpy.run_path(str(EXAMPLES / "test_kit.py"))

    for name, function in names.items():
        if name.startswith("test_"):
            function(*[harness] * function.__code__.co_argcount)


def test_every_example_is_run_and_listed_and_short() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.glob("*.py")}

    assert names == set(PRINTS) | set(ELSEWHERE)
    assert [name for name in sorted(names) if f"({name})" not in readme] == []
    lengths = {name: len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) for name in names - {"demo.py"}}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_what_runs_elsewhere_is_named_there() -> None:
    for name, where in ELSEWHERE.items():
        if where.startswith("tests/"):
            assert Path(name).stem in (ROOT / where).read_text(encoding="utf-8"), name
