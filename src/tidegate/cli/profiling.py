"""`tidegate profile`: which lines of the user's code take a running job's time, by sampling. Any machine.

It asks for flame graphs (rest/flame_graph.py), which makes the slots sample, and reads them when the time is over. A
sample belongs to the innermost line of the user's code on its stack: what that line calls in libraries is its own doing.
"""

from __future__ import annotations

import argparse
import linecache
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tidegate.cli.jobs import EXIT_DONE, busy, chosen_job, guarded, print_answer
from tidegate.cli.remote import Refused, RemoteJob, quoted
from tidegate.cli.tables import table

ASK_AGAIN_S = 3.0  #: slots sample on while somebody asks
LINES = 15  #: of a vertex, that are shown
MAX_CODE = 60  #: characters of a line's text

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A vertex, or one operator of it."""

    vertex: str
    title: str
    operator: str | None = None

    def path(self, kind: str, seconds: int) -> str:
        only = "" if self.operator is None else f"&operator={quoted(self.operator)}"
        return f"/vertices/{self.vertex}/flamegraph?type={kind}&seconds={seconds}{only}"


@dataclass(slots=True)
class HotLine:
    line: str  #: file and number
    function: str
    samples: int = 0
    on_cpu: int = 0


@dataclass(slots=True)
class Profile:
    """What was seen of one target."""

    target: Target
    samples: int = 0
    lines: dict[str, HotLine] = field(default_factory=dict)  #: of the user's
    others: dict[str, HotLine] = field(default_factory=dict)  #: by owner: nothing of the user's was on the stack
    folded: list[str] = field(default_factory=list)

    def place(self, path: list[Tree]) -> HotLine:
        """What a stack counts for: the innermost line of the user's, else whoever owns the innermost call."""
        for node in reversed(path):
            if node["owner"] == "user":
                return self.lines.setdefault(node["line"], HotLine(node["line"], node["name"].rpartition(" (")[0]))
        owner = path[-1]["owner"]
        return self.others.setdefault(owner, HotLine("", owner))

    def elsewhere(self) -> dict[str, int]:
        """Samples outside the user's code. A thread that computes nothing there waits: for records, or to be let on."""
        waiting = sum(other.samples - other.on_cpu for other in self.others.values())
        return {owner: other.on_cpu for owner, other in self.others.items()} | {"waiting": waiting}

    def hottest(self) -> list[HotLine]:
        return sorted(self.lines.values(), key=lambda line: (-line.samples, line.line))

    def share(self, samples: int) -> float:
        return samples / self.samples if self.samples else 0.0


@guarded
def profile(options: argparse.Namespace) -> int:
    job = chosen_job(options)
    targets = _targets(job, options.operator)
    with busy(options, f"sampling {job.name} for {options.seconds} s ..."):
        profiles = _sampled(job, targets, options.seconds)
    if options.folded is not None:
        with open(options.folded, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for profile in profiles for line in profile.folded)
    value = {"job": job.name, "seconds": options.seconds, "vertices": [_as_json(profile) for profile in profiles]}
    print_answer(options, value, lambda _: Group(*(_shown(profile) for profile in profiles)))
    return EXIT_DONE


def _targets(job: RemoteJob, operator: str | None) -> list[Target]:
    """All vertices; or an operator by its uid or name. :raises Refused: where there is none."""
    if operator is None:
        return [Target(vertex["id"], vertex["name"]) for vertex in job.ask()["vertices"]]
    operators = job.ask("/operators")["operators"]
    found = [o for o in operators if o["uid"] == operator] or [o for o in operators if o["name"] == operator]
    if not found:
        known = ", ".join(o["uid"] for o in operators)
        raise Refused(f"job {job.name!r} has no operator {operator!r}: name one by its uid ({known})")
    return [Target(o["vertex"], f"{o['name']} (uid {o['uid']})", o["uid"]) for o in found]


def _sampled(job: RemoteJob, targets: list[Target], seconds: int) -> list[Profile]:
    ends = time.monotonic() + seconds
    while True:
        for target in targets:
            job.ask(target.path("full", 1))
        left = ends - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(left, ASK_AGAIN_S))
    return [
        profile_of(
            target,
            job.ask(target.path("full", seconds + 1)).get("data"),
            job.ask(target.path("on_cpu", seconds + 1)).get("data"),
        )
        for target in targets
    ]


# -- reading flame graphs -----------------------------------------------------------------------------------------------


def profile_of(target: Target, full: Tree | None, on_cpu: Tree | None) -> Profile:
    """From the trees of all samples and of those on the CPU; None: there was nothing to see."""
    made = Profile(target)
    for path, samples in _own_samples(full):
        place = made.place(path)
        place.samples += samples
        made.samples += samples
        made.folded.append(";".join(map(_folded, [target.title, *(node["name"] for node in path)])) + f" {samples}")
    for path, samples in _own_samples(on_cpu):
        made.place(path).on_cpu += samples
    return made


def _own_samples(tree: Tree | None) -> Iterator[tuple[list[Tree], int]]:
    """Each way from the root, without it, on which samples ended; and how many."""
    ahead: list[tuple[list[Tree], Tree]] = [] if tree is None else [([], child) for child in tree["children"]]
    while ahead:
        above, node = ahead.pop()
        path = [*above, node]
        own = node["value"] - sum(child["value"] for child in node["children"])
        if own > 0:
            yield path, own
        ahead += [(path, child) for child in node["children"]]


def _folded(name: str) -> str:
    """As tools for flame graphs read it: semicolons stand between calls."""
    return name.replace(";", ",").replace("\n", " ")


# -- showing ------------------------------------------------------------------------------------------------------------


def _as_json(profile: Profile) -> dict[str, Any]:
    return {
        "vertex": profile.target.vertex,
        "name": profile.target.title,
        "samples": profile.samples,
        "lines": [
            {
                "line": hot.line,
                "function": hot.function,
                "samples": hot.samples,
                "onCpu": hot.on_cpu,
                "share": round(profile.share(hot.samples), 4),
            }
            for hot in profile.hottest()
        ],
        "elsewhere": profile.elsewhere(),
    }


def _shown(profile: Profile) -> RenderableType:
    if not profile.samples:
        return Text(f"{profile.target.title}: nothing was seen; the job is not running, or began a moment ago\n")
    parts = {"your code": sum(hot.samples for hot in profile.lines.values()), **profile.elsewhere()}
    where = ", ".join(f"{profile.share(samples):.0%} {name}" for name, samples in parts.items() if samples)
    made = table("share", "on CPU", "line", "function", "", numbers=("share", "on CPU"))
    for hot in profile.hottest()[:LINES]:
        made.add_row(
            f"{profile.share(hot.samples):.1%}",
            f"{profile.share(hot.on_cpu):.1%}",
            Text(hot.line),
            Text(hot.function),
            Text(_code_at(hot.line), style="dim"),
        )
    head = Text(profile.target.title, style="bold").append(f"  {profile.samples:,} samples: {where}", style="not bold")
    return Group(head, made, "") if profile.lines else Group(head, "")


def _code_at(line: str) -> str:
    """What stands there, where the file is on this machine."""
    file, _, number = line.rpartition(":")
    text = linecache.getline(file, int(number)).strip()
    return text if len(text) <= MAX_CODE else text[: MAX_CODE - 4] + " ..."
