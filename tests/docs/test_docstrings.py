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
COMPLETE = [tg.StreamEnvironment, tg.DataStream, tg.KeyedStream, tg.ConnectedStreams]
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
NEEDS_SPARK = {"StreamEnvironment.from_dataframe"}


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


EXAMPLES = {name: text for name, text in documented() if ">>>" in text}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_a_docstring_gives_what_it_says(name: str, tmp_path: Path) -> None:
    text = EXAMPLES[name].replace("/tmp/", f"{tmp_path}/")
    names = {"__name__": "__main__", "tg": tg, "harness": harness, "env": tg.StreamEnvironment("example")}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    report: list[str] = []

    with in_process():
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)

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
