"""Jobs and loads for the autoscaler, simulated: a line of vertices, through which records flow as water does. Pure.

A step of the model: what has come and waits flows as quickly as the slowest vertex lets it. Those before it wait, those after
it have time. Costs and loads are noisy; a part of the records may have one key, and so one subtask.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.protocol.autoscaling import Autoscaling, JobRuns, Looked, Rescale, ScalingPolicy
from tidegate.protocol.scaling_needs import Sample, SubtaskCounts, Vertex, VertexCounts

STEP_S = 10.0
RESTART_S = 3.0
Load = Callable[[float], float]  #: records a second at a time; below 0: the input has ended


@dataclass
class Stage:
    """One vertex."""

    cost_s: float  #: of a record, for a subtask
    out: float = 1.0  #: records given for each taken in
    hot: float = 0.0  #: part of the records that one subtask must take
    most: int = 1 << 30


@dataclass(frozen=True)
class Decided:
    at: float
    before: dict[str, int]
    after: dict[str, int]
    reason: str

    @property
    def is_up(self) -> bool:
        return any(self.after[id] > self.before[id] for id in self.after)


@dataclass
class SimulatedJob:
    stages: list[Stage]
    parallelism: list[int]
    knows_backlog: bool
    draw: random.Random
    noise: float = 0.05
    backlog: float = 0.0
    busy: list[float] = field(default_factory=list)  #: of each vertex's busiest subtask, in the last step
    counts: list[list[list[float]]] = field(
        default_factory=list
    )  #: busy, idle, blocked, records, sent, of each subtask

    def start(self) -> None:
        self.counts = [[[0.0] * 5 for _ in range(p)] for p in self.parallelism]

    def vertices(self) -> tuple[Vertex, ...]:
        return tuple(
            Vertex(
                f"v{n}", f"v{n}", (f"v{n}",), p, n, () if n == 0 else (f"v{n - 1}",), stage.most, f"{stage.most} keys"
            )
            for n, (stage, p) in enumerate(zip(self.stages, self.parallelism))
        )

    def flows(self) -> list[float]:
        """Records that each vertex takes in for one of the source."""
        return [math.prod(stage.out for stage in self.stages[:n]) for n in range(len(self.stages))]

    def share(self, n: int) -> float:
        """Of the busiest subtask. Where there are too few keys, the others have nothing to do."""
        at_work = min(self.parallelism[n], self.stages[n].most)
        return max(1 / at_work, self.stages[n].hot)

    def capacity(self) -> float:
        """Records of the source a second, without noise."""
        return min(
            1 / (stage.cost_s * flow * self.share(n)) for n, (stage, flow) in enumerate(zip(self.stages, self.flows()))
        )

    def step(self, load: float) -> None:
        ended = load < 0
        self.backlog += max(0.0, load) * STEP_S * self.draw.uniform(1 - self.noise, 1 + self.noise)
        costs = [stage.cost_s * self.draw.uniform(1 - self.noise, 1 + self.noise) for stage in self.stages]
        flows = self.flows()
        limits = [STEP_S / (cost * flow * self.share(n)) for n, (cost, flow) in enumerate(zip(costs, flows))]
        slowest = limits.index(min(limits))
        done = min(self.backlog, limits[slowest])
        self.backlog -= done
        self.busy = []
        for n, subtasks in enumerate(self.counts):
            taken, share = done * flows[n], self.share(n)
            at_work = min(len(subtasks), self.stages[n].most)
            for index, counts in enumerate(subtasks):
                others = (1 - share) / (at_work - 1) if at_work > 1 else 0.0
                records = taken * (share if index == 0 else others if index < at_work else 0.0)
                worked = min(STEP_S, records * costs[n])
                if index == 0:
                    self.busy.append(worked / STEP_S)
                if ended and done == 0:
                    continue  # its time is over
                is_blocked = n < slowest and self.backlog > 0
                counts[0] += worked * 1000
                counts[2 if is_blocked else 1] += (STEP_S - worked) * 1000
                counts[3] += records
                counts[4] += records * self.stages[n].out

    def sample(self, at: float, slots: int | None) -> Sample:
        found = {
            f"v{n}": VertexCounts(
                tuple(SubtaskCounts(*map(int, counts)) for counts in subtasks),
                self.backlog if n == 0 and self.knows_backlog else None,
            )
            for n, subtasks in enumerate(self.counts)
        }
        return Sample(at, found, slots)


@dataclass
class Run:
    job: SimulatedJob
    decided: list[Decided] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    at: float = 0.0

    def after(self, at: float) -> list[Decided]:
        return [each for each in self.decided if each.at >= at]


def run(job: SimulatedJob, load: Load, policy: ScalingPolicy, seconds: float, slots: int | None = None) -> Run:
    machine, ran = Autoscaling(policy), Run(job)
    job.start()
    machine.on(JobRuns(job.vertices()), 0.0)
    while ran.at < seconds:
        ran.at += STEP_S
        job.step(load(ran.at))
        answer = machine.on(Looked(job.sample(ran.at, slots)), ran.at)
        if isinstance(answer, Rescale):
            before = {f"v{n}": p for n, p in enumerate(job.parallelism)}
            after = {**before, **answer.parallelism}
            ran.decided.append(Decided(ran.at, before, after, answer.reason))
            job.parallelism = [after[f"v{n}"] for n in range(len(job.parallelism))]
            job.backlog += max(0.0, load(ran.at)) * RESTART_S
            job.start()
            machine.on(JobRuns(job.vertices()), ran.at)
        elif answer is not None:
            ran.held.append(answer.reason)
    return ran


# -- loads ------------------------------------------------------------------------------------------------------------


def constant(rate: float) -> Load:
    return lambda at: rate


def step_and_back(rate: float, factor: float, up_at: float, back_at: float) -> Load:
    return lambda at: rate * factor if up_at <= at < back_at else rate


def ramp(rate: float, factor: float, seconds: float) -> Load:
    return lambda at: rate * (1 + (factor - 1) * min(1.0, at / seconds))


def sawtooth(rate: float, factor: float, period: float) -> Load:
    return lambda at: rate * (1 + (factor - 1) * (at % period) / period)


def bursts(rate: float, factor: float, period: float, length: float) -> Load:
    return lambda at: rate * factor if at % period < length else rate


def stalls(rate: float, period: float, length: float) -> Load:
    return lambda at: 0.0 if at % period < length else rate


def random_walk(rate: float, draw: random.Random, seconds: float) -> Load:
    levels = [1.0]
    for _ in range(int(seconds / 300) + 1):
        levels.append(min(6.0, max(0.2, levels[-1] * draw.uniform(0.7, 1.45))))
    return lambda at: rate * levels[int(at / 300)]


def ending(inner: Load, at_end: float) -> Load:
    return lambda at: -1.0 if at >= at_end else inner(at)


def some_job(draw: random.Random, rate: float) -> SimulatedJob:
    """Of one to four vertices with one to three subtasks each, one of which are half busy or a little more."""
    stages: list[Stage] = []
    parallelism, flow, count = [], 1.0, draw.randint(1, 4)
    busiest = draw.randrange(count)
    for n in range(count):
        p, busy = draw.randint(1, 3), draw.uniform(0.45, 0.65) if n == busiest else draw.uniform(0.05, 0.6)
        stages.append(Stage(cost_s=busy * p / (rate * flow), out=draw.choice([1.0, 1.0, 0.5, 3.0])))
        flow *= stages[-1].out
        parallelism.append(p)
    return SimulatedJob(stages, parallelism, draw.random() < 0.5, draw)
