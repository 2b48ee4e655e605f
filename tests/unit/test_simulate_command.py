"""`tidegate simulate job.py`: what it runs, what it says, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli.main import main
from tidegate.testing.simulation.simulating import Simulation

GOOD = """
import sys
import tidegate as tg

print("arguments", sys.argv[1:])
env = tg.StreamEnvironment("words", parallelism=2)
env.checkpointing(every="10s", storage="file:///nowhere")
words = env.from_collection("to be or not to be that is".split(), uid="words")
words.key_by(lambda word: word, key_type=str).count(uid="count").collect(uid="out")
env.execute()
print("after the job")
"""
GLOBAL = """
import tidegate as tg

seen = {}


def numbered(word):
    seen[word] = seen.get(word, 0) + 1
    return (word, seen[word])


env = tg.StreamEnvironment("words")
env.from_collection(["a"] * 15, uid="words").map(numbered, uid="numbered", returns=tuple[str, int]).collect(uid="out")
env.execute()
"""
CHANCE = """
import random
import tidegate as tg

env = tg.StreamEnvironment("chance")
some = env.from_collection(list(range(20)), uid="numbers").filter(lambda n: random.random() < 0.5)
some.print(uid="out")
env.execute()
"""


@pytest.fixture
def program(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        file = tmp_path / "job.py"
        file.write_text(text)
        return str(file)

    return write


def test_a_good_job_runs_up_to_its_execute_and_nothing_is_found(program: Any, capsys: Any) -> None:
    assert main(["simulate", program(GOOD), "--seeds", "4", "--", "--fast"]) == 0

    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0] == "arguments ['--fast']"
    assert lines[1] == "words: 5 runs without a misfortune, all the same"
    assert lines[2].split() == ["out", "8", "records,", "as", "it", "is"]
    assert "4 seeds from 0: nothing was lost, doubled or different" in lines
    assert "after the job" not in told.out
    assert told.err == ""


def test_a_failure_is_told_with_what_it_takes_and_how_to_see_it_again(program: Any, capsys: Any) -> None:
    job = program(GLOBAL)
    assert main(["simulate", job, "--seeds", "20", "--most-failures", "1"]) == 1

    told = capsys.readouterr()
    assert "takes no checkpoints" in told.err
    assert "  doubled  ('a', 1)" in told.out
    assert "  It takes 1 misfortune of" in told.out
    assert "  What happened, in this order:\n    1. " in told.out
    (again,) = (line for line in told.out.splitlines() if line.startswith("  Again: tidegate "))
    words = again.removeprefix("  Again: tidegate ").split()
    assert words[:2] == ["simulate", job]

    assert main(words) == 1
    assert again in capsys.readouterr().out


def test_without_shrinking_all_that_was_drawn_is_told(program: Any, capsys: Any) -> None:
    assert main(["simulate", program(GLOBAL), "--seeds", "20", "--most-failures", "1", "--no-shrink"]) == 1

    assert "that were drawn (--shrink finds the fewest):" in capsys.readouterr().out


def test_as_json_it_is_one_value(program: Any, capsys: Any) -> None:
    assert main(["simulate", program(GLOBAL), "--seeds", "20", "--most-failures", "1", "--json"]) == 1
    failed = json.loads(capsys.readouterr().out)
    assert failed["sinks"] == [{"uid": "out", "records": 15, "stable": True, "exact": True}]
    (failure,) = failed["failures"]
    assert failure["seed"] == failed["seeds"] - 1
    assert failure["differences"][0]["lost"]
    assert set(failure["needed"]) <= set(failure["drawn"])

    assert main(["simulate", program(GOOD), "--seeds", "1", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["failures"] == []
    assert "arguments" in told.err


def test_where_nothing_can_be_compared_that_is_said_and_is_not_good(program: Any, capsys: Any) -> None:
    assert main(["simulate", program(CHANCE), "--seeds", "1"]) == 2

    told = capsys.readouterr().out
    assert "5 runs without a misfortune, which differ" in told
    assert "out: without any misfortune something else comes out when events come in another order:" in told
    assert "not compared" in told
    assert "1 seed from 0: each came to its end; nothing could be compared" in told


def test_an_interrupt_says_what_was_seen_so_far(program: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_seed = Simulation.run_seed

    def interrupted(self: Simulation, seed: int, shrink: bool = True) -> Any:
        if seed == 9:
            raise KeyboardInterrupt
        return run_seed(self, seed, shrink)

    monkeypatch.setattr(Simulation, "run_seed", interrupted)
    assert main(["simulate", program(GOOD), "--first-seed", "7"]) == 130
    assert "interrupted after 2 seeds from 7: nothing was lost, doubled or different" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("import tidegate", [], "ended without starting a job"),
        ("1 / 0", [], "ZeroDivisionError"),
        (
            GOOD.replace(".collect", ".map(len).map(lambda n: 1 // (n - n)).collect"),
            [],
            "does not run without any misfortune",
        ),
        (
            GOOD.replace(".collect(", ".sink_to(tg.HttpSink('http://127.0.0.1:9/'), "),
            [],
            "simulate has no model of HttpSink",
        ),
        (GOOD, ["--input", "word=x.txt"], "the job has no such operator; it has words"),
        (GOOD, ["--instead", "words"], "the job has no such operator; it has out"),
    ],
    ids=["no job", "raises", "fails", "no model", "no such source", "no such sink"],
)
def test_what_cannot_be_simulated_is_said(
    program: Any, capsys: Any, text: str, arguments: list[str], said: str
) -> None:
    assert main(["simulate", program(text), *arguments]) == 2

    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "0"], "too few"),
        (["--input", "words"], "is not UID=FILE"),
        (["--records", "-1"], "is not a number"),
    ],
)
def test_wrong_arguments_are_said(program: Any, capsys: Any, arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", program(GOOD), *arguments])

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_program_that_is_not_there_is_said(capsys: Any) -> None:
    assert main(["simulate", "nowhere.py"]) == 2
    assert "there is no program nowhere.py" in capsys.readouterr().err
