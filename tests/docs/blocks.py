"""Blocks of code in pages, and how they are run: as they stand, without Spark, in a folder of the test's own.

A block that imports Tidegate stands alone. One that does not continues what is above it on its page, as the reader does. A
block of ```text right after a block of Python is what it prints. Functions called test_... are called, with `harness` and
`tmp_path` where they ask for them. Of the text only one thing is changed: folders below /tmp are the test's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STANDS_ALONE = re.compile(r"^(import tidegate as tg|from tidegate\.pyflink import)", re.MULTILINE)


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    prints: str | None = None  #: the block of text after it

    def __str__(self) -> str:
        return f"{page_name(self.page)}:{self.line}"

    @property
    def stands_alone(self) -> bool:
        return _STANDS_ALONE.search(self.text) is not None


def blocks_of(page: Path) -> list[Block]:
    """Every block, those of text that belong to a block of Python with it."""
    return list(_blocks(page, page.read_text(encoding="utf-8")))


def _blocks(page: Path, text: str) -> Iterator[Block]:
    found = list(FENCE.finditer(text))
    for here, after in zip(found, [*found[1:], None]):
        prints = None
        if (
            here[1] == "python"
            and after is not None
            and after[1] == "text"
            and not text[here.end() : after.start()].strip()
        ):
            prints = after[2]
        yield Block(page, text.count("\n", 0, here.start()) + 2, here[1], here[2], prints)


def programs_of(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.language == "python"]


@dataclass(slots=True)
class PageRunner:
    """Runs the programs of one page, in order."""

    folder: Path
    fixtures: dict[str, Any]
    capsys: pytest.CaptureFixture[str]
    replaced: dict[str, str]  #: in the text of the blocks: addresses of services
    names: dict[str, Any] = field(default_factory=dict)  #: that the page has defined so far

    def run(self, block: Block) -> None:
        names = {"__name__": "__main__", **({} if block.stands_alone else self.names)}
        text = block.text.replace("/tmp/", f"{self.folder}/")
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        known = set(names)
        self.capsys.readouterr()
        padded = "\n" * (block.line - 1) + text  # so that a traceback names the page's line
        exec(compile(padded, page_name(block.page), "exec", dont_inherit=True), names)
        printed = self.capsys.readouterr().out
        if block.prints is not None:
            assert printed == block.prints, f"{block} prints something else"
        for name in sorted(set(names) - known):
            if name.startswith("test_"):
                self._call(names[name])
        self.names |= names

    def _call(self, test: Callable[..., None]) -> None:
        test(**{name: self.fixtures[name] for name in inspect.signature(test).parameters})
