"""Faults in loops that functions are written into, and in records that fail."""

from __future__ import annotations

from planted.kinds import Change, Mutant

LOOPS = ("tests/protocol/test_record_loops.py",)
FAILED = ("tests/protocol/test_failed_records.py",)

MUTANTS = (
    Mutant(
        "a-loop-emits-inside-a-try",
        "what a function returns inside a try leaves bit by bit, before it is known that all of it can be made",
        (
            Change(
                "graph/record_loop.py",
                "            if any(isinstance(inner, ast.Return) and not _is_nothing(inner.value) for inner in inside):\n",
                "            if False:\n",
            ),
        ),
        LOOPS,
    ),
    Mutant(
        "a-loop-yields-inside-a-with",
        "what a function yields inside a with leaves bit by bit, though the with may take the error away",
        (Change("graph/record_loop.py", "isinstance(node, (ast.Try, ast.With))", "isinstance(node, ast.Try)"),),
        LOOPS,
    ),
    Mutant(
        "a-loop-does-not-look-what-a-state-is-bound-to",
        "a loop uses the state of that name, where the function has put another in its place",
        (Change("task/operators/record_loops.py", " if own.get(name) is value.handle)", ")"),),
        LOOPS,
    ),
    Mutant(
        "a-failing-call-inside-a-call-fails-alone",
        "a function that calls itself for the parts of a record is guarded in each of these calls",
        (
            Change(
                "task/operators/failing.py",
                "            operator.guards[name] = _guarded(",
                "            operator._function.__dict__[name] = _guarded(",
            ),
        ),
        FAILED,
    ),
    Mutant(
        "what-is-returned-is-worked-out-unguarded",
        "what a call returns is worked out when nobody looks for its errors any more",
        (
            Change(
                "task/operators/failing.py", "            return list(result)  #", "            return iter(result)  #"
            ),
        ),
        FAILED,
    ),
    Mutant(
        "who-may-fail-keeps-no-state",
        "the operator state of a function whose failed records are skipped is in no checkpoint",
        (Change("task/operators/failing.py", "        self.keeper = keeper_for(function)\n", ""),),
        FAILED,
    ),
    Mutant(
        "a-dead-letter-is-what-the-function-has-left",
        "what comes by the second input is not kept as it came",
        (Change("task/operators/failing.py", "else copy_record\n", "else None\n"),),
        FAILED,
    ),
)
