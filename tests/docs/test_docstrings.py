"""The examples in docstrings of the public API are run, in this process, each with an environment of its own."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.testing import harness, in_process

#: Public classes each of whose public methods has an example.
COMPLETE = [
    *(tg.StreamEnvironment, tg.DataStream, tg.KeyedStream, tg.ConnectedStreams),
    *(tg.Context, tg.Counter, tg.Histogram, tg.WatermarkStrategy, tg.JobClient, tg.Savepoint),
]
#: Public classes that have an example themselves.
WITH_EXAMPLE = [
    tg.ProcessFunction,
    tg.KeyedProcessFunction,
    tg.KeyedBatchFunction,
    tg.CoProcessFunction,
    tg.KeyedCoProcessFunction,
    tg.BroadcastProcessFunction,
    tg.KeyedBroadcastProcessFunction,
    tg.OutputTag,
    tg.ValueState,
    tg.ListState,
    tg.MapState,
    tg.ReducingState,
    tg.AggregateFunction,
]
#: Of these an example would need what a test of documentation has not: Spark.
NEEDS_SPARK = {"StreamEnvironment.from_dataframe", "JobClient.sample_stacks", "JobClient.workers"}


def documented() -> Iterator[tuple[str, str]]:
    """Every docstring of the public API that has an example."""
    for name in tg.__all__:
        owner = getattr(tg, name)
        if inspect.isclass(owner):
            yield name, owner.__dict__.get("__doc__") or ""
            for method, value in vars(owner).items():
                yield f"{name}.{method}", _docstring(value)


def _docstring(value: Any) -> str:
    function = value.__func__ if isinstance(value, classmethod) else value
    return (inspect.getdoc(function) or "") if inspect.isroutine(function) or isinstance(function, property) else ""


def endless_job(folder: Path) -> tg.JobClient:
    """As the docstring of JobClient says."""
    env = tg.StreamEnvironment("example")
    env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")
    env.from_source(tg.DataGenerator(lambda n: n, type=int, splits=1), uid="numbers").collect(uid="all")
    client = env.execute_async()
    client.wait_until_running()
    return client


def savepoint(folder: Path) -> str:
    """As the docstring of Savepoint says."""

    class Totals(tg.KeyedProcessFunction[tuple[str, int], int]):
        total = tg.ValueState(int, default=0)

        def process_element(self, order: tuple[str, int], ctx: tg.Context) -> Iterator[int]:
            self.total.set(self.total.get() + order[1])
            yield self.total.get()

    env = tg.StreamEnvironment("example")
    env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")
    orders = [("ann", 2), ("bob", 4), ("ann", 3)]
    source = tg.DataGenerator(lambda n: orders[n] if n < 3 else ("ann", 0), type=tuple[str, int], splits=1)
    stream = env.from_source(source, uid="orders").key_by(lambda order: order[0], key_type=str)
    stream.process(Totals(), uid="totals", returns=int).collect(uid="out")
    client = env.execute_async()
    client.wait_until_running()
    while len(client.results("out")) < len(orders):
        client.checkpoint_now()
    path: str = client.stop(f"{folder}/savepoints")
    return path


EXAMPLES = {name: text for name, text in documented() if ">>>" in text}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_a_docstring_gives_what_it_says(name: str, tmp_path: Path) -> None:
    text = EXAMPLES[name].replace("/tmp/", f"{tmp_path}/")
    names: dict[str, Any] = {
        "__name__": "__main__",
        "tg": tg,
        "harness": harness,
        "env": tg.StreamEnvironment("example"),
    }
    report: list[str] = []

    with in_process():
        if name.startswith("JobClient."):
            names["client"] = endless_job(tmp_path)
        if name.startswith("Savepoint."):
            names["path"] = savepoint(tmp_path)
        test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
        doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=report.append)

    assert "".join(report) == ""


def public_methods(owner: type) -> list[str]:
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, (classmethod, property)))
    ]


@pytest.mark.parametrize("owner", COMPLETE, ids=lambda owner: owner.__name__)
def test_every_public_method_has_an_example(owner: type) -> None:
    names = {f"{owner.__name__}.{method}" for method in public_methods(owner)}

    assert sorted(names - set(EXAMPLES) - NEEDS_SPARK) == []


@pytest.mark.parametrize("owner", WITH_EXAMPLE, ids=lambda owner: owner.__name__)
def test_every_kind_of_function_and_state_has_an_example(owner: type) -> None:
    assert owner.__name__ in EXAMPLES
