"""How many subtasks each vertex of a job should have, and when that is worth a restart. Pure; driven by
coordinator/autoscaling.py.

    SETTLING --settled--> MEASURING --more or fewer are needed--> ASKED --the job runs--> SETTLING
        ^                     ^                                     +---refused---> MEASURING, from the beginning
        +------ the job runs (after whatever restart) --------------+

A vertex gets more when it would be busier than `highest` (scaling_needs.py says how busy), as many as bring it to `target`, at
once; and fewer when for `scale_down_s` it has needed fewer all the time. In between nothing happens: a restart costs more than
an idle subtask. What keeps it from going to and fro:

- after a start nothing is counted for `settle_s`, and what is judged is the mean of a whole `window_s`; how many more it takes
  is seen in the last part of it, for the load may have grown in the middle;
- where nobody knows how much there is to read, a job that is busy all the time may be catching up: for `catch_up_s` it is let
  be;
- a vertex that was made smaller and soon needed more again is made smaller more reluctantly: the time doubles, up to 16 times;
- a vertex that was given more and can do no more than before (a hot key, a slow service) is not given more for `USELESS_S`.

Invariant 1. What is asked for is within the bounds, of the settings, of each vertex and of the cluster's slots.
Invariant 2. At most one rescale is asked for in `settle_s + window_s`.
Invariant 3. Each answer has its reason in words.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Union, assert_never

from tidegate.protocol.scaling_needs import Need, Sample, Vertex, needs
from tidegate.protocol.story import Story

USELESS_S = 3600.0
GAIN = 0.1  #: of what more subtasks should have brought; less is nothing
MAX_PATIENCE = 16
LATELY = 4  #: the last quarter of the window
SOON = 4  #: times the wait before a vertex was made smaller: more is needed "soon" after it
NEARLY = 1e-6  #: so that 2.0000001 subtasks are two


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """What the user asked for. Parts of a subtask's time, and seconds."""

    target: float = 0.7
    lowest: float = 0.4
    highest: float = 0.9
    least: int = 1  #: subtasks of a vertex
    most: int = 128  #: no layer of a plan is wider
    settle_s: float = 30.0
    window_s: float = 60.0
    scale_down_s: float = 300.0
    catch_up_s: float = 300.0


class ScalingState(enum.Enum):
    SETTLING = "it has just started: what it does now says nothing"
    MEASURING = "it is counted until a whole window is there, and judged from then on"
    ASKED = "a rescale was asked for"


S = ScalingState
MOVES: Mapping[ScalingState, frozenset[ScalingState]] = {
    S.SETTLING: frozenset({S.SETTLING, S.MEASURING}),
    S.MEASURING: frozenset({S.SETTLING, S.ASKED}),
    S.ASKED: frozenset({S.SETTLING, S.MEASURING}),
}


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobRuns:
    """An attempt runs, with these vertices in the order of the flow."""

    vertices: tuple[Vertex, ...]


@dataclass(frozen=True, slots=True)
class Looked:
    sample: Sample


@dataclass(frozen=True, slots=True)
class RescaleRefused:
    """The job continues as it was."""


ScalingEvent = Union[JobRuns, Looked, RescaleRefused]


# -- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rescale:
    """By vertex, those that change."""

    parallelism: Mapping[str, int]
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Something would help, and cannot be had. Said once, until the job restarts."""

    reason: str


ScalingAnswer = Union[Rescale, Hold, None]


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Why more would help, and is not asked for."""

    where: str  #: a vertex, or "": the cluster
    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class _Raised:
    """A vertex that was given more subtasks."""

    before: int
    capacity: float


@dataclass(slots=True)
class Autoscaling:
    """See the module."""

    policy: ScalingPolicy
    state: ScalingState = S.SETTLING
    story: Story = field(default_factory=Story)
    vertices: tuple[Vertex, ...] = ()
    _since: float = 0.0  #: the state's
    _ran_at: float = 0.0  #: when the attempt has started to run
    _samples: deque[Sample] = field(default_factory=deque)  #: of one window and a little
    _wanted: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)  #: over the restarts
    _watched_since: float | None = None  #: since then it is known what was needed
    _raised: dict[str, _Raised] = field(default_factory=dict)  #: at the last rescale; whether it helped is to be seen
    _useless: dict[str, float] = field(default_factory=dict)  #: until when
    _patience: int = 1
    _lowered_at: float = float("-inf")
    _said: set[tuple[str, str]] = field(default_factory=set)  #: obstacles, by where and kind

    @property
    def is_measuring(self) -> bool:
        return self.state is S.MEASURING

    def on(self, event: ScalingEvent, now: float) -> ScalingAnswer:
        """:raises ProtocolViolation: with the story of what led there."""
        self.story.begin(event, now)
        answer = self._on(event, now)
        self.story.end([] if answer is None else [answer])
        return answer

    def _on(self, event: ScalingEvent, now: float) -> ScalingAnswer:
        match event:
            case JobRuns(vertices):
                self._go(S.SETTLING, now)
                self.vertices, self._ran_at = vertices, now
                self._said.clear()
                return None
            case RescaleRefused():
                self._raised.clear()
                self._go(S.MEASURING, now)
                return None
            case Looked(sample):
                return self._looked(sample, now)
            case _:
                assert_never(event)

    def _looked(self, sample: Sample, now: float) -> ScalingAnswer:
        if self.state is S.SETTLING and now - self._since >= self.policy.settle_s:
            self._go(S.MEASURING, now)
        if self.state is not S.MEASURING:
            return None
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at <= now - self.policy.window_s:
            self._samples.popleft()
        if self._samples[0].at > now - self.policy.window_s:
            return None
        found = self._needs_since(self._samples[0])
        if not any(vertex.id in found for vertex in self.vertices if not vertex.inputs):
            return None  # all input has ended
        return self._judge(found, sample.slots, now)

    def _go(self, to: ScalingState, now: float) -> None:
        self.story.check_move("the autoscaler", MOVES, self.state, to)
        self.state, self._since = to, now
        self._samples.clear()

    # -- what is needed -----------------------------------------------------------------------------------------------

    def _needs_since(self, first: Sample) -> dict[str, Need]:
        return needs(self.vertices, first, self._samples[-1], self.policy.target, self.policy.catch_up_s)

    def _lately(self) -> dict[str, Need]:
        """Over the last part of the window."""
        newest = self._samples[-1].at
        older = [sample for sample in self._samples if sample.at <= newest - self.policy.window_s / LATELY]
        return self._needs_since(older[-1])

    def _is_short(self, need: Need, growth: float = inf) -> bool:
        """`growth`: its input cannot grow by more than this."""
        steady, with_backlog = (
            need.busy * min(each, growth) for each in (need.growth.steady, need.growth.with_backlog)
        )
        return steady > self.policy.highest or with_backlog > 1 / self.policy.highest

    def _times(self, need: Need) -> float:
        """How many times its subtasks it should have."""
        return max(need.projected / self.policy.target, need.catching_up)

    def _judge(self, found: Mapping[str, Need], slots: int | None, now: float) -> ScalingAnswer:
        if now - self._ran_at < self.policy.catch_up_s and any(n.growth.is_guess for n in found.values()):
            return None
        self._see_what_helped(found, now)
        wanted, held = self._wanted_now(found, now)
        self._remember(wanted, now)
        now_has = {vertex.id: vertex.parallelism for vertex in self.vertices}
        raised = {id: number for id, number in wanted.items() if number > now_has[id]}
        lowered = {id: number for id, number in self._needed_lately(now).items() if number < now_has[id]}
        asked = self._tied({**now_has, **lowered, **raised})
        if asked == now_has:
            return self._hold(held)
        fitting = self._fitting(asked, now_has, found, slots)
        if fitting == now_has or (raised and not any(fitting[id] > now_has[id] for id in raised)):
            return self._hold([*held, self._too_few_slots(asked, now_has, slots)])
        return self._ask(fitting, now_has, found, now)

    def _wanted_now(self, found: Mapping[str, Need], now: float) -> tuple[dict[str, int], list[_Obstacle]]:
        """Of each vertex; and what would help, and cannot be."""
        wanted = {vertex.id: vertex.parallelism for vertex in self.vertices}
        judged = [(vertex, found[vertex.id]) for vertex in self.vertices if vertex.id in found]
        lately = self._lately() if any(self._is_short(need) for _, need in judged) else {}
        short = {
            v.id for v, need in judged if self._is_short(need) or (v.id in lately and self._is_short(lately[v.id]))
        }
        stuck = [(need, why) for v, need in judged if v.id in short and (why := self._why_not_more(v, need, now))]
        reach = min((1 / need.busy for need, _ in stuck), default=inf)  # what cannot keep up holds all others up
        for vertex, need in judged:
            most = min(self.policy.most, vertex.most)
            times = self._times(need)
            if vertex.id in short:
                seen = need, lately.get(vertex.id, need)
                if any(self._is_short(n, reach) for n in seen) and self._why_not_more(vertex, need, now) is None:
                    times = max(map(self._times, seen))
                    wanted[vertex.id] = min(most, max(self.policy.least, ceil(vertex.parallelism * times - NEARLY)))
            elif need.projected < self.policy.lowest and not vertex.is_fixed:
                number = ceil(vertex.parallelism * times - NEARLY)
                wanted[vertex.id] = min(most, max(self.policy.least, min(number, vertex.parallelism)))
        return wanted, [why for _, why in stuck]

    def _why_not_more(self, vertex: Vertex, need: Need, now: float) -> _Obstacle | None:
        if vertex.is_fixed:
            kind, why = "fixed", vertex.most_why
        elif vertex.parallelism >= vertex.most:
            kind, why = "bound", vertex.most_why
        elif vertex.parallelism >= self.policy.most:
            kind, why = "bound", f"{self.policy.most} is the bound of the settings"
        elif vertex.inputs and need.is_uneven:
            kind = "uneven"
            why = f"its other subtasks are {_percent(need.others or 0.0)} busy: the keys of one subtask have the work"
        elif self._useless.get(vertex.id, now) > now:
            kind, why = "useless", "the last subtasks that it was given brought nothing"
        else:
            return None
        return _Obstacle(vertex.id, kind, f"{vertex.name} stays at {vertex.parallelism} ({_state(need)}): {why}")

    def _see_what_helped(self, found: Mapping[str, Need], now: float) -> None:
        """After a rescale, once."""
        for vertex in self.vertices:
            before, need = self._raised.pop(vertex.id, None), found.get(vertex.id)
            if before is None or need is None or vertex.parallelism <= before.before or need.busy <= 0:
                continue
            hoped = vertex.parallelism / before.before - 1
            if need.capacity < before.capacity * (1 + GAIN * hoped) and self._is_short(need):
                self._useless[vertex.id] = now + USELESS_S
        self._raised.clear()

    def _remember(self, wanted: dict[str, int], now: float) -> None:
        if self._watched_since is None:
            self._watched_since = now
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - self._down_wait_s:
            self._wanted.popleft()

    @property
    def _down_wait_s(self) -> float:
        return self.policy.scale_down_s * self._patience

    def _needed_lately(self, now: float) -> dict[str, int]:
        """The most of the time after which fewer are believed; nothing as long as that has not passed."""
        assert self._watched_since is not None
        if now - self._watched_since < self._down_wait_s:
            return {}
        ids = [vertex.id for vertex in self.vertices]
        return {id: max(wanted.get(id, 0) for _, wanted in self._wanted) for id in ids}

    def _tied(self, asked: dict[str, int]) -> dict[str, int]:
        """Vertices that are tied get what the one gets that wants most, within the bounds of each of them."""
        same = dict(asked)
        for word in {vertex.tied_to for vertex in self.vertices if vertex.tied_to}:
            tied = [vertex for vertex in self.vertices if vertex.tied_to == word]
            most = max(min(vertex.most for vertex in tied), tied[0].parallelism)
            same |= dict.fromkeys((v.id for v in tied), min(most, max(asked[v.id] for v in tied)))
        return same

    # -- what can be had ----------------------------------------------------------------------------------------------

    def _slots(self, parallelism: Mapping[str, int]) -> int:
        widths: dict[int, int] = {}
        for vertex in self.vertices:
            widths[vertex.layer] = max(widths.get(vertex.layer, 0), parallelism[vertex.id])
        return sum(widths.values())

    def _fitting(
        self, asked: dict[str, int], now_has: dict[str, int], found: Mapping[str, Need], slots: int | None
    ) -> dict[str, int]:
        """As much of it as the slots allow, one subtask after another to whoever is busiest with what it has by then."""
        if slots is None or self._slots(asked) <= slots:
            return asked
        given = {id: min(number, now_has[id]) for id, number in asked.items()}

        def busy(id: str) -> float:
            return self._times(found[id]) * now_has[id] / given[id] if id in found else 0.0

        waiting = {id for id in asked if given[id] < asked[id]}
        while waiting:
            id = max(sorted(waiting), key=busy)
            tried = self._tied({**given, id: given[id] + 1})
            if self._slots(tried) > slots:
                waiting.remove(id)
                continue
            given = tried
            waiting = {id for id in waiting if given[id] < asked[id]}
        return given

    def _too_few_slots(self, asked: Mapping[str, int], now_has: Mapping[str, int], slots: int | None) -> _Obstacle:
        more = [f"{v.name} {now_has[v.id]} to {asked[v.id]}" for v in self.vertices if asked[v.id] > now_has[v.id]]
        takes = f"takes {self._slots(asked)} slots, and the cluster has {slots}"
        return _Obstacle("", "slots", f"{', '.join(more)} would help, but {takes}")

    # -- answers ------------------------------------------------------------------------------------------------------

    def _hold(self, obstacles: Sequence[_Obstacle]) -> Hold | None:
        news = [each for each in obstacles if (each.where, each.kind) not in self._said]
        self._said |= {(each.where, each.kind) for each in news}
        return Hold("; ".join(each.sentence for each in news)) if news else None

    def _ask(self, asked: dict[str, int], now_has: dict[str, int], found: Mapping[str, Need], now: float) -> Rescale:
        changed = {id: number for id, number in asked.items() if number != now_has[id]}
        is_up = any(number > now_has[id] for id, number in changed.items())
        if is_up:
            again = now - self._lowered_at < SOON * self._down_wait_s
            self._patience = min(2 * self._patience, MAX_PATIENCE) if again else 1
        self._raised = {
            id: _Raised(now_has[id], found[id].capacity)
            for id, number in changed.items()
            if number > now_has[id] and id in found
        }
        self._lowered_at = self._lowered_at if is_up else now
        parts = []
        for vertex in self.vertices:
            if vertex.id in changed:
                why = self._why(found.get(vertex.id), changed[vertex.id] > vertex.parallelism)
                parts.append(f"{vertex.name}: {vertex.parallelism} to {changed[vertex.id]}{why}")
        self._go(S.ASKED, now)
        return Rescale(changed, "; ".join(parts))

    def _why(self, need: Need | None, is_more: bool) -> str:
        if need is None:
            return ""
        return (
            f" ({_state(need)})"
            if is_more
            else f" ({_state(need)}; it has needed no more for {_span(self._down_wait_s)})"
        )


def _state(need: Need) -> str:
    growth = max(need.growth.steady, need.growth.with_backlog)
    grows = f", and would have {growth:.1f} times the input if nothing waited" if growth > 1.05 else ""
    return f"{_percent(need.busy)} busy{grows}"


def _percent(part: float) -> str:
    return f"{round(part * 100)}%"


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min"
