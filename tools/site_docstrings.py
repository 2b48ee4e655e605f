"""Code in docstrings becomes blocks of code in the site's reference. Called by mkdocstrings (mkdocs.yml).

In the source, code stands indented below the text, as `>>>` examples that the tests run or as plain lines. Markdown would take
`>>>` for a quotation as soon as the indentation is gone, so each such part is put between fences.
"""

from __future__ import annotations

import inspect
from itertools import groupby
from textwrap import dedent
from typing import Any

from griffe import Extension, Object

INDENT = "    "


class FencedExamples(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(inspect.cleandoc(obj.docstring.value))


def fenced(text: str) -> str:
    """Indented paragraphs and examples as blocks. Where nothing but code follows the first line, Python's own clean-up of
    docstrings has taken its indentation away."""
    paragraphs = text.split("\n\n")
    parts: list[str] = []
    for is_code, group in groupby(paragraphs, _is_code):
        code = "\n\n".join(group)
        if is_code:
            language = "pycon" if code.lstrip().startswith(">>>") else "python"
            code = f"```{language}\n{dedent(code)}\n```"
        parts.append(code)
    return "\n\n".join(parts)


def _is_code(paragraph: str) -> bool:
    lines = [line for line in paragraph.splitlines() if line.strip()]
    return bool(lines) and (lines[0].lstrip().startswith(">>>") or all(line.startswith(INDENT) for line in lines))
