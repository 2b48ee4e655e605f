"""The documentation keeps its promises: programs compile and use names that exist, links lead somewhere, lists are complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tidegate as tg
from tidegate.testing.crash_points import ALL_POINTS, SAVEPOINT_POINTS, START_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import run_in_process

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
)
DECISIONS = ROOT / "docs" / "decisions"
CONNECTORS_PAGE = ROOT / "docs" / "writing-connectors.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """A block of Python in a page."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{page_name(self.page)}:{self.line}"

    def run(self) -> dict[str, object]:
        """For blocks that define things and start nothing. As `__main__`, so that its classes can be shipped."""
        names: dict[str, object] = {"__name__": "__main__"}
        exec(compile(self.text, str(self), "exec", dont_inherit=True), names)
        return names


def programs_of(page: Path) -> list[Program]:
    text = page.read_text(encoding="utf-8")
    return [
        Program(page, text.count("\n", 0, block.start()) + 2, block[2])
        for block in _FENCE.finditer(text)
        if block[1] == "python"
    ]


PROGRAMS = [program for page in PAGES for program in programs_of(page)]


def unknown_names(text: str) -> list[str]:
    """`tg.something` that is not there."""
    attributes = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tg"
    }
    return sorted(attributes - set(tg.__all__))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_in_a_page_compiles_and_uses_names_that_exist(program: Program) -> None:
    compile(program.text, str(program), "exec", dont_inherit=True)

    assert unknown_names(program.text) == []


def test_a_name_that_is_gone_would_be_found() -> None:
    assert unknown_names("import tidegate as tg\ntg.ValueState(int)\ntg.Barrier()") == ["Barrier"]


def test_the_readme_has_a_first_job() -> None:
    assert any("env.execute()" in program.text for program in programs_of(ROOT / "README.md"))


def connector_example(name: str) -> dict[str, object]:
    (names,) = [program.run() for program in programs_of(CONNECTORS_PAGE) if f"class {name}(" in program.text]
    return names


@pytest.mark.parametrize("point", ALL_POINTS)
def test_the_source_of_the_connectors_page_is_replayed_exactly(point: str) -> None:
    forget_ledgers()
    countdown = connector_example("Countdown")["Countdown"]
    env = tg.StreamEnvironment("countdown", parallelism=2)
    env.checkpointing(every="20ms", storage=f"memory://docs-countdown-{point}")
    source = countdown({"a": 2500, "b": 1200, "c": 7})  # type: ignore[operator]
    env.from_source(source, uid="countdown").rebalance().sink_to(LedgerSink("out"), uid="out")

    result = run_in_process(env, seed=11, crashes=[Crash(point, times=2)])

    assert result.attempts + result.drivers > 2, "nothing has crashed"
    expected = [number for start in (2500, 1200, 7) for number in range(1, start + 1)]
    assert sorted(ledger("out").rows()) == sorted(expected)


def connector_test(name: str) -> Callable[..., None]:
    (names,) = [program.run() for program in programs_of(CONNECTORS_PAGE) if f"def {name}(" in program.text]
    names.setdefault("OneFileEach", connector_example("OneFileEach")["OneFileEach"])
    test = names[name]
    assert callable(test)
    return test


def test_the_test_of_the_connectors_page_passes() -> None:
    connector_test("test_every_number_comes_out_once_wherever_a_process_dies")()


def test_the_sink_of_the_connectors_page_passes_the_crash_matrix(tmp_path: Path) -> None:
    connector_test("test_one_file_each_keeps_the_contract")(tmp_path)


# -- links ------------------------------------------------------------------------------------------------------------


def links_of(page: Path) -> Iterator[str]:
    """Links to files and headings of this project; code is left out."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(re.sub(r"`[^`]*`", "", text)):
        if "://" not in link:
            yield link


def anchor_of(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return True
    return bool(anchor) and anchor not in {
        anchor_of(heading) for heading in _HEADING.findall(_FENCE.sub("", target.read_text(encoding="utf-8")))
    }


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [link for link in links_of(page) if is_broken(page, link)] == []


def test_a_broken_link_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[a](page.md) [b](gone.md) [c](#one-thing) [d](page.md#another) [e](https://x.org)\n")

    assert [link for link in links_of(page) if is_broken(page, link)] == ["gone.md", "page.md#another"]


# -- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [*START_POINTS, *ALL_POINTS, *SAVEPOINT_POINTS])
def test_every_crash_point_has_its_line(point: str) -> None:
    lines = (ROOT / "docs" / "failure-scenarios.md").read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if line.startswith(f"| `{point}` |")], f"{point} is not in docs/failure-scenarios.md"


def test_the_page_of_failures_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "failure-scenarios.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", text))

    assert named
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_decision_is_in_the_index_once() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\d{4})\]\((\d{4}-[\w-]+\.md)\)", index, re.MULTILINE)
    decisions = sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))

    assert [file for _, file in listed] == decisions
    assert all(file.startswith(number) for number, file in listed)


@pytest.mark.parametrize("decision", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_a_decision_says_what_else_there_was_and_what_would_change_it(decision: Path) -> None:
    headings = [heading.strip() for heading in _HEADING.findall(decision.read_text(encoding="utf-8"))]

    assert headings[0].startswith(decision.name[:4])
    assert {"Problem", "Decision", "Alternatives", "What would change our mind"} <= set(headings)


def test_the_numbers_of_the_readme_stand_between_their_marks() -> None:
    """Whoever measures replaces what stands there, and nothing else."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert text.count("<!-- measured: begin -->") == text.count("<!-- measured: end -->") == 1
    assert text.index("<!-- measured: begin -->") < text.index("### Measured") < text.index("<!-- measured: end -->")
