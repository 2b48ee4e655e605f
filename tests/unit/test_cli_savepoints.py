"""`tidegate inspect` and `tidegate check`: what they show, and their exit codes."""

from __future__ import annotations

import io
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.cli.main import main

PROGRAM = """
    import tidegate as tg

    class Count(tg.KeyedProcessFunction):
        total = tg.ValueState({type})

        def process_element(self, value, ctx):
            yield value

    env = tg.StreamEnvironment("shop", parallelism={parallelism})
    env.checkpointing(every="1s", storage="memory://never-used")
    orders = env.from_collection(["a"], uid="orders", type=str)
    orders.key_by(lambda word: word, key_type=str).process(Count(), uid={uid!r}, returns=str).print(uid="out")
    env.execute()
    raise SystemExit("the job has run")
"""


class Count(tg.KeyedProcessFunction):
    total = tg.ValueState(int)


@pytest.fixture
def path(tmp_path: Path) -> str:
    folder = str(tmp_path / "savepoint")
    rows = [{"key": "apple", "value": 3}, {"key": "pear", "value": 5}]
    new = tg.Savepoint.new("shop").add_operator("count", Count, key_type=str, name="Count")
    new.add_state("count", "total", rows).write(folder)
    return folder


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", ["tidegate"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    return


def program(tmp_path: Path, type: str = "int", parallelism: int = 1, uid: str = "count") -> str:
    file = tmp_path / "shop.py"
    file.write_text(textwrap.dedent(PROGRAM).format(type=type, parallelism=parallelism, uid=uid))
    return str(file)


def test_inspect_shows_operators_states_and_rows(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", path]) == 0
    overview = capsys.readouterr().out
    assert "savepoint 1 of job 'shop'" in overview
    assert re.search(r"^count +total +value +int +2 ", overview, re.MULTILINE)

    assert main(["inspect", path, "--operator", "count", "--state", "total", "--key", "pear"]) == 0
    rows = capsys.readouterr().out
    assert "pear" in rows
    assert "5" in rows
    assert "apple" not in rows


def test_inspect_answers_sql(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", path, "--sql", 'SELECT sum(value) AS all_of_it FROM "count.total"']) == 0
    assert capsys.readouterr().out.split() == ["all_of_it", "8"]
    assert main(["inspect", path, "--sql", "SELECT * FROM nothing"]) == 2
    assert '"count.total"' in capsys.readouterr().err


def test_inspect_of_nothing_is_an_error_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert "there is no savepoint or checkpoint at" in capsys.readouterr().err


def test_inspect_takes_a_relative_path_and_offers_what_lies_below(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(path).parent)
    assert main(["inspect", "savepoint"]) == 0
    capsys.readouterr()
    assert main(["inspect", "."]) == 2
    assert f"Below it there are\n    {path}" in capsys.readouterr().err


def test_inspect_shows_a_key_in_all_states_and_says_when_there_is_none(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", path, "--key", "pear"]) == 0
    assert capsys.readouterr().out.split() == ["key", "value", "pear", "5"]
    assert main(["inspect", path, "--key", "plum"]) == 1
    assert "no state has a key 'plum'" in capsys.readouterr().err
    assert main(["inspect", path, "--state", "total", "--key", "plum"]) == 1
    assert "state 'total' has no key 'plum'" in capsys.readouterr().err
    for wrong, said in ((["--state", "sum"], "there are count.total"), (["--operator", "sum"], "there are 'count'")):
        assert main(["inspect", path, *wrong]) == 2
        assert said in capsys.readouterr().err


def test_inspect_says_when_there_is_more(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", path, "--state", "total", "--limit", "1"]) == 0
    assert "2 rows in all; --limit shows more" in capsys.readouterr().out


class Session(tg.KeyedProcessFunction):
    seen = tg.ValueState(int, ttl="1h")
    pages = tg.ListState(str, ttl="1h")


def test_inspect_shows_when_an_entry_expires_as_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tg.Savepoint.new("shop").add_operator("count", Session, key_type=str, name="Session")
    new.add_state("count", "seen", [{"key": "apple", "value": 3, "expiry": 1_700_000_000_000}])
    new.add_state("count", "pages", [{"key": "pear", "value": ["a", "b"], "expiry": [1_700_000_000_000, 0]}])
    new.write(str(tmp_path / "expiring"))

    assert main(["inspect", str(tmp_path / "expiring"), "--state", "seen"]) == 0
    assert "2023-11-14 22:13:20 UTC" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "expiring"), "--state", "pages"]) == 0
    assert "2023-11-14 22:13:20 UTC, never" in capsys.readouterr().out


def test_inspect_as_json(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*options: str) -> Any:
        assert main(["inspect", path, "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)

    overview = told()
    assert (overview["kind"], overview["format"], overview["job"]) == ("savepoint", "canonical", "shop")
    (state,) = overview["states"]
    assert (state["uid"], state["name"], state["type"], state["rows"]) == ("count", "total", "int", 2)
    (found,) = told("--state", "total", "--key", "pear")
    assert [(row["key"], row["value"]) for row in found["rows"]] == [("pear", 5)]
    assert told("--sql", 'SELECT max(value) AS most FROM "count.total"') == [{"most": 5}]
    assert {entry["key"] for entry in told("--state", "total", "--largest", "2")} == {"apple", "pear"}


@pytest.mark.parametrize("columns", [80, 140])
def test_tables_fit_the_terminal(columns: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    assert main(["inspect", path]) == 0
    assert main(["inspect", path, "--state", "total"]) == 0
    lines = screen.getvalue().splitlines()
    assert any("pear" in line for line in lines)
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    ("change", "options", "code", "said"),
    [
        ({}, [], 0, "restored"),
        ({"parallelism": 4}, [], 0, "moved"),
        ({}, ["-p", "3"], 0, "moved"),
        ({"type": "float"}, [], 0, "int widened to float"),
        ({"type": "str"}, [], 1, "was stored as value state of int and is declared as value state of str"),
        ({"uid": "counting"}, [], 1, "which is not in the job any more"),
        ({"uid": "counting"}, ["--allow-dropped-state"], 0, "the operator is gone"),
    ],
)
def test_check_says_what_would_happen_and_fails_where_it_would(
    path: str,
    tmp_path: Path,
    change: dict[str, object],
    options: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", program(tmp_path, **change), "--from", path, *options]) == code  # type: ignore[arg-type]
    assert said in capsys.readouterr().out


def test_check_as_json(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = program(tmp_path, type="str")
    Path(job).write_text("print('I say something')\n" + Path(job).read_text())

    assert main(["check", job, "--from", path, "--json"]) == 1

    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["can_start"] is False
    assert {finding["verdict"] for finding in told["findings"]} == {"refused", "new"}
    assert "I say something" in said.err


def test_check_of_a_program_without_a_job(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nothing.py").write_text("print('hello')")
    assert main(["check", str(tmp_path / "nothing.py"), "--from", path]) == 2
    assert "ended without starting a job" in capsys.readouterr().err
