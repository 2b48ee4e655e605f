"""What Flink's sink `print`, or a DataStream's, writes to standard output. The standard library alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

LINE = re.compile(r"(?:\d+> )?([+-][IUD])?[\[(](.*)[\])]$")


class Printed:
    """What the JVM prints, which inherits this process's standard output. To be made before the JVM starts."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "printed"
        self._stdout = os.dup(1)
        self._read = 0
        with self.file.open("wb") as file:
            os.dup2(file.fileno(), 1)

    def since_last(self) -> list[tuple[str, list[str]]]:
        """Rows that came since it was asked before: for several jobs of one JVM."""
        text = self.file.read_text()
        rows, self._read = rows_of(text[self._read :]), len(text)
        return rows

    def stop(self) -> list[tuple[str, list[str]]]:
        """The rows: what became of each (+I, -U, +U, -D; nothing in a DataStream) and its cells. From now on this process
        prints where it did before."""
        os.dup2(self._stdout, 1)
        return rows_of(self.file.read_text())


def rows_of(printed: str) -> list[tuple[str, list[str]]]:
    found = (LINE.match(line) for line in printed.splitlines())
    return [(line[1] or "", line[2].split(", " if line[1] else ",")) for line in found if line]
