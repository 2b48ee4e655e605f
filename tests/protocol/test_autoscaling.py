"""The autoscaler against 1,000 simulated loads: within bounds, settled soon, and quiet when there is nothing to do."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from load_traces import (
    Decided,
    Run,
    SimulatedJob,
    Stage,
    bursts,
    constant,
    ending,
    ramp,
    random_walk,
    run,
    sawtooth,
    some_job,
    stalls,
    step_and_back,
)

from tidegate.errors import ProtocolViolation
from tidegate.protocol.autoscaling import Autoscaling, JobRuns, Looked, Rescale, RescaleRefused, ScalingPolicy
from tidegate.protocol.scaling_needs import Sample, SubtaskCounts, Vertex, VertexCounts, needs

HOUR = 3600.0
RATE = 1000.0
POLICY = ScalingPolicy()
BATCHES = 10  #: of 100 traces each


@pytest.mark.property
@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, BATCHES))])
def test_on_random_loads_it_keeps_its_bounds_settles_and_does_not_thrash(batch: int) -> None:
    for seed in range(batch * 100, batch * 100 + 100):
        try:
            KINDS[seed % len(KINDS)](random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"trace {seed}: {error}") from error


# -- the kinds of traces ----------------------------------------------------------------------------------------------


def a_step_and_back(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    up_at, back_at, end = 0.5 * HOUR, 1.5 * HOUR, 2.5 * HOUR
    ran = checked(run(job, step_and_back(RATE, 4.0, up_at, back_at), POLICY, end))
    up = [each for each in ran.after(up_at) if each.at < back_at]
    down = ran.after(back_at)
    assert 1 <= len(up) <= 3, shown(up)
    assert len(down) <= 3, shown(down)
    assert up[0].at < up_at + 2 * POLICY.window_s, shown(up)
    assert up[-1].is_up or sum(up[-1].after.values()) > sum(up[0].before.values()), shown(up)
    assert down, shown(ran.decided)
    assert sum(job.parallelism) < sum(up[-1].after.values()), shown(ran.decided)
    assert job.capacity() > RATE, "it keeps up"


def a_constant_load(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    job.noise = draw.uniform(0.0, 0.25)
    job.parallelism = [draw.randint(1, 8) for _ in job.stages]
    ran = checked(run(job, constant(RATE), POLICY, 2 * HOUR))
    assert len(ran.decided) <= 4, shown(ran.decided)
    assert reversals(ran.decided) <= 1, shown(ran.decided)
    for vertex in ran.decided[0].after if ran.decided else ():
        went = [each.after[vertex] - each.before[vertex] for each in ran.decided]
        assert not any(a < 0 < b for n, a in enumerate(went) for b in went[n:]), shown(ran.decided)
    assert job.capacity() > RATE
    assert job.backlog < RATE * 30


def a_ramp(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    factor, seconds = draw.uniform(0.2, 8.0), draw.uniform(0.1, 1.0) * HOUR
    ran = checked(run(job, ramp(RATE, factor, seconds), POLICY, 2 * HOUR))
    ups = [each.is_up for each in ran.decided]
    assert sum(a and not b for a, b in itertools.pairwise(ups)) <= 2, shown(ran.decided)
    assert job.capacity() > RATE * factor


def a_sawtooth(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    load = sawtooth(RATE, draw.uniform(1.5, 6.0), period := draw.uniform(120, 2400))
    ran = checked(run(job, load, POLICY, 3 * HOUR))
    assert reversals(ran.decided) <= (8 if period < 1500 else 2 * 3 * HOUR / period), shown(ran.decided)


def short_bursts(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    load = bursts(RATE, draw.uniform(2.0, 10.0), draw.uniform(300, 1500), draw.uniform(5, 60))
    ran = checked(run(job, load, POLICY, 2 * HOUR))
    assert reversals(ran.decided) <= 8, shown(ran.decided)


def with_stalls(draw: random.Random) -> None:
    """Shorter than the time after which fewer subtasks are believed to be enough: they change nothing."""
    job = some_job(draw, RATE)
    ran = checked(run(job, stalls(RATE, draw.uniform(900, 1800), draw.uniform(10, 150)), POLICY, 2 * HOUR))
    assert reversals(ran.decided) <= 2, shown(ran.decided)


def a_hot_key(draw: random.Random) -> None:
    """More subtasks do not help the one that has the key: that is found out, said, and not tried again and again."""
    hot = draw.uniform(0.3, 0.9)
    stages = [Stage(0.2 / RATE), Stage(draw.uniform(1.2, 3.0) / hot / RATE, hot=hot)]
    job = SimulatedJob(stages, [1, draw.randint(1, 4)], draw.random() < 0.5, draw)
    ran = checked(run(job, constant(RATE), POLICY, 2 * HOUR))
    ups = [each for each in ran.decided if each.is_up]
    assert len(ups) <= 3, shown(ups)
    assert any("the keys of one subtask" in why or "brought nothing" in why for why in ran.held), ran.held


def few_splits(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    job.stages[0].most = most = draw.randint(1, 3)
    job.parallelism[0] = min(job.parallelism[0], most)
    ran = checked(run(job, constant(5 * RATE), POLICY, HOUR))
    assert all(each.after["v0"] <= most for each in ran.decided)


def few_slots(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    slots = sum(job.parallelism) + draw.randint(0, 4)
    ran = checked(run(job, constant(RATE * draw.uniform(2.0, 8.0)), POLICY, HOUR, slots))
    assert all(sum(each.after.values()) <= slots for each in ran.decided), shown(ran.decided)
    assert len(ran.decided) <= 4, shown(ran.decided)


def an_end(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    end = draw.uniform(0.1, 1.0) * HOUR
    load = ending(random_walk(RATE, draw, HOUR), end)
    ran = checked(run(job, load, POLICY, 2 * HOUR))
    drained = end + POLICY.window_s + 1200  # what had not been read yet is read
    assert ran.after(drained) == [], shown(ran.decided)


def a_walk(draw: random.Random) -> None:
    job = some_job(draw, RATE)
    ran = checked(run(job, random_walk(RATE, draw, 3 * HOUR), POLICY, 3 * HOUR))
    assert reversals(ran.decided) <= 8, shown(ran.decided)


KINDS = (
    a_step_and_back,
    a_constant_load,
    a_ramp,
    a_sawtooth,
    short_bursts,
    with_stalls,
    a_hot_key,
    few_splits,
    few_slots,
    an_end,
    a_walk,
)


def checked(ran: Run) -> Run:
    """What holds whatever the load."""
    for each in ran.decided:
        assert each.after != each.before
        assert each.reason
        changed = [number for id, number in each.after.items() if number != each.before[id]]
        assert all(POLICY.least <= number <= POLICY.most for number in changed), shown([each])
    gaps = [b.at - a.at for a, b in zip(ran.decided, ran.decided[1:])]
    assert all(gap >= POLICY.settle_s + POLICY.window_s for gap in gaps), shown(ran.decided)
    return ran


def reversals(decided: list[Decided]) -> int:
    ups = [each.is_up for each in decided]
    return sum(a != b for a, b in itertools.pairwise(ups))


def shown(decided: list[Decided]) -> str:
    return "\n".join(
        f"{each.at:.0f} s: {list(each.before.values())} to {list(each.after.values())}: {each.reason}"
        for each in decided
    )


# -- the machine, step by step ----------------------------------------------------------------------------------------

SOURCE, COUNT = (
    Vertex("numbers", "numbers", ("numbers",), 1, 0),
    Vertex("count", "count", ("count",), 2, 1, ("numbers",)),
)


class Steps:
    """A job whose subtasks do the same all the time, looked at each second."""

    def __init__(self, *vertices: Vertex, policy: ScalingPolicy = POLICY) -> None:
        self.machine = Autoscaling(policy)
        self.vertices = vertices
        self.now = 0.0
        self.slots: int | None = None
        self.runs()

    def runs(self) -> None:
        self.machine.on(JobRuns(self.vertices), self.now)
        self._counts = {v.id: [[0, 0, 0, 0, 0] for _ in range(v.parallelism)] for v in self.vertices}

    def first_answer(
        self, seconds: float, busy: dict[str, list[float | None]], backlog: float | None = 0.0, records: int = 100
    ) -> object:
        """Of so many seconds with subtasks so busy (None: their input has ended), each with so many records a second."""
        for _ in range(int(seconds)):
            self.now += 1
            for id, subtasks in self._counts.items():
                for counts, part in zip(subtasks, busy[id], strict=True):
                    if part is None:
                        continue
                    for n, more in enumerate([part * 1000, (1 - part) * 1000, 0, records, records]):
                        counts[n] += int(more)
            counts = {
                id: VertexCounts(tuple(SubtaskCounts(*c) for c in subtasks), backlog if id == "numbers" else None)
                for id, subtasks in self._counts.items()
            }
            answer = self.machine.on(Looked(Sample(self.now, counts, self.slots)), self.now)
            if answer is not None:
                return answer
        return None


BUSY: dict[str, list[float | None]] = {"numbers": [0.5], "count": [0.95, 0.95]}


def test_it_asks_after_it_has_settled_and_a_whole_window_was_seen_and_says_why() -> None:
    steps = Steps(SOURCE, COUNT)
    answer = steps.first_answer(300, BUSY)
    assert answer == Rescale({"count": 3}, "count: 2 to 3 (95% busy)")
    assert steps.now == POLICY.settle_s + POLICY.window_s


def test_as_long_as_nobody_has_answered_it_asks_for_nothing_more() -> None:
    steps = Steps(SOURCE, COUNT)
    assert isinstance(steps.first_answer(300, BUSY), Rescale)
    assert steps.first_answer(1000, BUSY) is None
    steps.machine.on(RescaleRefused(), steps.now)
    with pytest.raises(ProtocolViolation, match="cannot go from MEASURING"):
        steps.machine.on(RescaleRefused(), steps.now)


def test_what_was_refused_is_asked_for_again_after_another_window() -> None:
    steps = Steps(SOURCE, COUNT)
    steps.first_answer(300, BUSY)
    steps.machine.on(RescaleRefused(), steps.now)
    before = steps.now
    assert isinstance(steps.first_answer(300, BUSY), Rescale)
    assert steps.now - before >= POLICY.window_s


def test_a_failure_begins_the_window_anew() -> None:
    steps = Steps(SOURCE, COUNT)
    assert steps.first_answer(POLICY.settle_s + POLICY.window_s - 1, BUSY) is None
    steps.runs()
    assert steps.first_answer(POLICY.settle_s + POLICY.window_s - 1, BUSY) is None
    assert isinstance(steps.first_answer(1, BUSY), Rescale)


@pytest.mark.parametrize(
    ("vertex", "busy", "says"),
    [
        (Vertex("count", "count", ("count",), 2, 1, ("numbers",), is_fixed=True, most_why="it is left out"), [0.95, 0.95],
         "count stays at 2 (95% busy): it is left out"),
        (Vertex("count", "count", ("count",), 2, 1, ("numbers",), most=2, most_why="it has 2 key groups"), [0.95, 0.95],
         "count stays at 2 (95% busy): it has 2 key groups"),
        (COUNT, [0.95, 0.1],
         "count stays at 2 (95% busy): its other subtasks are 10% busy: the keys of one subtask have the work"),
    ],
)  # fmt: skip
def test_what_would_help_and_cannot_be_is_said_once(vertex: Vertex, busy: list[float | None], says: str) -> None:
    steps = Steps(SOURCE, vertex)
    load = {"numbers": [0.5], "count": busy}
    held = steps.first_answer(300, load)
    assert getattr(held, "reason", None) == says
    assert steps.first_answer(1000, load) is None


def test_the_bound_of_the_settings_is_said() -> None:
    held = Steps(SOURCE, COUNT, policy=replace(POLICY, most=2)).first_answer(300, BUSY)
    assert getattr(held, "reason", None) == "count stays at 2 (95% busy): 2 is the bound of the settings"


def test_of_slots_that_are_there_the_busiest_gets_most_and_too_few_are_said() -> None:
    load = {"numbers": [0.95], "count": [2.5, 2.5]}  # as if the backlog were in it
    steps = Steps(SOURCE, COUNT)
    steps.slots = 6
    assert getattr(steps.first_answer(300, load), "parallelism", None) == {"count": 5}

    steps = Steps(SOURCE, COUNT)
    steps.slots = 3
    held = steps.first_answer(300, BUSY)
    assert getattr(held, "reason", None) == "count 2 to 3 would help, but takes 4 slots, and the cluster has 3"


def test_vertices_that_are_tied_have_the_same_number() -> None:
    a = Vertex("numbers", "numbers", ("numbers",), 2, 0, tied_to="x")
    b = Vertex("count", "count", ("count",), 2, 1, ("numbers",), tied_to="x")
    answer = Steps(a, b).first_answer(300, {"numbers": [0.1, 0.1], "count": [0.95, 0.95]})
    assert getattr(answer, "parallelism", None) == {"numbers": 3, "count": 3}
    bound = Steps(replace(a, most=2), b).first_answer(300, {"numbers": [0.1, 0.1], "count": [0.95, 0.95]})
    assert bound is None, "the source has two splits"


def test_it_gives_back_what_was_not_needed_for_a_while() -> None:
    steps = Steps(SOURCE, replace(COUNT, parallelism=4))
    answer = steps.first_answer(2 * POLICY.scale_down_s, {"numbers": [0.5], "count": [0.1] * 4})
    assert answer == Rescale({"count": 1}, "count: 4 to 1 (10% busy; it has needed no more for 5 min)")
    assert steps.now == POLICY.settle_s + POLICY.window_s + POLICY.scale_down_s


def test_what_brought_nothing_is_not_done_again() -> None:
    steps = Steps(SOURCE, COUNT)
    assert not steps.machine.is_measuring
    assert steps.first_answer(300, BUSY) == Rescale({"count": 3}, "count: 2 to 3 (95% busy)")
    steps.vertices = (SOURCE, replace(COUNT, parallelism=3))
    steps.runs()

    held = steps.first_answer(300, {"numbers": [0.5], "count": [0.95] * 3}, records=66)  # as many as the two took
    assert getattr(held, "reason", None) == (
        "count stays at 3 (95% busy): the last subtasks that it was given brought nothing"
    )
    assert steps.machine.is_measuring


def test_what_helped_is_done_again() -> None:
    steps = Steps(SOURCE, COUNT)
    steps.first_answer(300, BUSY)
    steps.vertices = (SOURCE, replace(COUNT, parallelism=3))
    steps.runs()
    assert getattr(steps.first_answer(300, {"numbers": [0.5], "count": [0.95] * 3}), "parallelism", None) == {
        "count": 5
    }


def test_when_all_input_has_ended_nothing_is_asked_for() -> None:
    assert Steps(SOURCE, COUNT).first_answer(1000, {"numbers": [None], "count": [0.95, 0.95]}) is None


def test_a_vertex_whose_input_has_ended_goes_along_with_what_it_is_tied_to() -> None:
    ended = Vertex("others", "others", ("others",), 2, 0, tied_to="x")
    steps = Steps(SOURCE, ended, replace(COUNT, tied_to="x"))
    answer = steps.first_answer(300, {"numbers": [0.5], "others": [None, None], "count": [0.95, 0.95]})
    assert answer == Rescale({"others": 3, "count": 3}, "others: 2 to 3; count: 2 to 3 (95% busy)")


def test_what_is_not_known_makes_no_need_and_no_growth() -> None:
    def sample(at: float, *, given: int = 100, pending: float | None = None, subtasks: int = 1) -> Sample:
        source = SubtaskCounts(int(at * 100), int(at * 900), 0, int(at * given), int(at * given))
        return Sample(at, {"numbers": VertexCounts((source,) * subtasks, pending)})

    def found(first: Sample, last: Sample) -> dict[str, float]:
        of = needs((SOURCE, COUNT), first, last, target=0.7, catch_up_s=100)
        return {id: need.growth.steady for id, need in of.items()}

    assert found(Sample(0, {}), sample(10)) == {}, "it has not said anything before"
    assert found(sample(0), sample(10, subtasks=2)) == {}, "of another attempt"
    assert found(sample(0), sample(10)) == {"numbers": 1.0}, "nobody knows what waits, and nobody is at the limit"
    assert found(sample(0, given=0, pending=5), sample(10, given=0, pending=50)) == {"numbers": 1.0}, "it reads nothing"


@pytest.mark.parametrize("busy", [0.1, 0.95])
def test_a_vertex_is_given_what_it_can_use_though_the_settings_ask_for_more(busy: float) -> None:
    a, b = replace(SOURCE, most=2), replace(COUNT, most=3)
    steps = Steps(a, b, policy=replace(POLICY, least=4))
    answer = steps.first_answer(300, {"numbers": [busy], "count": [busy] * 2})
    assert getattr(answer, "parallelism", None) == {"numbers": 2, "count": 3}


def test_where_nobody_knows_the_backlog_it_waits_for_the_job_to_catch_up() -> None:
    steps = Steps(SOURCE, COUNT)
    answer = steps.first_answer(1000, {"numbers": [0.3], "count": [1.0, 1.0]}, backlog=None)
    assert getattr(answer, "parallelism", None) == {"count": 6}
    assert steps.now == POLICY.catch_up_s


@pytest.mark.parametrize("backlog", [float("nan"), float("inf"), float("-inf")])
def test_a_backlog_that_is_not_a_number_is_one_that_nobody_knows(backlog: float) -> None:
    steps, known = Steps(replace(SOURCE, parallelism=4), COUNT), Steps(replace(SOURCE, parallelism=4), COUNT)
    load = {"numbers": [0.6] * 4, "count": [0.6, 0.6]}
    assert known.first_answer(1000, load, backlog=None) is None
    assert steps.first_answer(1000, load, backlog=backlog) is None


def test_the_input_of_a_vertex_grows_as_its_inputs_do_by_their_weight() -> None:
    a, b = Vertex("a", "a", ("a",), 1, 0), Vertex("b", "b", ("b",), 1, 0)
    c = Vertex("c", "c", ("c",), 1, 1, ("a", "b"))

    def sample(at: float, *pending: float) -> Sample:
        counts = {"a": SubtaskCounts(0, int(at * 1000), 0, int(at * 300), int(at * 300))}
        counts["b"] = SubtaskCounts(0, int(at * 1000), 0, int(at * 100), int(at * 100))
        counts["c"] = SubtaskCounts(int(at * 500), int(at * 500), 0, int(at * 400), 0)
        waits = dict(zip("ab", pending))
        return Sample(at, {id: VertexCounts((c,), waits.get(id)) for id, c in counts.items()})

    found = needs((a, b, c), sample(0, 0, 0), sample(10, 3000, 0), target=0.7, catch_up_s=100)
    assert found["a"].growth.steady == 2.0
    assert found["b"].growth.steady == 1.0
    assert found["c"].growth.steady == 1.75
    assert found["c"].growth.with_backlog == pytest.approx(1.75 + 0.1 * 0.75)
    assert found["c"].projected == 0.875
