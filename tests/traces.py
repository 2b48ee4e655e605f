"""Whether runs are behaviours of the specification: their events (observed.py) put into order, and shown to TLC.

refused([assembled(events)])       one start of TLC for many runs
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from observed import Event

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))

import fetch

SPEC = fetch.TOOLS.parent / "spec"
TIMEOUT_S = 900

Run = list[list[Any]]  #: events: the name of an action of Layers.tla, and its arguments


def assembled(events: Iterable[Event]) -> Run:
    """Of one job, in the order in which they happened. A log record counts once. What slots of an older attempt do changes
    nothing, unless they commit."""
    run: Run = []
    current, known = "", -1
    for _, _, attempt, name, arguments in sorted(events, key=lambda event: event[0]):
        if not attempt:
            if arguments[0] > known:
                known = arguments[0]
                run.append([name, *arguments[1:]])
            continue
        if name == "attempt":
            if current and _number(attempt) < _number(current):
                continue  # of a driver that has lost the job
            current = attempt
        if attempt == current:
            run.append([name, *arguments])
        elif name == "commit":
            run.append(["older", arguments[1]])
    pieces: dict[str, int] = {}
    for event in run:
        place = _PLACE_OF_PIECES.get(event[0])
        if place is not None:
            event[place] = frozenset(
                (checkpoint, pieces.setdefault(piece, len(pieces))) for checkpoint, piece in event[place]
            )
    return run


#: Where in an event there are pieces of output.
_PLACE_OF_PIECES = {"restore": 5, "taken": 4, "commit": 3, "forget": 2}


def _number(attempt: str) -> tuple[int, ...]:
    return tuple(map(int, attempt.split(".")))


# -- what TLC says ----------------------------------------------------------------------------------------------------


def as_tla(value: Any) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case str():
            return f'"{value}"'
        case frozenset():
            return "{" + ", ".join(sorted(map(as_tla, value))) + "}"
        case list() | tuple():
            return "<<" + ", ".join(map(as_tla, value)) + ">>"
        case _:
            raise TypeError(type(value))


def refused(runs: Sequence[Run]) -> list[int]:
    """Which of them are not behaviours of the specification, by place. One start of TLC for all."""
    if not runs:
        return []
    said = _tlc(runs, explain=False)
    if "No error has been found" not in said:
        raise RuntimeError(f"TLC gave no answer:\n{said[-3000:]}")
    followed = {int(found) for found in re.findall(r'<<"followed", (\d+)>>', said)}
    return [place for place in range(len(runs)) if place + 1 not in followed]


def explained(run: Run) -> str:
    """Of one that was refused, for people: the event, what came before it, and the state that it met."""
    said = _tlc([run], explain=True)
    places = re.findall(r"/\\ at = (\d+)", said)
    at = int(places[-1]) - 1 if places else 0
    before = "\n".join(f"    {place}: {event}" for place, event in enumerate(run[: at + 1]))
    state = said[said.rfind("State ") :]
    return f"event {at} of {len(run)} cannot happen, or breaks what must hold\n{before[-5000:]}\n{state[:6000]}"


def _tlc(runs: Sequence[Run], explain: bool) -> str:
    (jar,) = fetch.folder_of("tlc").glob("*.jar")
    with tempfile.TemporaryDirectory(prefix="tidegate-traces-") as folder:
        for name in ("Layers.tla", "Traces.tla"):
            (Path(folder) / name).write_text((SPEC / name).read_text())
        names = [f"Run{number}" for number in range(len(runs))]
        lines = [f"{name} == <<\n" + ",\n".join(map(as_tla, run)) + ">>" for name, run in zip(names, runs, strict=True)]
        text = "\n".join(["---- MODULE Runs ----", *lines, f"Runs == <<{', '.join(names)}>>", "====", ""])
        (Path(folder) / "Runs.tla").write_text(text)
        config = ["SPECIFICATION TraceSpec", 'CONSTANTS Fault = "none"', f"CHECK_DEADLOCK {str(explain).upper()}", ""]
        (Path(folder) / "run.cfg").write_text("\n".join(config))
        done = subprocess.run(
            [fetch.java(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx1g", "-Xss64m", f"-Djava.io.tmpdir={folder}",
             "-cp", str(jar), "tlc2.TLC", "-workers", "1", "-nowarning", "-config", "run.cfg", "Traces.tla"],
            cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    return done.stdout + done.stderr
