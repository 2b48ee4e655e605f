"""What is late after a restore: event time continues from the slowest subtask, and keys of faster ones have dropped state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

import tidegate as tg
from tidegate.batch import Batch
from tidegate.graph.plan import plan_job
from tidegate.protocol.watermarks import MAX_WATERMARK, MIN_WATERMARK, WatermarkValve
from tidegate.state.backends import BackendSettings, StateBackends
from tidegate.storage.memory_store import MemoryStore
from tidegate.storage.metadata import FileRef
from tidegate.storage.snapshot_file import SnapshotFileWriter
from tidegate.task.chains import HostedChain
from tidegate.task.local_copies import RestoreStorage
from tidegate.task.operators.base import Readers, RunningOperator
from tidegate.task.operators.build import OperatorContext, build_operator
from tidegate.task.operators.timers import Time
from tidegate.task.restore import open_operators, restore_state
from tidegate.testing import harness
from tidegate.types import record_type
from tidegate.wire.control import Start, SubtaskRestore

ROW = tuple[str, int]
SECOND = tg.TumblingEventTimeWindows("1s")


class Listed(tg.ProcessWindowFunction):
    def process(self, key: Any, context: tg.WindowContext, elements: list[Any], /) -> Any:
        yield (key, context.window.start, len(elements))


WINDOWS: dict[str, Callable[[Any], Any]] = {
    "record by record": lambda keyed: keyed.window(SECOND).process(Listed(), returns=tuple[str, int, int]),
    "over columns": lambda keyed: keyed.window(SECOND).aggregate(n=tg.count()),
    "sessions": lambda keyed: keyed.window(tg.EventTimeSessionWindows("500ms")).process(
        Listed(), returns=tuple[str, int, int]
    ),
    "sessions over columns": lambda keyed: keyed.window(tg.EventTimeSessionWindows("500ms")).aggregate(n=tg.count()),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_window_that_has_fired_is_not_made_anew_by_a_record_below_the_mark(kind: str) -> None:
    running = harness(WINDOWS[kind], via="window", key_by=0, input_type=ROW)
    running.process(("a", 1), timestamp=400)
    assert len(running.advance_watermark(1_500)) == 1
    running.restore(dataclasses.replace(running.snapshot(), watermark=300))

    running.process(("a", 2), timestamp=450)
    assert running.advance_watermark(1_200) == []
    running.process(("a", 3), timestamp=1_700)
    assert len(running.advance_watermark(5_000)) == 1


@pytest.mark.parametrize("kind", WINDOWS)
def test_after_the_end_of_input_nothing_is_late_by_a_mark(kind: str) -> None:
    """A savepoint of a drain has the last watermark. Whoever continues from it has records, which are in time."""
    running = harness(WINDOWS[kind], via="window", key_by=0, input_type=ROW)
    running.process(("a", 1), timestamp=400)
    running.advance_watermark(MAX_WATERMARK)
    running.restore(dataclasses.replace(running.snapshot(), watermark=MIN_WATERMARK, ended=False))

    running.process(("a", 2), timestamp=450)
    assert len(running.advance_watermark(5_000)) == 1


@pytest.mark.parametrize("watermark", [300, 1_500])
@pytest.mark.parametrize("kind", WINDOWS)
def test_a_window_that_has_fired_fires_again_within_its_lateness_also_after_a_restore(
    kind: str, watermark: int
) -> None:
    running = harness(lambda keyed: WINDOWS[kind](Lenient(keyed)), via="window", key_by=0, input_type=ROW)
    running.process_many([("a", 1), ("b", 1)], timestamps=[400, 400])
    assert sorted(map(counted, running.advance_watermark(1_500))) == [("a", 1), ("b", 1)]
    running.restore(dataclasses.replace(running.snapshot(), watermark=watermark))

    again = running.process(("a", 2), timestamp=450)
    again += running.advance_watermark(2_000)

    assert list(map(counted, again)) == [("a", 2)]
    assert running.advance_watermark(MAX_WATERMARK) == []


class Lenient:
    """A keyed stream whose windows allow lateness."""

    def __init__(self, keyed: Any) -> None:
        self.keyed = keyed

    def window(self, assigner: tg.WindowAssigner) -> Any:
        return self.keyed.window(assigner).allowed_lateness("1min")


def counted(row: Any) -> tuple[str, int]:
    values = tuple(row.values()) if isinstance(row, dict) else row
    return (values[0], values[-1])


# -- joins --------------------------------------------------------------------------------------------------------------


def joins() -> dict[str, Any]:
    def of(build: Callable[[Any, Any], Any]) -> tg.StreamEnvironment:
        env = tg.StreamEnvironment("marks", parallelism=1)
        times = tg.WatermarkStrategy.monotonous(timestamp="f1")
        sides = [
            env.from_collection([], type=ROW, uid=f"s{at}").assign_timestamps_and_watermarks(times) for at in range(2)
        ]
        build(*sides).print()
        env._built.taken_up = True
        return env

    def interval(left: Any, right: Any) -> Any:
        return left.key_by(0).interval_join(right.key_by(0)).between("-1s", "1s")

    def window(left: Any, right: Any) -> Any:
        return left.join(right).where(0).equal_to(0).window(SECOND).how("full").apply(both, uid="join")

    return {
        "interval": of(lambda left, right: interval(left, right).process(both, uid="join")),
        "interval over columns": of(lambda left, right: interval(left, right).columns(uid="join")),
        "temporal": of(lambda left, right: left.key_by(0).temporal_join(right.key_by(0)).process(both, uid="join")),
        "window": of(window),
    }


def both(left: Any, right: Any) -> Any:
    return (left, right)


class Running:
    """One join, in one subtask."""

    def __init__(self, env: tg.StreamEnvironment) -> None:
        plan = plan_job("marks", env._graph, 1)
        planned = cloudpickle.loads(cloudpickle.dumps(next(each for each in plan.operators if each.uid == "join")))
        clock = lambda: 0.0  # noqa: E731
        context = OperatorContext(
            "marks", "1", Time(clock, clock), StateBackends(BackendSettings("hashmap"), clock), lambda s: None, False, False, 0,
            lambda: 1, lambda *sent: None, None, lambda: None,  # type: ignore[arg-type]
        )  # fmt: skip
        self.operator: RunningOperator = build_operator(planned, 0, record_type(ROW), context)
        self.out: list[Any] = []
        self.operator.connect({"": Readers(edges=[lambda batch: self.out.extend(batch.rows())])}, [])

    def start(self, before: Running | None = None, watermark: int | None = None) -> Running:
        files = []
        if before is not None:
            taken, writer = before.operator.snapshot_sync(1), SnapshotFileWriter()  # type: ignore[arg-type]
            for part in (taken.keyed, taken.operator):
                for section in () if part is None else part.sections():
                    writer.add("join", *section)
            data, sections = writer.finish()
            files = [FileRef(size=data.size, inline=data.to_pybytes(), sections=sections)]
        subtasks = [] if before is None else [SubtaskRestore("join", 0, False, watermark, old_parallelism=1)]
        start = Start(restored_from=None if before is None else 1, subtasks=subtasks, files=files)
        chain = HostedChain(0, [self.operator], [], set(), WatermarkValve.over([]))
        restore_state(RestoreStorage(MemoryStore("marks")), start, [chain], {})
        open_operators(start, [chain])
        return self

    def give(self, side: int, *times: int) -> None:
        rows = [("a", time) for time in times]
        self.operator.run(Batch(record_type(ROW), rows, timestamps=np.array(times, np.int64)), side)


@pytest.mark.parametrize("kind", joins())
def test_a_record_below_the_mark_meets_nobody_since_partners_are_dropped(kind: str) -> None:
    env = joins()[kind]
    before = Running(env).start()
    before.give(1, 1_000, 1_900)
    before.give(0, 1_000)
    before.operator.run_watermark(2_500)
    after = Running(env).start(before, watermark=500)

    after.give(0, 1_500)  # by the watermark in time; what it would meet is gone, or gone in part
    after.operator.run_watermark(2_600)

    assert after.out == []
    assert after.operator.metrics().counters.popitem()[1] == 1
