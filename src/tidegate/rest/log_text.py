"""Lines of a job's log as plain text, one a line, as they stand on a worker's standard error. Driver; pure."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tidegate.coordinator.observing import JobLine


def as_text(lines: Iterable[JobLine]) -> str:
    return "".join(f"{_line(line)}\n" for line in lines)


def _line(line: JobLine) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
    place = f"{line.operator or line.uid}#{line.subtask}" if line.uid else ""
    where = " ".join(part for part in (line.attempt, line.slot or "driver", place) if part)
    return f"{at},{int(line.at % 1 * 1000):03d} {line.level} [{where}] {line.logger}: {line.message}"
