"""Classes of the main program and of functions: in records, in state, in what goes to the driver, without a declared type."""

from __future__ import annotations

import enum
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tidegate as tg
from tidegate.errors import TypeDeclarationError
from tidegate.testing import run_in_process
from tidegate.types.pickled import pickled

PROGRAM = """
import enum, sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

class Colour(enum.Enum):
    RED = "red"

class Spot(NamedTuple):
    x: int
    colour: Colour

@dataclass
class Click:
    spot: Spot
    @dataclass
    class Detail:
        n: int

def work():
    return [Click(Spot(1, Colour.RED)), Click.Detail(2)]

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ship", file]:
            from tidegate.types.main_program import with_program_classes
            Path(file).write_bytes(with_program_classes(work))
        case ["read", file]:
            import pickle
            click, detail = pickle.loads(Path(file).read_bytes())
            print(type(click) is Click, type(click.spot) is Spot, click.spot.colour is Colour.RED, type(detail) is Click.Detail)
"""

WORKER = """
import pickle, sys
from pathlib import Path
from tidegate.types.main_program import load_with_classes, with_program_classes
from tidegate.types.pickled import pickled

def main():  # a name of the worker's own program
    records = load_with_classes(Path(sys.argv[1]).read_bytes())()
    data = pickled(records)
    assert pickle.loads(data) == records
    assert len(data) < 300, f"{len(data)} bytes: classes are named, not described"
    Path(sys.argv[2]).write_bytes(data)
    load_with_classes(with_program_classes("another job"))  # in a worker that is used again
    assert len(pickled(records)) > 1000, "classes of the job before are not found any more"

main()
"""


def ran(*command: object) -> str:
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_later_run_of_the_program_reads_its_own_classes(tmp_path: Path) -> None:
    program, worker = tmp_path / "program.py", tmp_path / "worker.py"
    program.write_text(PROGRAM)
    worker.write_text(WORKER)

    ran(program, "ship", tmp_path / "shipped")
    ran(worker, tmp_path / "shipped", tmp_path / "records")

    assert ran(program, "read", tmp_path / "records").split() == ["True"] * 4


class KeepsLast(tg.KeyedProcessFunction):
    last = tg.ValueState(tg.Pickled)
    odd = tg.OutputTag("odd")

    def process_element(self, value: Any, ctx: tg.Context) -> Iterator[Any]:
        before = self.last.get()
        assert before is None or type(before) is type(value)
        self.last.set(value)
        if value.number % 2:
            ctx.output(self.odd, value)
        yield value


def test_classes_that_a_function_has_made_go_through_a_job_without_a_declared_type() -> None:
    class Colour(enum.Enum):
        RED = "red"
        BLUE = "blue"

    @dataclass(frozen=True)
    class Click:
        number: int
        colour: Colour

    class Spot(NamedTuple):
        number: int
        colour: Colour

    made: list[Any] = [Click, Spot]
    env = tg.StreamEnvironment("classes", parallelism=2)
    env.checkpointing(every="20ms", storage="memory://classes-of-a-function")
    numbers = env.from_sequence(1, 40, uid="in")
    records = numbers.map(lambda n: made[n % 2](n, Colour.RED if n % 3 else Colour.BLUE))
    kept = records.key_by(lambda record: (type(record).__name__, record.colour.name)).process(KeepsLast(), uid="keep")
    kept.rebalance().filter(lambda record: record.colour is Colour.RED).collect(uid="red")
    kept.side_output(KeepsLast.odd).collect(uid="odd")

    result = run_in_process(env)

    assert result.error is None
    expected = {n: made[n % 2](n, Colour.RED) for n in range(1, 41) if n % 3}
    assert {record.number: record for record in result.collected.rows("red")} == expected
    assert {record.number for record in result.collected.rows("odd")} == set(range(1, 41, 2))


def test_what_cannot_be_pickled_is_named_with_the_reason() -> None:
    with pytest.raises(TypeDeclarationError, match="cannot be pickled"):
        pickled([sys.stdout])


@dataclass
class Visit:
    page: str
    seconds: int


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda n: Visit("/", n), "map(..., returns=Visit)"),
        (lambda n: (n, "a"), "map(..., returns=tuple[int, str])"),
        (lambda n: str(n), "map(..., returns=str)"),
        (lambda n: {"n": n}, None),
        (lambda n: (n, None), None),
    ],
)
def test_an_untyped_stream_says_the_line_to_write(
    make: Any, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    env = tg.StreamEnvironment("untyped", parallelism=2)
    env.checkpointing(storage=f"memory://untyped-{make.__code__.co_firstlineno}")
    env.from_sequence(1, 40, uid="in").map(make).rebalance().filter(lambda record: True).collect(uid="out")

    with caplog.at_level(logging.WARNING, logger="tidegate.task"):
        run_in_process(env)

    said = [record.getMessage() for record in caplog.records if record.name == "tidegate.task"]
    if line is None:
        assert said == []
    else:
        (once,) = [text for text in said if text.startswith("map at ")]
        assert once.endswith(f"Write there: {line}")
        assert "test_main_program.py:" in once
