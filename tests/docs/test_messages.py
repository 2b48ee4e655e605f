"""The messages that docs/troubleshooting.md explains are those that the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from docs.blocks import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
_ANYTHING = "\0"  #: in a text of the code: what is put in when it runs


def messages_of(page: str) -> list[str]:
    """What stands between backticks in the first column of a table, where that is a message."""
    return re.findall(r"^\| `([^`]{12,})` \|", page, re.MULTILINE)


def texts_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else _ANYTHING for part in parts)
            case ast.Constant(value=str() as text):
                yield re.sub(r"%(?:\.\d)?[drsga]", _ANYTHING, text)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    modules = (ROOT / "src").rglob("*.py")
    return [text for path in modules for text in texts_of(ast.parse(path.read_text(encoding="utf-8")))]


def is_said(message: str, texts: list[str]) -> bool:
    """`...` in the page stands for anything, also for some words between two values."""
    fixed = [part for part in message.split("...") if part.strip(" .,:;()/'\"")]
    pattern = re.compile(".*?".join(re.escape(part.strip()) for part in fixed), re.DOTALL)
    return any(pattern.search(text) for text in texts)


@pytest.mark.parametrize("message", messages_of(PAGE.read_text(encoding="utf-8")))
def test_a_message_that_is_explained_is_one_that_is_said(message: str, texts: list[str]) -> None:
    assert is_said(message, texts)


def test_a_message_that_is_gone_would_be_found(texts: list[str]) -> None:
    assert not is_said("the job ... has lost its barrier at ...", texts)


def test_the_page_has_messages_at_all() -> None:
    assert len(messages_of(PAGE.read_text(encoding="utf-8"))) > 30
