"""A path as a story: what a person has to read of it. Steps of the plain run in which nothing of note happens are left out."""

from __future__ import annotations

from scenarios import Scenario
from search import wrong
from steps import SteppedRun

WORDS = {
    "drive": "the driver takes note of what its storage, or a lost connection, has told it",
    "store": "the driver's storing thread does its next piece of work",
    "hear": "the driver hears slot {0}",
    "tell": "a message of the driver reaches slot {0}",
    "upload": "slot {0} stores a snapshot and acknowledges it",
    "commit": "slot {0} asks its sinks to commit",
    "turn": "slot {0} does its next piece of work",
    "deliver": "a frame arrives: {0}",
    "zombie": "a worker of a dead attempt wakes up ({0})",
    "ask": "the user asks for a {0}",
    "time": "time passes",
    "kill": "KILLED: {0}",
    "next": "the attempt is over; the driver plans the next",
}
TROUBLES = {
    "put-fails": "a write of an object FAILS",
    "put-lost": "an object is written, and the answer is LOST",
    "create-fails": "a record is not created: the call FAILS",
    "create-lost": "a record is created, and the answer is LOST",
}


def in_words(name: str) -> str:
    plain, _, trouble = name.partition(" !")
    kind, _, who = plain.partition(" ")
    words = WORDS[kind].format(who)
    if trouble:
        point = trouble.partition("#")[0]
        words += f" ... and there: {TROUBLES.get(point, f'DIES at {point}')}"
    return words


def tell(scenario: Scenario, path: tuple[str, ...]) -> str:
    """The path, from the beginning, to what is wrong."""
    run = scenario.begin()
    lines, skipped, what = [], 0, ""
    for number, name in enumerate(path, 1):
        plain, _, trouble = name.partition(" !")
        steps = run.steps()
        step = next(each for each in steps if each.name == plain)
        deviates = bool(trouble) or steps[0].name != plain
        run.take(step, trouble)
        passed = [each.rpartition("#")[0] for each in run.passed]
        what = wrong(scenario, run)
        if deviates or passed or what or plain == "next":
            if skipped:
                lines.append(f"         ({skipped} steps)")
            skipped = 0
            note = f"   [{', '.join(passed)}]" if passed else ""
            lines.append(f"{'>>' if deviates else '  '} {number:4}  {in_words(name)}{note}")
        else:
            skipped += 1
        if what:
            break
    lines += [f"         ({skipped} steps)"] if skipped else []
    return "\n".join([*lines, f"   WRONG: {what}" if what else "   nothing is wrong", _committed(run)])


def _committed(run: SteppedRun) -> str:
    from tidegate.testing.ledger_sink import ledger

    return f"   committed: {ledger('explored').committed}"
