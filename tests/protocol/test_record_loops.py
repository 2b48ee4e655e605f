"""A function that is written into a loop does what it does when it is called record by record: the same records with the
same timestamps in the same order, the same side outputs and state, the same error at the same line; also while snapshots
are read."""

from __future__ import annotations

import importlib.util
import random
import time
import traceback
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from random_bodies import Body, text_of

import tidegate as tg
from tidegate.batch import Batch
from tidegate.graph.plan import plan_job
from tidegate.graph.record_loop import unfit
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.task.operators.base import OperatorFailed
from tidegate.task.operators.process import KeyedProcessOperator
from tidegate.task.operators.timers import Time
from tidegate.types import record_type

SHAPES = ("dataclass", "tuple", "schema")
FUNCTIONS = 25  #: of each shape
FUNCTIONS_WHEN_SLOW = 3000
_numbers = count()


class Subtask:
    """One subtask of the function's operator, and all that can be seen of it."""

    def __init__(self, module: Any, shape: str, in_a_loop: bool) -> None:
        item = module.Sale.__annotations__["item"]
        arrow = pa.string() if item is str else pa.int64()
        types = {
            "dataclass": module.Sale,
            "tuple": tuple[item, int, str],
            "schema": pa.schema([("item", arrow), ("amount", pa.int64()), ("note", pa.string())]),
        }
        self.records = record_type(types[shape])
        env = tg.StreamEnvironment("loops")
        stream = env.from_collection([], uid="sales", type=types[shape])
        made = stream.key_by(0 if shape == "tuple" else "item").process(
            module.make(3), uid="function", returns=tuple[str, int]
        )
        made.side_output(module.TAG)
        made.print(uid="printed")
        (planned,) = [each for each in plan_job("loops", env._graph, 1).operators if each.uid == "function"]
        env._built.taken_up = True
        self.spec: Any = planned.operator.spec
        self.out = made.type
        self.backend = HeapStateBackend(key_type(item), range(128), 128)
        clocks = Time(time.monotonic, time.time)
        text = self.spec.text if in_a_loop else None
        self.operator = KeyedProcessOperator(
            planned, 0, "loops", self.spec.function, self.backend, (self.spec.key,), clocks, text
        )
        self.operator.open(None)
        self.seen: list[Any] = []
        self.operator.emit = lambda batch: self._see("", batch)
        self.operator.emit_to = self._see  # type: ignore[method-assign]

    def _see(self, tag: str, batch: Batch) -> None:
        stamps = None if batch.timestamps is None else batch.timestamps.tolist()
        self.seen.append((tag, [repr(row) for row in batch.rows()], stamps))

    def run(self, batches: list[tuple[pa.RecordBatch, Any]]) -> list[Any]:
        """What came out, the state as it was at each snapshot, and how it ended."""
        open_snapshots = []
        for columns, stamps in batches:
            open_snapshots.append(self.backend.snapshot())
            try:
                self.operator.run(Batch(self.records, columns=columns, timestamps=stamps), 0)
            except OperatorFailed as failed:
                places = [
                    (frame.f_code.co_qualname, line)
                    for frame, line in traceback.walk_tb(failed.cause.__traceback__)
                    if "body_" in frame.f_code.co_filename
                ]
                self.seen.append((type(failed.cause).__name__, str(failed.cause), places))
                break
        else:
            open_snapshots.append(self.backend.snapshot())
        for snapshot in open_snapshots:
            self.seen.append(
                sorted(
                    (section.state, section.key_group, repr(section.rows.to_pylist()))
                    for section in snapshot.sections()
                )
            )
            snapshot.release()
        return self.seen


def written(tmp_path: Path, text: str) -> Any:
    path = tmp_path / f"body_{next(_numbers)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def input_of(subtask: Subtask, seed: int) -> list[tuple[pa.RecordBatch, Any]]:
    rng = random.Random(seed)
    batches = []
    stamped = rng.random() < 0.5
    is_text = pa.types.is_string(subtask.records.schema.field(0).type)
    for _ in range(4):
        size = rng.randint(1, 30)
        items = [rng.choice(["tea", "süd", ""]) if is_text else rng.randint(-2, 2) for _ in range(size)]
        columns = [
            items,
            [rng.randint(-50, 50) for _ in range(size)],
            [rng.choice(["a", "bcde", "ü"]) for _ in range(size)],
        ]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(columns, subtask.records.schema, strict=True)],
            schema=subtask.records.schema,
        )
        batches.append((batch, np.array([rng.randint(0, 99) for _ in range(size)], np.int64) if stamped else None))
    return batches


def compare(shape: str, seed: int, tmp_path: Path) -> str:
    """Why it was not written into a loop."""
    body = Body(seed, shape)
    module = written(tmp_path, body.text)
    called, loop = Subtask(module, shape, in_a_loop=False), Subtask(module, shape, in_a_loop=True)
    batches = input_of(called, seed)
    assert loop.run(batches) == called.run(batches), f"{shape}, seed {seed}\n{body.text}"
    return unfit(loop.spec.function, loop.spec.text, loop.records, loop.out)


#: What is given out here would leave at once in a loop, and leaves later, or not at all, when the function is called.
EMITTED_LATER = {
    "it returns what it emits inside a try": [
        ["try:", "    return [(e[2], 1), (e[2], 1 // e[1])]", "except ZeroDivisionError:", "    return [(e[2], 0)]"],
        ["try:", "    return [(e[2], 1 // e[1])]", "except ZeroDivisionError:", "    return [(e[2], 0)]"],
        ["try:", "    return [(e[2], 1)]", "finally:", "    return [(e[2], 2)]"],
        ["try:", "    return map(shorten, [5])", "except TypeError:", "    return [(e[2], 0)]"],
        ["try:", "    return 5", "except Exception:", "    return [(e[2], 0)]"],
    ],
    "it returns what it emits inside a with": [
        ["with suppress(ZeroDivisionError):", "    return [(e[2], 1 // e[1])]", "return [(e[2], 0)]"],
        ["with suppress(TypeError):", "    return map(shorten, [5])", "return [(e[2], 0)]"],
    ],
    "it yields inside a with": [["with suppress(ZeroDivisionError):", "    yield (e[2], 1 // e[1])"]],
}


def differences(body: list[str], tmp_path: Path) -> tuple[str, list[Any], list[Any]]:
    """Why a function of tuples is not written into a loop, and what it does called and in a loop."""
    module = written(tmp_path, text_of(body))
    called, loop = Subtask(module, "tuple", in_a_loop=False), Subtask(module, "tuple", in_a_loop=True)
    rows = [[("tea", "süd")[n % 2] for n in range(40)], [n % 4 for n in range(40)], ["a"] * 40]
    batch = pa.RecordBatch.from_arrays(list(map(pa.array, rows)), schema=called.records.schema)
    why = unfit(loop.spec.function, loop.spec.text, loop.records, loop.out)
    return why, called.run([(batch, None)] * 2), loop.run([(batch, None)] * 2)


@pytest.mark.parametrize(("why", "body"), [(why, body) for why, bodies in EMITTED_LATER.items() for body in bodies])
def test_what_leaves_later_or_not_at_all_is_not_written_into_a_loop(why: str, body: list[str], tmp_path: Path) -> None:
    found, called, loop = differences(body, tmp_path)

    assert found == why
    assert loop == called


def test_a_stop_iteration_is_an_error_of_its_own_only_in_a_generator(tmp_path: Path) -> None:
    for body in (["return [(e[2], next(iter([])))]"], ["yield (e[2], next(iter([])))"]):
        why, called, loop = differences(body, tmp_path)
        assert why == ""
        assert loop == called


def test_what_was_put_in_the_place_of_a_state_is_what_is_used(tmp_path: Path) -> None:
    body = ["self.total.set(self.total.get() + 1)", "yield (e[2], self.total.get())"]
    swap = "self.total, self.extra = self.extra, self.total"
    why, called, loop = differences([*body, swap], tmp_path)
    assert why == "it assigns self.total, which is a state"
    assert loop == called

    helper = "        def helper"
    text = text_of(body).replace(helper, f"        def open(self, ctx):\n            {swap}\n\n{helper}", 1)
    module = written(tmp_path, text)
    called_one, loop_one = Subtask(module, "tuple", in_a_loop=False), Subtask(module, "tuple", in_a_loop=True)
    batches = input_of(called_one, seed=4)
    assert loop_one.run(batches) == called_one.run(batches)


def test_a_function_that_calls_what_its_file_has_imported_is_found_in_its_file(tmp_path: Path) -> None:
    why, called, loop = differences(["yield (e[2].strip(), math.floor(7.5) + len(shorten(e[2])))"], tmp_path)

    assert why == ""
    assert loop == called


@pytest.mark.parametrize("shape", SHAPES)
def test_random_functions_do_in_a_loop_what_they_do_record_by_record(shape: str, tmp_path: Path) -> None:
    reasons = [compare(shape, seed, tmp_path) for seed in range(FUNCTIONS)]
    assert reasons.count("") > FUNCTIONS / 2  # else this shows nothing


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shape", SHAPES)
def test_thousands_of_random_functions_do_in_a_loop_what_they_do_record_by_record(shape: str, tmp_path: Path) -> None:
    for seed in range(100_000, 100_000 + FUNCTIONS_WHEN_SLOW):
        compare(shape, seed, tmp_path)
