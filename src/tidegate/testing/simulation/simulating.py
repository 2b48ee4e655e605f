"""Many runs of one job, each with misfortunes of its own, against runs without any. Driver; one thread.

1. Plain runs: the job as it is, in several orders of events. They say what must come out, and how much of that can be
   compared: where they differ among each other, results depend on the order of records, on the clock or on chance
2. A run for each seed: its own order of events, and misfortunes that are drawn from it
3. Where something else came out, misfortunes are left out one by one as long as it still does: what is left is told
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate.api.environment import StreamEnvironment
from tidegate.config import JobConfig
from tidegate.errors import ConfigurationError
from tidegate.settings.choices import CheckpointMode
from tidegate.testing.simulation.comparing import Difference, Expected, differences, expected
from tidegate.testing.simulation.misfortunes import Misfortune, draw, once
from tidegate.testing.simulation.runs import Ran, SimulatedJob

PLAIN_ORDERS = tuple(range(10**9, 10**9 + 5))  #: of events, in plain runs; above all seeds
MAX_SHRINKING_RUNS = 80


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed by which something else came out."""

    seed: int
    trouble: str  #: the job did not end as it should; "" where it did
    differences: list[Difference]
    misfortunes: list[Misfortune]  #: as drawn
    needed: list[Misfortune]  #: of them, with which it still fails
    own_order: bool  #: it fails only in the seed's own order of events, not in that of a plain run
    story: Sequence[str]  #: what happened in the shrunk run
    runs: int  #: that it took to shrink it

    def __str__(self) -> str:
        what = [self.trouble] if self.trouble else [f"{each.uid}: {each}" for each in self.differences]
        return f"seed {self.seed}: " + "; ".join(what)


@dataclass(slots=True)
class Report:
    """What was seen so far."""

    job: str
    expected: dict[str, Expected] = field(default_factory=dict)
    plain_runs: int = 0
    plain_differences: dict[str, list[Difference]] = field(default_factory=dict)  #: among plain runs, by uid
    at_least_once: bool = False  #: so are the job's checkpoints, and nothing is compared
    seeds: int = 0  #: that were run
    failures: list[Failure] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)  #: misfortunes, by kind
    checkpoints: int = 0

    @property
    def is_good(self) -> bool:
        return not self.failures

    @property
    def compares(self) -> bool:
        """Whether anything can be compared but that the job ends."""
        return any(each.is_compared for each in self.expected.values())

    def check(self) -> None:
        """:raises AssertionError: telling what is wrong, with the misfortunes that it takes."""
        told = [f"{failure}\n" + "\n".join(f"  {line}" for line in failure.story) for failure in self.failures]
        assert self.is_good, f"{len(told)} of {self.seeds} seeds of {self.job!r} failed\n" + "\n".join(told)
        assert self.compares, f"{self.job!r}: runs without any misfortune differ, so nothing can be compared"


class Simulation:
    """Of one job. `report` says what was seen, at any moment."""

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.report = Report(job.env.name)

    def run_plain(self, on_run: Callable[[Report], None] = lambda report: None) -> None:
        """:raises ConfigurationError: when the job does not come to its end without any misfortune."""
        ran: list[Ran] = []
        for order in PLAIN_ORDERS:
            ran.append(self.job.run(order))
            self.report.plain_runs += 1
            if ran[-1].trouble:
                raise ConfigurationError(f"the job does not run without any misfortune: {ran[-1].trouble}")
            on_run(self.report)
        self.report.at_least_once = at_least_once = self.job.config.mode is CheckpointMode.AT_LEAST_ONCE
        for uid, sink in self.job.sinks.items():
            exact = uid in self.job.instead or sink.guarantee == "exactly-once"
            wanted = expected(uid, exact, [each.rows[uid] for each in ran])
            if at_least_once:  # state counts twice as well, so that records are others
                wanted = replace(wanted, stable=False, count=None)
            self.report.expected[uid] = wanted
            others = [expected(uid, True, [each.rows[uid]]) for each in ran[1:]]
            differ = [found for each in others for found in differences({uid: each}, ran[0].rows)]
            if differ and not at_least_once:
                self.report.plain_differences[uid] = differ

    def run_seed(self, seed: int, shrink: bool = True) -> Failure | None:
        """One seed; what was wrong, if it was."""
        misfortunes = draw(seed, self.job.calls())
        ran = self._noted(self.job.run(seed, misfortunes))
        self.report.seeds += 1
        if not self._is_wrong(ran):
            return None
        needed, order, shortest, runs = misfortunes, seed, ran, 0
        if shrink:
            needed, order, shortest, runs = self._shrunk(seed, misfortunes, ran)
        failure = Failure(
            seed,
            shortest.trouble,
            [] if shortest.trouble else differences(self.report.expected, shortest.rows),
            misfortunes,
            needed,
            order == seed,
            shortest.story,
            runs,
        )
        self.report.failures.append(failure)
        return failure

    def _noted(self, ran: Ran) -> Ran:
        self.report.happened += ran.happened
        self.report.checkpoints += ran.checkpoints
        return ran

    def _is_wrong(self, ran: Ran) -> bool:
        return bool(ran.trouble or differences(self.report.expected, ran.rows))

    def _shrunk(self, seed: int, misfortunes: list[Misfortune], ran: Ran) -> tuple[list[Misfortune], int, Ran, int]:
        """With the fewest deviations from a plain run that still fail: first the order of events, then one by one."""
        needed, order, shortest, runs = list(misfortunes), seed, ran, 0

        def fails(fewer: list[Misfortune], its_order: int) -> bool:
            nonlocal needed, order, shortest, runs
            if runs == MAX_SHRINKING_RUNS:
                return False
            runs += 1
            tried = self.job.run(its_order, fewer)
            if self._is_wrong(tried):
                needed, order, shortest = fewer, its_order, tried
                return True
            return False

        if fails([], seed):  # the order alone is enough: no misfortune is to blame
            return needed, order, shortest, runs
        fails(needed, PLAIN_ORDERS[0])
        smaller = True
        while smaller:
            smaller = False
            for each in list(needed):
                fewer = [other for other in needed if other is not each]
                if fewer and (fails(fewer, order) or fails(fewer, PLAIN_ORDERS[0])):
                    smaller = True
        for place, each in enumerate(needed):
            if once(each) != each:
                fails([*needed[:place], once(each), *needed[place + 1 :]], order)
        return needed, order, shortest, runs


def simulate(
    env: StreamEnvironment,
    seeds: int = 100,
    *,
    first_seed: int = 0,
    records: int | None = None,
    inputs: Mapping[str, str] | None = None,
    instead: Sequence[str] = (),
    shrink: bool = True,
    most_failures: int = 3,
    on_seed: Callable[[Report], None] | None = None,
    config: JobConfig | None = None,
) -> Report:
    """Run the job of an environment once for each seed, with misfortunes, and compare what came out.

        simulate(env, seeds=50).check()

    :param records: how many of each source are read; None: all, and 100 of one without an end.
    :param inputs: files of records in place of sources, by their uids: for those that need a service.
    :param instead: uids of sinks whose own code is not to run.
    :param shrink: find the fewest misfortunes by which a seed still fails.
    :param most_failures: stop after so many.
    :raises ConfigurationError: when the job cannot be simulated; it says why.
    """
    env._built.taken_up = True
    simulation = Simulation(SimulatedJob(env, config or env.config(), records, inputs, instead))
    simulation.run_plain()
    for seed in range(first_seed, first_seed + seeds):
        simulation.run_seed(seed, shrink)
        if on_seed is not None:
            on_seed(simulation.report)
        if len(simulation.report.failures) >= most_failures:
            break
    return simulation.report
