"""From heartbeats to a rescale, with a plan and a view of the product, and no job."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import tidegate as tg
from tidegate.coordinator.autoscaling import Autoscaler, vertices_of
from tidegate.coordinator.observing import AttemptStarted, JobStatus, JobView, SlotReported, StatusChanged
from tidegate.errors import SavepointFailed
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.ids import AttemptId, AttemptNumber, Generation, SlotId
from tidegate.protocol.autoscaling import ScalingPolicy
from tidegate.testing.ledger_sink import LedgerSink
from tidegate.wire.control import Heartbeat, OperatorMetrics

POLICY = ScalingPolicy(settle_s=2.0, window_s=4.0, scale_down_s=10.0, catch_up_s=10.0)
ATTEMPT = AttemptId(Generation(1), AttemptNumber(1))


def graph(env: tg.StreamEnvironment) -> None:
    numbers = env.from_source(tg.NumberSequence(1, 3), uid="numbers", parallelism=1)
    numbers.key_by(lambda n: n, key_type=int).count().sink_to(LedgerSink("out"), uid="out")


class Watched:
    """A job that says what the test lets it say, one second after another."""

    def __init__(self, excluded: tuple[str, ...] = ()) -> None:
        env = tg.StreamEnvironment("job", parallelism=2)
        graph(env)
        self.graph = env._graph
        self.plan: JobPlan = plan_job("job", self.graph, 2)
        self.view = JobView()
        self.now = 0.0
        self.asked: list[tuple[dict[str, int], str]] = []
        self.answers: list[Future[Any]] = []
        self.view.subscribe(
            Autoscaler(
                POLICY,
                excluded,
                self.view,
                lambda: self.plan,
                self._ask,
                lambda: 100,
                lambda: self.now,
                lambda: self.now,
            )
        )
        self.count = self.plan.layers[1].chains[0].head.uid

    def _ask(self, parallelism: Mapping[str, int], reason: str) -> Future[Any]:
        self.asked.append((dict(parallelism), reason))
        self.answers.append(Future())
        return self.answers[-1]

    def runs(self) -> None:
        self.second = 0  #: of the attempt
        self.view.publish(AttemptStarted(ATTEMPT, None, self.now, splits={"numbers": 4}))
        self.view.publish(StatusChanged(JobStatus.RUNNING, "", self.now))

    def live(self, seconds: int, busy: dict[int, float]) -> None:
        """`busy`: by layer."""
        for _ in range(seconds):
            self.now += 1
            self.second += 1
            for slot in self.plan.slots:
                self.view.publish(SlotReported(slot, self._heartbeat(slot, self.second, busy[slot.layer])))

    def _heartbeat(self, slot: SlotId, second: int, busy: float) -> Heartbeat:
        uids = [(chain, s) for chain, s in self.plan.hosted_in(slot)]
        operators = [
            OperatorMetrics(planned.uid, subtask, 0 if slot.layer == 0 else 100 * second, 100 * second)
            for chain, subtask in uids
            for planned in chain.operators
        ]
        return Heartbeat(int(1000 * busy * second), int(1000 * (1 - busy) * second), 0, 0, 0, operators)


def test_a_busy_vertex_is_rescaled_with_all_operators_of_its_chain_and_the_reason_is_told() -> None:
    job = Watched()
    job.runs()
    job.live(8, {0: 0.2, 1: 0.94})

    ((numbers, reason),) = job.asked
    chain = job.plan.layers[1].chains[0]
    assert numbers == {planned.uid: 3 for planned in chain.operators}
    assert set(numbers) > {"out"}
    assert "2 to 3 (94% busy)" in reason
    assert f"autoscaler: rescaling: {reason}" in [line.message for line in job.view.lines]


def test_a_refusal_is_told_and_it_is_asked_again_later() -> None:
    job = Watched()
    job.runs()
    job.live(8, {0: 0.2, 1: 0.94})
    job.answers[0].set_exception(SavepointFailed("the job was not rescaled: too slow", reason="too slow"))
    job.live(8, {0: 0.2, 1: 0.94})

    assert len(job.asked) == 2
    assert "autoscaler: not rescaled: the job was not rescaled: too slow" in [line.message for line in job.view.lines]


def test_while_the_job_does_not_run_nothing_is_judged_and_a_new_attempt_begins_anew() -> None:
    job = Watched()
    job.runs()
    job.live(5, {0: 0.2, 1: 0.94})
    job.view.publish(StatusChanged(JobStatus.RESTARTING, "in 0 s", job.now))
    job.live(20, {0: 0.2, 1: 0.94})
    assert job.asked == []
    job.runs()
    job.live(5, {0: 0.2, 1: 0.94})
    assert job.asked == []
    job.live(5, {0: 0.2, 1: 0.94})
    assert len(job.asked) == 1


def test_a_slot_that_was_not_heard_yet_is_waited_for() -> None:
    job = Watched()
    job.runs()
    silent = job.plan.slots[-1]
    job.view.subscribe(lambda event: job.view.heartbeats.pop(silent, None))
    job.live(20, {0: 0.2, 1: 0.94})
    assert job.asked == []


def test_sources_are_bounded_by_their_splits_keys_by_their_groups_and_some_are_left_out() -> None:
    job = Watched()
    numbers, count = vertices_of(job.plan, (), {"numbers": 4})
    assert (numbers.most, numbers.most_why, numbers.inputs) == (4, "the source has 4 splits", ())
    assert (count.most, count.most_why, count.inputs) == (128, "it has 128 key groups", ("numbers",))
    assert [vertex.is_fixed for vertex in vertices_of(job.plan, {"out"}, {})] == [False, True]


def test_what_all_goes_to_one_subtask_stays_and_what_is_forwarded_has_one_number() -> None:
    env = tg.StreamEnvironment("job", parallelism=2)
    numbers = env.from_source(tg.NumberSequence(1, 3), uid="numbers")
    numbers.map(lambda n: n, uid="apart", returns=int).disable_chaining().sink_to(LedgerSink("out"), uid="out")
    numbers.global_().map(lambda n: n, uid="one", returns=int).sink_to(LedgerSink("two"), uid="two")
    found = {vertex.id: vertex for vertex in vertices_of(plan_job("job", env._graph, 2), (), {})}
    assert found["one"].is_fixed
    assert found["one"].most_why == "all records go to one of its subtasks"
    assert found["numbers"].tied_to == found["apart"].tied_to != ""
    assert found["one"].tied_to == ""
    fixed = {vertex.id: vertex for vertex in vertices_of(plan_job("job", env._graph, 2), {"apart"}, {})}
    assert fixed["apart"].is_fixed
    assert fixed["numbers"].is_fixed, "or what the settings leave out would be rescaled with it"
    assert "it has as many subtasks as map, of which 2 stay" in fixed["numbers"].most_why
