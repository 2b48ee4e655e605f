"""The programs of docs/kafka.md and docs/tutorial.md against a real broker; the tutorial also as a reader does it."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs.blocks import ROOT, Block, PageRunner, programs_of
from kafka.kit import await_that, delete_topics, make_topic, read_json, send
from tidegate.testing import in_process

KAFKA_PAGE, TUTORIAL = ROOT / "docs" / "kafka.md", ROOT / "docs" / "tutorial.md"


@pytest.fixture
def topics_of_the_pages(servers: str) -> Iterator[None]:
    """Pages have plain names for their topics."""
    names = ["orders", "totals", "payments", "balances"]
    delete_topics(servers, names)
    yield
    delete_topics(servers, names)


@contextmanager
def running(run: PageRunner, program: Block) -> Iterator[None]:
    """A program that does not end by itself, run beside; ended with the `with`."""
    failures: list[BaseException] = []

    def beside() -> None:
        try:
            run.run(program)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=beside, name="program")
    with in_process():
        thread.start()
        yield
    thread.join()
    assert failures == []


def test_the_programs_of_the_kafka_page_sum_orders(servers, topics_of_the_pages, tmp_path, capsys) -> None:
    make_topic(servers, "orders", 2)
    make_topic(servers, "totals", 2)
    send(servers, "orders", [{"customer": "ann", "amount": 2}, {"customer": "bob", "amount": 1}] * 3)
    (program,) = programs_of(KAFKA_PAGE)
    run = PageRunner(tmp_path, {}, capsys, {"localhost:9092": servers})

    with running(run, program):
        await_that("all totals", lambda: len(read_json(servers, "totals")) == 6)

    assert sorted(read_json(servers, "totals")) == [["ann", n] for n in (2, 4, 6)] + [["bob", n] for n in (1, 2, 3)]


def tutorial_programs() -> dict[str, Block]:
    """By what they are: pay.py, balances.py, the two versions of job.py, and the look at one function."""
    pay, balances, first, tried, second = programs_of(TUTORIAL)
    return {"pay": pay, "balances": balances, "first": first, "tried": tried, "second": second}


def test_the_programs_of_the_tutorial_run(servers, topics_of_the_pages, tmp_path, capsys) -> None:
    programs = tutorial_programs()
    run = PageRunner(tmp_path, {}, capsys, {"localhost:9092": servers, 'if __name__ == "__main__":': "if True:"})
    run.run(programs["pay"])
    with running(run, programs["first"]):
        await_that("all balances", lambda: len(read_json(servers, "balances")) == 500)
    run.run(programs["tried"])

    assert balances_say(servers, tmp_path) == "in all: 500 payments, 2750"


def balances_say(servers: str, folder: Path) -> str:
    program = folder / "balances.py"
    program.write_text(tutorial_programs()["balances"].text.replace("localhost:9092", servers))
    return subprocess.run([sys.executable, program], capture_output=True, text=True, check=True).stdout.splitlines()[-1]


class Reader:
    """Does what the tutorial says, in a folder of their own."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.servers, self.folder = servers, folder
        self.log = folder / "job.log"

    def write(self, name: str, program: Block) -> None:
        text = program.text.replace("localhost:9092", self.servers).replace("/tmp/", f"{self.folder}/")
        (self.folder / name).write_text(text)

    def python(self, name: str) -> str:
        return self._call([sys.executable, str(self.folder / name)])

    def tidegate(self, *arguments: str) -> str:
        return self._call([sys.executable, "-m", "tidegate.cli.main", *arguments])

    def _call(self, command: list[str]) -> str:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{self.log.read_text()[-3000:]}"
        return done.stdout

    @contextmanager
    def job(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "tidegate.cli.main", "run", "--plain", *options, "job.py"]
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def await_balances(self, expected: str) -> None:
        await_that(expected, lambda: self.python("balances.py").splitlines()[-1] == expected)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_tutorial_as_a_reader_does_it(servers, topics_of_the_pages, tmp_path) -> None:
    programs, reader = tutorial_programs(), Reader(servers, tmp_path)
    reader.write("pay.py", programs["pay"])
    reader.write("balances.py", programs["balances"])
    reader.write("job.py", programs["first"])

    reader.python("pay.py")
    with reader.job() as process:
        reader.await_balances("in all: 500 payments, 2750")
        reader.python("pay.py")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        reader.python("pay.py")
    with reader.job("--resume") as process:
        reader.await_balances("in all: 1500 payments, 8250")
        stopped = reader.tidegate("stop", "payments")
        process.wait()
    (savepoint,) = re.findall(r"\S+/savepoint-payments-\S+", stopped)
    looked_up = reader.tidegate("inspect", savepoint, "--operator", "book", "--state", "balance", "--key", "ann")
    queried = reader.tidegate(
        "inspect", savepoint, "--sql", 'SELECT key, value.amount FROM "book.balance" ORDER BY key'
    )
    reader.write("job.py", programs["second"])
    checked = reader.tidegate("check", "job.py", "--from", savepoint)
    with reader.job("--resume", savepoint):
        reader.python("pay.py")
        reader.await_balances("in all: 2000 payments, 11000")

    assert "ann" in looked_up
    assert "1050" in queried.replace(",", "")  # of ann, after three runs of pay.py
    assert "converted" in checked


def test_the_example_kafka_to_postgres_runs_twice_in_a_row(servers, postgres, monkeypatch, capsys) -> None:
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["kafka_to_postgres.py", servers, postgres.url])
        with in_process():
            runpy.run_path(str(ROOT / "examples" / "kafka_to_postgres.py"), run_name="__main__")

        assert capsys.readouterr().out.splitlines() == [
            f"customer-{n} {len(cents)} {sum(cents)}"
            for n in range(4)
            for cents in [[m * 100 for m in range(50, 100) if m % 4 == n]]
        ]


def test_the_example_kafka_totals_runs_twice_in_a_row(servers, monkeypatch, capsys) -> None:
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["kafka_totals.py", servers])
        with in_process():
            runpy.run_path(str(ROOT / "examples" / "kafka_totals.py"), run_name="__main__")

        assert capsys.readouterr().out.splitlines()[-2:] == ["customer-2 1250", "customer-3 1275"]
