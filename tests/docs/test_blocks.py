"""Every block of Python in every page is run, as it stands, and prints what the page says."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

import tidegate as tg
from docs.blocks import ROOT, Block, PageRunner, blocks_of, page_name, pages, programs_of
from tidegate.cli.main import _split_at_program, make_parser
from tidegate.state.keys import key_type
from tidegate.testing import forget_ledgers, in_process

#: Pages whose programs need a service, and the test that runs them.
WITH_SERVICES = {
    "docs/kafka.md": "tests/kafka/test_docs.py",
    "docs/tutorial.md": "tests/kafka/test_docs.py",
    "docs/databases.md": "tests/databases/test_docs.py",
}
#: A folder as the page says that it is there.
SAVEPOINT = "savepoint-orders-17-3fa2c1"

with_programs = [page for page in pages() if programs_of(page)]


@pytest.mark.parametrize(
    "page", [page for page in with_programs if page_name(page) not in WITH_SERVICES], ids=page_name
)
def test_the_programs_of_a_page_run_as_they_stand(page, tmp_path, harness, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    forget_ledgers()
    if page.name == "savepoint-format.md":
        make_savepoint(tmp_path)
    run = PageRunner(tmp_path, {"harness": harness, "tmp_path": tmp_path}, capsys, {})

    with in_process():
        for program in programs_of(page):
            run.run(program)


def make_savepoint(folder: Path) -> None:
    class Count(tg.KeyedProcessFunction):
        total = tg.ValueState(int, default=0)

        def process_element(self, value, ctx):
            self.total.set(self.total.get() + 1)

    env = tg.StreamEnvironment("orders")
    env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")
    numbers = env.from_source(tg.DataGenerator(lambda i: i, rate=100, type=int), uid="orders")
    numbers.key_by(lambda n: n % 3, key_type=int).process(Count(), uid="count", returns=int).print(uid="out")
    with in_process():
        client = env.execute_async()
        client.wait_until_running()
        Path(client.savepoint(f"file://{folder}").removeprefix("file://")).rename(folder / SAVEPOINT)


@pytest.mark.parametrize("page", sorted(WITH_SERVICES))
def test_what_needs_a_service_is_run_where_there_is_one(page) -> None:
    text = (ROOT / WITH_SERVICES[page]).read_text(encoding="utf-8")

    assert programs_of(ROOT / page)
    assert Path(page).name in text


def unknown_names(text: str) -> list[str]:
    """`tg.something` that is not there: in a branch that does not run, say."""
    attributes = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tg"
    }
    return sorted(attributes - set(tg.__all__))


@pytest.mark.parametrize("page", with_programs, ids=page_name)
def test_programs_use_names_that_exist(page) -> None:
    assert [(str(program), found) for program in programs_of(page) if (found := unknown_names(program.text))] == []


def test_a_name_that_is_gone_would_be_found() -> None:
    assert unknown_names("import tidegate as tg\ntg.ValueState(int)\ntg.Barrier()") == ["Barrier"]


def test_the_readme_has_a_first_job() -> None:
    assert any("env.execute()" in program.text for program in programs_of(ROOT / "README.md"))


def test_a_program_that_prints_something_else_would_be_found(tmp_path, capsys) -> None:
    page = ROOT / "docs" / "state.md"

    with pytest.raises(AssertionError, match="prints something else"):
        PageRunner(tmp_path, {}, capsys, {}).run(Block(page, 1, "python", "print(1)", "2\n"))


def test_keys_are_one_or_two_as_the_page_says(tmp_path, capsys) -> None:
    (program,) = [each for each in programs_of(ROOT / "docs" / "state.md") if "ONE_KEY" in each.text]
    run = PageRunner(tmp_path, {}, capsys, {})
    run.run(program)
    keys = key_type(None)

    for one, other in run.names["ONE_KEY"]:
        assert keys.encode(one) == keys.encode(other), (one, other)
        assert keys.normalise(one) == keys.normalise(other), (one, other)
    for one, other in run.names["TWO_KEYS"]:
        assert keys.encode(one) != keys.encode(other), (one, other)
        assert keys.normalise(one) != keys.normalise(other), (one, other)


# -- commands ---------------------------------------------------------------------------------------------------------


def commands_of(block: Block) -> list[str]:
    """Lines that call `tidegate`, without a prompt and what a shell makes of them."""
    lines = (
        line.removeprefix("$ ").split("   #")[0].split(" | ")[0].split(" &")[0] for line in block.text.splitlines()
    )
    return [line.strip() for line in lines if line.startswith("tidegate ")]


COMMANDS = [
    (str(block), command)
    for page in pages()
    for block in blocks_of(page)
    if block.language in ("", "sh", "bash", "console")
    for command in commands_of(block)
]


@pytest.mark.parametrize(("where", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_a_command_in_a_page_is_one_that_the_command_line_takes(where, command) -> None:
    given = shlex.split(command)[1:]
    if given[0] == "run":
        given, _ = _split_at_program(given)

    assert make_parser().parse_args(given).command == given[0], where


# -- SQL --------------------------------------------------------------------------------------------------------------


def test_the_query_over_a_savepoint_runs(tmp_path, monkeypatch) -> None:
    import duckdb

    make_savepoint(tmp_path)
    monkeypatch.chdir(tmp_path)
    (query,) = [block for page in pages() for block in blocks_of(page) if block.language == "sql"]

    assert duckdb.sql(query.text).columns == ["key", "value"]
