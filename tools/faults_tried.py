"""Makes docs/faults-tried.md of what the tests in tests/hosts have noted:

make cuts                                                               tries all cells, and makes the page

export TIDEGATE_TRIED=tests/hosts/tried                                 where each cell that is tried notes what was seen
sh tools/with_spark.sh .venv/bin/python -m pytest tests/hosts -k ...    tries some
.venv/bin/python tools/faults_tried.py                                  makes the page of all notes
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRIED = ROOT / "tests" / "hosts" / "tried"
TEXT = ROOT / "tests" / "hosts" / "faults-tried.md"
PAGE = ROOT / "docs" / "faults-tried.md"

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src"), str(ROOT / "tools")]

WAYS = {"both": "both", "there": "from the first to the second", "back": "from the second to the first"}


def page() -> str:
    notes = [json.loads(file.read_text()) for file in sorted(TRIED.glob("*.json"))]
    text = TEXT.read_text()
    tables = {
        "AT_ANY_MOMENT": table([note for note in notes if not note["cell"]["step"]], step=False),
        "IN_A_STEP": table([note for note in notes if note["cell"]["step"]], step=True),
        "SUMMARY": summary(notes),
    }
    return re.sub(r"^<<(\w+)>>$", lambda match: tables[match[1]], text, flags=re.MULTILINE)


def summary(notes: list[dict[str, Any]]) -> str:
    from hosts.cuts import CELLS

    restarted = [note for note in notes if note["failures"]]
    days = sorted({note["on"] for note in notes})
    left = {cell.id for cell in CELLS} - {note["id"] for note in notes}
    text = (
        f"{len(notes)} cells were tried (on {', '.join(days)}). In all of them every reading came out once, in Kafka and in "
        f"the files. In {len(restarted)} the job restarted, in the others it stood still and went on."
    )
    return text + (f" {len(left)} more stand in the tests and have not been tried yet." if left else "")


def table(notes: list[dict[str, Any]], step: bool) -> str:
    head = ["what", "between", "way", "how long", *(["in the step"] if step else [])]
    head += ["what was seen", "rows again, after it", "silence"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for note in sorted(notes, key=order):
        cell = note["cell"]
        row = [
            cell["what"],
            cell["between"],
            WAYS[cell["direction"]],
            cell["how"],
            *([f"`{cell['step']}`"] if step else []),
        ]
        if cell.get("settings"):
            row[2] += f", with {cell['settings']}"
        row += [seen(note["failures"]), f"{note['recovered_s']:.1f} s", f"{note['silence_s']:.1f} s"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def order(note: dict[str, Any]) -> tuple[int, ...]:
    from hosts.cuts import BETWEEN, HOW, SETTINGS, STEPS, WHAT

    cell = note["cell"]
    return (
        list(WHAT).index(cell["what"]),
        list(HOW).index(cell["how"]),
        list(BETWEEN).index(cell["between"]),
        list(WAYS).index(cell["direction"]),
        list(STEPS).index(cell["step"]) if cell["step"] else -1,
        list(SETTINGS).index(cell.get("settings", "")),
    )


#: What of an error is the same in each run.
_CHANGES = [
    (re.compile(r"slot \d+\.\d+ (\([^)]*\) )?"), "a slot "),
    (re.compile(r"\d+\.\d+\.\d+\.\d+(:\d+)?"), "its address"),
    (re.compile(r"\b(executor|checkpoint|stage|task|port) [\d.]+"), r"\1 n"),
    (re.compile(r"\b(s3|http)://\S+"), r"\1://..."),
]


def seen(failures: list[str]) -> str:
    if not failures:
        return "stood still, no failure"
    first = failures[0]
    for pattern, word in _CHANGES:
        first = pattern.sub(word, first)
    first = first.replace("|", "/")
    first = first if len(first) <= 140 else first[:137] + "..."
    times = "a restart" if len(failures) == 1 else f"{len(failures)} restarts, the first"
    return f"{times}: {first}"


def main() -> None:
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
