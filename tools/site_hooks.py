"""What the site has beside the files of docs/: pages that are kept at the top of the repository, and the examples' programs.

Called by MkDocs (mkdocs.yml). The pages' own links lead to files of the repository; here they are led to the site's pages.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Files of the repository that are pages of the site, by the path that links from docs/ have.
BROUGHT = {
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../SECURITY.md": "security.md",
    "../README.md": "index.md",
    "../examples/README.md": "examples.md",
}
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    for source, page in BROUGHT.items():
        if page != "index.md":
            text = (ROOT / "docs" / source).resolve().read_text(encoding="utf-8")
            if page == "examples.md":
                text = f"{text}\n{_programs()}"
            files.append(File.generated(config, page, content=_from_the_top(text, Path(source).parent)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of docs/ to what was brought in."""
    depth = page.file.src_uri.count("/")

    def led(match: re.Match[str]) -> str:
        target = match[1].removeprefix("../" * depth)
        if target not in BROUGHT or not target.startswith(".."):
            return match[0]
        return f"]({'../' * depth}{BROUGHT[target]}{match[2] or ''})"

    return _LINK.sub(led, markdown)


def _from_the_top(text: str, folder: Path) -> str:
    """Links of a page that lies beside docs/, or in a folder beside it, as links of a page in docs/."""

    def led(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        if "://" in link:
            return match[0]
        target = (ROOT / "docs" / folder / link).resolve()
        if target.suffix == ".py" and target.parent.name == "examples":
            return f"](#{target.stem})"
        if target.is_relative_to(ROOT / "docs"):
            return f"]({target.relative_to(ROOT / 'docs')}{anchor})"
        return f"](../{target.relative_to(ROOT)}{anchor})"

    return _LINK.sub(led, text)


def _programs() -> str:
    """Each example under a heading, as it stands."""
    parts = ["## The programs\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        said = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        parts.append(f"### {path.name} {{: #{path.stem} }}\n\n{said}\n\n```python\n{text}```\n")
    return "\n".join(parts)
