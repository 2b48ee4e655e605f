"""The documentation keeps its promises: links lead somewhere, lists are complete, every page is in the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import tidegate as tg
from docs.blocks import FENCE, ROOT, page_name, pages, programs_of
from tidegate.testing.crash_points import ALL_POINTS, SAVEPOINT_POINTS, START_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import run_in_process

PAGES = pages()
DECISIONS = ROOT / "docs" / "decisions"

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


# -- the connectors page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ALL_POINTS)
def test_the_source_of_the_connectors_page_is_replayed_exactly(point: str) -> None:
    forget_ledgers()
    (page,) = [each for each in programs_of(ROOT / "docs" / "writing-connectors.md") if "class Countdown(" in each.text]
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(page.text, str(page), "exec", dont_inherit=True), names)
    env = tg.StreamEnvironment("countdown", parallelism=2)
    env.checkpointing(every="20ms", storage=f"memory://docs-countdown-{point}")
    source = names["Countdown"]({"a": 2500, "b": 1200, "c": 7})
    env.from_source(source, uid="countdown").rebalance().sink_to(LedgerSink("out"), uid="out")

    result = run_in_process(env, seed=11, crashes=[Crash(point, times=2)])

    assert result.attempts + result.drivers > 2, "nothing has crashed"
    expected = [number for start in (2500, 1200, 7) for number in range(1, start + 1)]
    assert sorted(ledger("out").rows()) == sorted(expected)


# -- links ------------------------------------------------------------------------------------------------------------


def links_of(page: Path) -> Iterator[str]:
    """Links to files and headings of this project; code is left out."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
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
        anchor_of(heading) for heading in _HEADING.findall(FENCE.sub("", target.read_text(encoding="utf-8")))
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


# -- the pages for developers -----------------------------------------------------------------------------------------

_NAMED_PATH = re.compile(r"`([\w./*<>-]+(?:\.(?:py|md|sh|js|json|toml|sha256)|/))`")


def named_paths(page: str) -> Iterator[tuple[str, list[Path]]]:
    """Each path that the page names, and what it leads to: from the project, the package, or the folder of the path before
    it in the same list item."""
    for item in re.split(r"\n(?=- |\n|#|\|)", page):
        folders = [ROOT, ROOT / "src" / "tidegate"]
        for name in _NAMED_PATH.findall(item):
            pattern = name.replace("<name>", "*").rstrip("/")
            found = [path for folder in folders for path in folder.glob(pattern)]
            yield name, found
            if found:
                folders = [*folders[:2], found[0].parent if found[0].is_file() else found[0]]


@pytest.mark.parametrize("page", ["changing-things.md", "architecture.md"])
def test_every_path_that_a_page_for_developers_names_exists(page: str) -> None:
    named = list(named_paths((ROOT / "docs" / page).read_text()))

    assert len(named) > 30
    assert [name for name, found in named if not found] == []


def test_a_path_that_does_not_exist_is_found() -> None:
    page = "- `config.py`, `task/nowhere.py`, `task/slot.py` and `slot_checkpoints.py`\n- `slot_checkpoints.py`\n"

    assert [name for name, found in named_paths(page) if not found] == ["task/nowhere.py", "slot_checkpoints.py"]


def test_the_architecture_lists_every_package() -> None:
    packages = {f"`{path.parent.name}/`" for path in (ROOT / "src" / "tidegate").glob("*/__init__.py")}
    table = (ROOT / "docs" / "architecture.md").read_text()

    assert sorted(package for package in packages if f"| {package}" not in table) == []


# -- the site ---------------------------------------------------------------------------------------------------------


class _Settings(yaml.SafeLoader):
    """mkdocs.yml without what only MkDocs understands."""


_Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def nav_pages(part: Any) -> Iterator[str]:
    match part:
        case str():
            yield part
        case dict():
            for each in part.values():
                yield from nav_pages(each)
        case list():
            for each in part:
                yield from nav_pages(each)


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    """The site itself is built by `make docs`, without warnings; that takes longer."""
    listed = list(nav_pages(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Settings)["nav"]))
    brought = {"changelog.md", "contributing.md", "security.md", "examples.md"}  # by tools/site_hooks.py

    assert sorted(listed) == sorted(
        {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} | brought
    )
