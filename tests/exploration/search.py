"""Every way through a small world, each world once. The world is the real code's: a step is carried out, and then the contents
of the objects are written back (pictures.py), so a way that branches is not gone twice.

    search(scenario)                      to the end: every interleaving. Two steps that have nothing to do with each other are
                                          tried in one order only (sleep sets)
    search(scenario, max_deviations=2)    every world that a run reaches which differs from the plain run in at most two choices

The plain run takes the first of the steps that are possible, in the order in which steps.py lists them, and nothing goes wrong.
A violation that is found with the fewest deviations for which there is one needs no shrinking: fewer show nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pictures import Picture
from scenarios import Scenario
from steps import EVERYTHING, ROOT, Step, SteppedRun

from tidegate.storage import memory_store


@dataclass(frozen=True, slots=True)
class Violation:
    scenario: str
    path: tuple[str, ...]
    what: str
    deviations: int


@dataclass(slots=True)
class Found:
    scenario: str
    max_deviations: int | None
    worlds: int = 0
    steps: int = 0
    ends: int = 0
    deepest: int = 0
    compared: int = 0  #: worlds that were reached again from the beginning, and looked the same
    complete: bool = False
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)


@dataclass(slots=True)
class _Frame:
    pictures: dict[str, Picture]
    now: float
    todo: list[tuple[Step, str, int]]  #: the step, what goes wrong within it, and how many deviations that makes
    asleep: dict[str, frozenset[str]]  #: steps that were tried elsewhere, and what they need


@dataclass(slots=True)
class Search:
    scenario: Scenario
    max_deviations: int | None = None
    max_worlds: int | None = None
    max_violations: int = 1
    part: float = 1.0  #: of the deviations, drawn by one seed: a piece of the search that is spread over all of it
    compare_every: int = 0
    is_over: Callable[[], bool] = lambda: False
    tell: Callable[[Found], None] = lambda found: None
    _draw: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self) -> Found:
        found = Found(self.scenario.name, self.max_deviations)
        began = time.monotonic()
        found.complete = self._run(found) and self.part >= 1.0
        found.seconds = time.monotonic() - began
        return found

    def _run(self, found: Found) -> bool:
        run = self.scenario.begin()
        to_the_end = self.max_deviations is None
        slept: dict[int, frozenset[str]] = {run.look(): frozenset()}  #: by world: what was asleep when it was expanded
        least: dict[int, int] = {run.look(): 0}  #: by world: deviations
        found.worlds = 1
        path: list[str] = []
        stack = [self._frame(run, {}, None, 0)]
        while stack:
            frame = stack[-1]
            if not frame.todo:
                stack.pop()
                if path:
                    path.pop()
                continue
            step, trouble, deviations = frame.todo.pop()
            run.go_back_to(frame.pictures, frame.now)
            if trouble:
                step = next(each for each in run.steps() if each.name == step.name)
            offered = run.take(step, trouble)
            found.steps += 1
            name = f"{step.name} !{trouble}" if trouble else step.name
            if to_the_end or deviations < self.max_deviations:
                frame.todo += [(step, each, deviations + 1) for each in reversed(offered) if self._is_wanted()]
            asleep: dict[str, frozenset[str]] = {}
            if to_the_end and not trouble:
                asleep = {each: needs for each, needs in frame.asleep.items() if not _meet(needs, step.needs)}
                frame.asleep[step.name] = step.needs
            if what := wrong(self.scenario, run):
                found.violations.append(Violation(self.scenario.name, (*path, name), what, deviations))
                if len(found.violations) >= self.max_violations:
                    return False
                continue
            look = run.look()
            only: frozenset[str] | None = None
            if look not in least:
                least[look] = deviations
                slept[look] = frozenset(asleep)
                found.worlds += 1
                found.ends += run.held.ended is not None
                if (self.max_worlds is not None and found.worlds >= self.max_worlds) or self.is_over():
                    return False
                if found.worlds % 10_000 == 0:
                    self.tell(found)
            elif to_the_end:
                if slept[look] <= asleep.keys():
                    continue
                only = slept[look] - asleep.keys()
                slept[look] = slept[look] & asleep.keys()
            elif least[look] <= deviations:
                continue
            least[look] = deviations
            path.append(name)
            found.deepest = max(found.deepest, len(path))
            if self.compare_every and found.worlds % self.compare_every == 0:
                found.compared += 1
                if self._from_the_beginning(run, path) != look:
                    raise AssertionError(f"a world that was gone back to is not the world of its path: {path}")
            stack.append(self._frame(run, asleep, only, deviations))
        return True

    def _from_the_beginning(self, run: SteppedRun, path: list[str]) -> int:
        """How the world looks at the end of the path, where nobody has gone back. `run` is as it was, afterwards."""
        pictures, now, objects = run.pictures, run.world.clock.now, dict(run.pictures["store"].saved[0][2])
        again, _ = follow(self.scenario, path)
        look = again.look()
        memory_store._stores[ROOT] = run._objects
        run.pictures = {}
        run.go_back_to(pictures, now)
        assert run._objects == objects
        return look

    def _frame(
        self, run: SteppedRun, asleep: dict[str, frozenset[str]], only: frozenset[str] | None, deviations: int
    ) -> _Frame:
        steps = run.steps()
        todo = [
            (step, "", deviations + (number > 0))
            for number, step in enumerate(steps)
            if step.name not in asleep and (only is None or step.name in only)
        ]
        if self.max_deviations is not None:
            todo = [
                each for each in todo if each[2] <= self.max_deviations and (each[2] == deviations or self._is_wanted())
            ]
        return _Frame(run.pictures, run.world.clock.now, todo[::-1], dict(asleep))

    def _is_wanted(self) -> bool:
        return self.part >= 1.0 or self._draw.random() < self.part


def _meet(one: frozenset[str], other: frozenset[str]) -> bool:
    return EVERYTHING in one or EVERYTHING in other or not one.isdisjoint(other)


def wrong(scenario: Scenario, run: SteppedRun) -> str:
    """In the world as it is now."""
    error = run.held.failed_with
    if error is not None:
        return f"{type(error).__name__}: {error}"
    if run.held.ended is not None:
        return scenario.wrong_at_the_end(run)
    return scenario.wrong_now(run)


def follow(scenario: Scenario, path: list[str] | tuple[str, ...]) -> tuple[SteppedRun, str]:
    """From the beginning. The run, and what is wrong where the path ends, or stops for that."""
    run = scenario.begin()
    for name in path:
        plain, _, trouble = name.partition(" !")
        step = next((each for each in run.steps() if each.name == plain), None)
        if step is None:
            raise ValueError(f"{name!r} is not possible there: {[each.name for each in run.steps()]}")
        run.take(step, trouble)
        if what := wrong(scenario, run):
            return run, what
    return run, ""
