"""Cells of a notebook, by the names that people know them by: In[11] instead of the file that the kernel compiles them as.

    .../ipykernel_4711/1234567.py:6    ->    In[11]:6

Driver: only the kernel knows which cell a file is. In every other process, and for a cell that was another kernel's, text stays
as it is.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_FILE = re.compile(r"[^\s\"'(]*ipykernel_\d+[/\\]\d+\.py")


def with_cells(text: str) -> str:
    """The text with names of cells in place of their files."""
    if "ipykernel_" not in text or (names := _names()) is None:
        return text
    return _FILE.sub(lambda file: (names(file[0]) or ("", file[0]))[1], text)


def _names() -> Any:
    """From a file's name to ("Cell", "In[11]"), or None for another file; None where there is no kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(getattr(shell, "compile", None), "format_code_name", None)
