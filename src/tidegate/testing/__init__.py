"""The public test kit: one function by hand, or a whole job with failures, in one process and without Spark.

    assert harness(CountWords(), key_by=lambda word: word).process("tide") == [("tide", 1)]

from tidegate.testing import Checkpoint, Fail, LedgerSink, ScriptedSource, ledger, run_in_process

env.from_source(ScriptedSource([1, 2, Checkpoint(), 3, Fail(), 4]), uid="in").map(...).sink_to(LedgerSink("out"), uid="out")
run_in_process(env, seed=7)
assert sorted(ledger("out").rows()) == [...]
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Loaded when first used: the runner brings the whole runtime along.
_HOMES = {
    "FunctionHarness": "tidegate.testing.function_harness",
    "HarnessSnapshot": "tidegate.testing.function_harness",
    "harness": "tidegate.testing.function_harness",
    "in_process": "tidegate.testing.in_process_jobs",
    "ManualClock": "tidegate.testing.clock",
    "ALL_POINTS": "tidegate.testing.crash_points",
    "Crash": "tidegate.testing.crash_points",
    "CaseResult": "tidegate.testing.matrix",
    "CrashCase": "tidegate.testing.matrix",
    "CrashReport": "tidegate.testing.matrix",
    "crash_matrix": "tidegate.testing.matrix",
    "SINK_STEPS": "tidegate.testing.crash_steps",
    "FileCrashPoints": "tidegate.testing.crash_points",
    "CollectSink": "tidegate.connectors.collect_sink",
    "Ledger": "tidegate.testing.ledger_sink",
    "LedgerSink": "tidegate.testing.ledger_sink",
    "forget_ledgers": "tidegate.testing.ledger_sink",
    "ledger": "tidegate.testing.ledger_sink",
    "AllDriversDied": "tidegate.testing.runner",
    "Ask": "tidegate.testing.runner",
    "InProcessRun": "tidegate.testing.runner",
    "RunResult": "tidegate.testing.runner",
    "Stuck": "tidegate.testing.runner",
    "run_in_process": "tidegate.testing.runner",
    "Checkpoint": "tidegate.testing.scripted_source",
    "Fail": "tidegate.testing.scripted_source",
    "ScriptedFailure": "tidegate.testing.scripted_source",
    "ScriptedSource": "tidegate.testing.scripted_source",
    "CountingStore": "tidegate.testing.stores",
    "simulate": "tidegate.testing.simulation.simulating",
    "FlakyStore": "tidegate.testing.stores",
}

__all__ = [
    "ALL_POINTS",
    "SINK_STEPS",
    "AllDriversDied",
    "Ask",
    "CaseResult",
    "Checkpoint",
    "CollectSink",
    "CountingStore",
    "Crash",
    "CrashCase",
    "CrashReport",
    "Fail",
    "FileCrashPoints",
    "FlakyStore",
    "FunctionHarness",
    "HarnessSnapshot",
    "InProcessRun",
    "Ledger",
    "LedgerSink",
    "ManualClock",
    "RunResult",
    "ScriptedFailure",
    "ScriptedSource",
    "Stuck",
    "crash_matrix",
    "forget_ledgers",
    "harness",
    "in_process",
    "ledger",
    "run_in_process",
    "simulate",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidegate.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
