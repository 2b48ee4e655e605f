"""The program of docs/databases.md and the example database_totals.py, as they stand, against real servers."""

from __future__ import annotations

import runpy
import sys

from databases.servers import DatabaseServer
from docs.blocks import ROOT, PageRunner, programs_of
from tidegate.testing import in_process

PAGE = ROOT / "docs" / "databases.md"


def test_the_program_of_the_databases_page_writes_its_order(postgres: DatabaseServer, tmp_path, capsys) -> None:
    postgres.ask("DROP TABLE IF EXISTS orders")
    postgres.ask("CREATE TABLE orders (id bigint PRIMARY KEY, customer varchar(40), amount double precision)")
    (program,) = programs_of(PAGE)

    with in_process():
        PageRunner(tmp_path, {}, capsys, {"postgresql://me@db/shop": postgres.url}).run(program)

    assert postgres.ask("SELECT id, customer, amount FROM orders") == [("1", "ann", "9.5")]
    postgres.ask("DROP TABLE orders")


def test_the_example_database_totals_runs_twice_in_a_row(server: DatabaseServer, monkeypatch, capsys) -> None:
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["database_totals.py", server.url])
        with in_process():
            runpy.run_path(str(ROOT / "examples" / "database_totals.py"), run_name="__main__")

        assert capsys.readouterr().out.splitlines() == ["customer-0 135", "customer-1 145", "customer-2 155"]
