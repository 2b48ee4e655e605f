"""What windows over columns work out before the shuffle: when it combines, what waits for it, and where it is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.batch import Batch
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.graph.specs import LocalSlicesSpec
from tidegate.ids import CheckpointId
from tidegate.protocol.watermarks import IDLE
from tidegate.task.operators.local_slices import GATHERED_ROWS, GATHERED_S, LOOK_AGAIN_ROWS, LocalSlicesOperator
from tidegate.task.operators.timers import Time
from tidegate.testing.clock import ManualClock
from tidegate.types import record_type

TYPE = tuple[int, int, int]
RECORDS = record_type(TYPE)


def plan(build: Any, chained: bool = True) -> JobPlan:
    env = tg.StreamEnvironment("job")
    times = tg.WatermarkStrategy.monotonous(timestamp="f1")
    stream = env.from_collection([], type=TYPE, uid="in").assign_timestamps_and_watermarks(times)
    if not chained:
        stream.disable_chaining()
    build(stream.key_by(0).window(tg.SlidingEventTimeWindows("2s", "1s"))).collect(uid="out")
    env._built.taken_up = True
    return plan_job("job", env._graph, 2)


def counted(windows: Any) -> Any:
    return windows.aggregate(n=tg.count(), total=tg.sum("f2"), uid="counts")


def local_slices(of: JobPlan) -> list[Any]:
    return [planned for planned in of.operators if isinstance(planned.operator.spec, LocalSlicesSpec)]


class Running:
    """The operator by itself, on a clock that moves when told; what it sends, in order."""

    def __init__(self) -> None:
        (planned,) = local_slices(plan(counted))
        self.clock = ManualClock(0.0)
        spec = planned.operator.spec
        self.operator = LocalSlicesOperator(planned, 0, spec.function, spec.key, Time(self.clock, self.clock))
        self.sent: list[Any] = []
        self.operator.emit = lambda batch: self.sent.append(batch.rows())
        self.operator._watermark_targets = [self.sent.append]

    def take(self, keys: np.ndarray[Any, Any], time: int = 500) -> None:
        rows = [(int(key), time, 1) for key in keys]
        stamps = np.full(len(rows), time, np.int64)
        self.operator.run(Batch(RECORDS, columns=RECORDS.to_batch(rows), timestamps=stamps), 0)


def test_records_of_a_key_and_a_slice_become_one_row_and_the_watermark_waits_for_them() -> None:
    running = Running()
    running.take(np.array([1, 1, 2]))
    running.take(np.array([1]), time=1500)
    running.operator.run_watermark(1499)
    assert running.sent == []

    running.clock.advance(GATHERED_S)
    assert running.operator.next_time() == pytest.approx(GATHERED_S)
    running.operator.on_time()

    rows, watermark = running.sent
    assert [tuple(row.values()) for row in rows] == [(1, 1000, 2, 2), (2, 1000, 1, 1), (1, 2000, 1, 1)]
    assert watermark == 1499
    running.operator.run_watermark(1600)
    assert running.sent[-1] == 1600, "nothing is gathered, so nothing waits"


@pytest.mark.parametrize("what", ["a barrier", "the end of input", "idleness"])
def test_everything_goes_out_before(what: str) -> None:
    running = Running()
    running.take(np.array([7]))
    running.operator.run_watermark(499)
    match what:
        case "a barrier":
            running.operator.prepare(CheckpointId(1))
        case "the end of input":
            running.operator.end_input()
        case "idleness":
            running.operator.run_watermark(IDLE)

    assert [tuple(row.values()) for row in running.sent[0]] == [(7, 1000, 1, 1)]
    assert running.sent[1:] == [499, IDLE][: 2 if what == "idleness" else 1]


def test_it_gathers_while_that_leaves_less_to_send_and_looks_again_when_it_does_not() -> None:
    running = Running()
    running.take(np.arange(GATHERED_ROWS))  # each key once: nothing is gained
    assert len(running.sent) == 1
    running.take(np.array([1, 1, 1]))
    assert len(running.sent[1]) == 3, "passed on as they are"

    running.operator._passing = 2  # as after LOOK_AGAIN_ROWS
    running.take(np.array([1, 1, 1]))
    running.take(np.array([1, 1, 1]))
    running.operator.prepare(CheckpointId(1))
    assert [len(rows) for rows in running.sent[2:]] == [3, 1]
    assert LOOK_AGAIN_ROWS > GATHERED_ROWS


def test_it_stands_before_the_keyed_edge_in_the_chain_of_its_neighbour() -> None:
    planned = plan(counted)
    (local,) = local_slices(planned)

    assert [str(operator.uid) for operator in planned.layers[0].chains[0].operators][-1] == str(local.uid)
    assert local.parallelism == planned.layers[0].chains[0].parallelism


@pytest.mark.parametrize(
    ("build", "chained"),
    [
        (lambda windows: _with_late(counted(windows)), True),
        (lambda windows: windows.process_batches(tg.WindowBatchFunction(), returns=TYPE, uid="w"), True),
        (counted, False),
    ],
)
def test_it_is_left_out_where_whole_records_are_needed_or_it_would_cost_an_exchange(build: Any, chained: bool) -> None:
    assert local_slices(plan(build, chained)) == []


def _with_late(results: Any) -> Any:
    results.late().collect(uid="late")
    return results
