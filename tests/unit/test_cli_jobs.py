"""Commands for running jobs, against a real server: what they print, what they ask for, their exit codes."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_kit import CheckpointFailed, Rest, ScriptedHands, completed, lived, served, serving
from rich.console import Console, RenderableType

import tidegate as tg
from tidegate.cli import tables
from tidegate.cli.completion import SCRIPTS, candidates
from tidegate.cli.main import main, make_parser
from tidegate.config import JobConfig
from tidegate.coordinator.observing import JobStatus, SlotSampled, StatusChanged
from tidegate.ids import SlotId
from tidegate.rest.keeping import write_history
from tidegate.storage.store import open_store
from tidegate.testing import run_in_process
from tidegate.wire.control import CodeLine, Sampled, SampledStack

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def own_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("TIDEGATE_REGISTRY", str(tmp_path_factory.mktemp("registry")))
    patch.setenv("COLUMNS", "200")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def rest(own_registry: None) -> Iterator[Rest]:
    with serving() as rest:
        lived(rest.hands.view)
        yield rest


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys: Captured, *arguments: str) -> object:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


# -- looking ----------------------------------------------------------------------------------------------------------


def test_list_shows_the_jobs_of_the_registry(rest: Rest, capsys: Captured) -> None:
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert "sums" in out
    assert "RUNNING" in out
    assert rest.server.url in out
    (job,) = run_json(capsys, "list")  # type: ignore[misc]
    assert (job["jid"], job["name"], job["address"]) == (rest.job.id, "sums", rest.server.url)
    assert run_json(capsys, "list", "-a", f"localhost:{rest.server.port}") == [
        job | {"duration": pytest.approx(0, abs=1e9)}
    ]


def test_status_shows_operators_checkpoints_and_counters(rest: Rest, capsys: Captured) -> None:
    code, out, _ = run(capsys, "status", "sums")
    assert code == 0
    for part in ("attempt g1-a2", "1 restart", "map double", "3 completed", "1 failed", "latest 4: 450 ms", "odd 6"):
        assert part in out
    value = run_json(capsys, "status", rest.job.id[:6])
    assert value["counters"] == {"odd": 6}  # type: ignore[index]
    assert value["failures"][0]["user-line"] == "job.py:7"  # type: ignore[index]


def squeezed(text: str) -> list[str]:
    """The words of each line."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_one_checkpoint_tells_its_largest_states_and_the_hottest_keys(rest: Rest, capsys: Captured) -> None:
    _, out, _ = run(capsys, "checkpoints", "--id", "4")
    lines = squeezed(out)
    assert lines[lines.index("largest states subtask size") + 1 :][:2] == ["sums 0 1000 b", "sums 1 1000 b"]
    assert lines[lines.index("hottest keys operator subtask part") + 1] == "key-1 sums 1 25.0%"
    _, out, _ = run(capsys, "status")
    lines = squeezed(out)
    hottest = lines[lines.index("hottest keys operator subtask part") + 1 :]
    assert hottest[:2] == ["key-1 sums 1 25.0%", "key-0 sums 0 12.5%"]


def test_at_80_columns_no_word_is_broken_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path))
    path = "file:///data/" + "x" * 70
    with serving() as rest:
        lived(rest.hands.view)
        rest.hands.view.publish(completed(5, purpose="savepoint", path=path))
        answer = rest.get("/jobs/{job}/checkpoints")
        status = tables.status(rest.get("/jobs/{job}"), rest.get("/jobs/{job}/operators")["operators"], answer, 80)
    history = tables.checkpoint_table(answer["history"], 80)
    status_lines, history_lines = printed(status, 80), printed(history, 80)
    assert max(map(len, status_lines + history_lines)) <= 80
    assert {"operator", "back-pr.", "double", "sequence", "key-1"} <= set(" ".join(status_lines).split())
    assert {"COMPLETED", "savepoint", "checkpoint", "triggered"} <= set(" ".join(history_lines).split())
    assert "the attempt ended" in " ".join(history_lines)
    assert path in "".join(line.strip() for line in history_lines)


def printed(renderable: RenderableType, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(renderable)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def test_checkpoints_and_one_of_them(rest: Rest, capsys: Captured) -> None:
    code, out, _ = run(capsys, "checkpoints")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["4", "COMPLETED"],
        ["3", "FAILED"],
        ["2", "COMPLETED"],
        ["1", "COMPLETED"],
    ]
    assert "the attempt ended" in out
    code, out, _ = run(capsys, "checkpoints", "--id", "2")
    assert code == 0
    assert "slowest: subtask 1 of sum 1 -> Sink: print, 400 ms" in out
    assert run_json(capsys, "checkpoints", "--id", "2")["explain"]["storing"] == 250  # type: ignore[index]
    assert len(run_json(capsys, "checkpoints", "--last", "2")["history"]) == 2  # type: ignore[index, arg-type]
    code, _, err = run(capsys, "checkpoints", "--id", "99")
    assert code == 1
    assert "checkpoint 99" in err


def test_logs(rest: Rest, capsys: Captured) -> None:
    code, out, _ = run(capsys, "logs", "--level", "error")
    assert code == 0
    assert "ERROR [g1-a1 numbers~map double#1] tidegate.job: ValueError: bad" in out
    code, out, _ = run(capsys, "logs", "--json", "--last", "2")
    messages = [json.loads(line)["message"] for line in out.splitlines()]
    assert messages[0] == "RUNNING"
    assert messages[1].startswith("restored from checkpoint 2")


def test_profile_names_the_lines_that_take_the_time_and_writes_folded_stacks(
    rest: Rest, capsys: Captured, tmp_path: Path
) -> None:
    file = tmp_path / "sums.py"
    file.write_text("\n" * 6 + "    total = slow(value)\n")
    lines = [
        CodeLine("Slot.turn", "/lib/tidegate/task/slot.py", 12, "tidegate"),
        CodeLine("Sums.process_element", str(file), 7, "user"),
        CodeLine("dumps", "/lib/python3/json.py", 3, "library"),
    ]
    stacks = [
        SampledStack("sums", [0, 1, 2], 30, 10),
        SampledStack("sums", [0, 1], 30, 30),
        SampledStack("", [0], 40, 0),
    ]
    rest.hands.view.publish(SlotSampled(SlotId(1, 0), Sampled(lines, stacks)))
    folded = tmp_path / "stacks.txt"

    code, out, err = run(capsys, "profile", "sums", "--seconds", "1", "--folded", str(folded))
    assert (code, err) == (0, "")
    assert "sum 1 -> Sink: print  100 samples: 60% your code, 40% waiting" in out
    (row,) = [line for line in out.splitlines() if "sums.py:7" in line]
    assert row.split() == ["60.0%", "40.0%", f"{file}:7", "Sums.process_element", "total", "=", "slow(value)"]
    assert "Source: sequence -> map double: nothing was seen" in out
    name = "[tidegate] Slot.turn (task/slot.py:12)"
    users = f"Sums.process_element ({tmp_path.name}/sums.py:7)"
    assert sorted(folded.read_text().splitlines()) == [
        f"sum 1 -> Sink: print;{name} 40",
        f"sum 1 -> Sink: print;{name};{users} 30",
        f"sum 1 -> Sink: print;{name};{users};[library] dumps (python3/json.py:3) 30",
    ]
    rest.hands.view.publish(SlotSampled(SlotId(1, 0), Sampled(lines, stacks)))  # only the last seconds count
    (only,) = run_json(capsys, "profile", "--operator", "sums", "--seconds", "1")["vertices"]  # type: ignore[index]
    assert (only["samples"], only["lines"][0]["share"], only["elsewhere"]) == (60, 1.0, {"waiting": 0})

    assert run(capsys, "profile", "sums", "--operator", "nobody", "--seconds", "1")[0] == 1


# -- acting -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def acting() -> Iterator[Rest]:
    config = JobConfig(interval_s=10.0, storage="file:///data/acting", rest_port=0)
    with serving(config) as rest:
        rest.job.name = "acting"
        lived(rest.hands.view)
        rest.hands.may_answer.set()
        yield rest
        rest.hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 0.0))


def at(rest: Rest) -> tuple[str, str]:
    return "--address", f"localhost:{rest.server.port}"


def test_a_checkpoint_is_waited_for(acting: Rest, capsys: Captured) -> None:
    acting.hands.checkpoints = [7, CheckpointFailed("slot 0.1: disk full"), 8]
    assert run(capsys, "checkpoint", *at(acting)) == (0, "checkpoint 7 is complete\n", "")
    assert run(capsys, "checkpoint", *at(acting)) == (1, "", "error: slot 0.1: disk full\n")
    assert run_json(capsys, "checkpoint", *at(acting)) == {"checkpointId": 8}


def test_cancel_waits_for_the_end(acting: Rest, capsys: Captured) -> None:
    def cancel() -> None:
        acting.hands.canceled += 1
        acting.hands.view.publish(StatusChanged(JobStatus.CANCELED, "", 0.0))

    acting.hands.cancel = cancel  # type: ignore[method-assign]
    assert run(capsys, "cancel", *at(acting)) == (0, "acting is canceled\n", "")
    assert acting.hands.canceled == 1
    code, _, err = run(capsys, "checkpoint", *at(acting))
    assert (code, "already ended: CANCELED" in err) == (1, True)


def test_a_folder_outside_the_jobs_own_is_refused(acting: Rest, capsys: Captured) -> None:
    code, _, err = run(capsys, "savepoint", *at(acting), "--to", "file:///etc")
    assert code == 1
    assert "only inside the job's own folders" in err


def test_savepoint_stop_and_rescale_wait_for_their_result(acting: Rest, capsys: Captured) -> None:
    place = "file:///data/savepoint-sums-9"
    assert run(capsys, "savepoint", *at(acting), "--format", "native") == (0, f"savepoint: {place}\n", "")
    assert run(capsys, "rescale", *at(acting), "-p", "3") == (
        0,
        "acting runs with parallelism 3; the gap was 1.2 s\n",
        "",
    )
    assert run(capsys, "stop", *at(acting), "--drain") == (0, f"acting has stopped; savepoint: {place}\n", "")
    assert acting.hands.asked == [
        ("savepoint", "file:///data/acting/acting/savepoints", "native"),
        ("rescale", 3),
        ("drain", "file:///data/acting/acting/savepoints", "canonical"),
    ]
    assert run_json(capsys, "savepoint", *at(acting)) == {"location": place}


# -- finding ----------------------------------------------------------------------------------------------------------


def test_a_job_that_is_not_there_is_exit_code_3(rest: Rest, capsys: Captured) -> None:
    code, _, err = run(capsys, "status", "nobody")
    assert code == 3
    assert "no job 'nobody' is running on this machine; running: sums" in err
    code, _, err = run(capsys, "status", "--address", "localhost:1")
    assert code == 3
    assert "no driver answers at http://localhost:1" in err


def test_of_several_jobs_one_must_be_named(rest: Rest, capsys: Captured) -> None:
    hands = ScriptedHands()
    rest.server.serve(served(hands, "second", JobConfig(storage="file:///data")))
    code, _, err = run(capsys, "status")
    assert (code, "2 jobs are running on this machine: say which (second, sums)" in err) == (3, True)
    assert run(capsys, "status", "second")[0] == 0
    hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 0.0))
    assert run(capsys, "status")[0] == 0


def test_a_token_is_needed_and_comes_from_the_registry_the_option_or_the_environment(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(JobConfig(rest_port=0, rest_token="s3cret", storage="file:///data/token")) as rest:
        lived(rest.hands.view)
        address = f"127.0.0.1:{rest.server.port}"
        assert run(capsys, "status", rest.job.id)[0] == 0, "its own registry entry has the token"
        code, _, err = run(capsys, "status", "-a", address)
        assert (code, "a token is needed" in err) == (1, True)
        assert run(capsys, "status", "-a", address, "--token", "wrong")[0] == 1
        assert run(capsys, "status", "-a", address, "--token", "s3cret")[0] == 0
        monkeypatch.setenv("TIDEGATE_REST_TOKEN", "s3cret")
        code, out, err = run(capsys, "status", "-a", address)
        assert code == 0
        assert "s3cret" not in out + err
        rest.hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 0.0))


@pytest.mark.parametrize(
    "arguments",
    [["rescale", "sums"], ["rescale", "-p", "0"], ["status", "--nonsense"], ["logs", "--level", "LOUD"], ["nothing"]],
)
def test_wrong_arguments_are_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_every_command_has_help_with_its_exit_codes(capsys: Captured) -> None:
    for command in (
        "list",
        "status",
        "checkpoints",
        "checkpoint",
        "savepoint",
        "stop",
        "cancel",
        "rescale",
        "logs",
        "history",
    ):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        out = capsys.readouterr().out
        assert "exit codes:" in out, command
        assert "--json" in out, command


# -- history ----------------------------------------------------------------------------------------------------------


def test_history_is_read_from_the_folder_alone(tmp_path: Path, capsys: Captured) -> None:
    storage = f"file://{tmp_path}/storage"
    env = tg.StreamEnvironment("counted", parallelism=2).checkpointing(every="10ms", storage=storage)
    env.from_sequence(1, 2000, uid="numbers").collect(uid="all")
    result = run_in_process(env)
    hands = ScriptedHands(view=result.view)
    job = served(hands, "counted", env.config())

    # What the log alone tells.
    (entry,) = run_json(capsys, "history", storage)  # type: ignore[misc]
    assert (entry["name"], entry["state"], entry["runs-total"]) == ("counted", "FINISHED", 1)
    (first,) = run_json(capsys, "history", storage, "counted")["runs"]  # type: ignore[index]
    completed = [c.checkpoint for c in result.view.checkpoints.values() if c.path]
    assert [c["id"] for c in first["checkpoints"]] == completed
    assert first["statistics"] is None

    # With what the driver keeps at its end.
    write_history(job, open_store(storage))
    (first,) = run_json(capsys, "history", storage, "counted")["runs"]  # type: ignore[index]
    assert first["statistics"]["checkpoints"]["counts"]["completed"] == len(completed)
    code, out, _ = run(capsys, "history", f"{tmp_path}/storage", "counted")
    assert code == 0
    assert "counted  FINISHED" in out
    assert "_metadata.json" in out
    code, out, _ = run(capsys, "history", storage)
    assert (code, "FINISHED" in out) == (0, True)


def test_history_of_what_is_not_there(tmp_path: Path, capsys: Captured) -> None:
    assert run(capsys, "history", str(tmp_path)) == (0, "no job has run here\n", "")
    code, _, err = run(capsys, "history", str(tmp_path), "nobody")
    assert (code, "no job 'nobody' has run in" in err) == (3, True)
    code, _, err = run(capsys, "history", "ftp://nowhere/x")
    assert (code, "neither an absolute path nor a URI" in err) == (2, True)


# -- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sta"], ["status"]),
        (["checkpoint"], ["checkpoint", "checkpoints"]),
        (["status", ""], ["one", "other"]),
        (["status", "on"], ["one"]),
        (["stop", "one", "--d"], ["--drain"]),
        (["stop", "--format", ""], ["canonical", "native"]),
        (["logs", "--level", "W"], ["WARNING"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["run", "-D", "tidegate.on"], ["tidegate.on-term-timeout=", "tidegate.on-term="]),
        (["run", "-Dparall"], ["-Dparallelism.default="]),
        (["run", "--on-term", "ch"], ["checkpoint"]),
        (["run", "jo"], []),
        (["history", "/da"], []),
    ],
)
def test_completion_knows_commands_options_choices_and_jobs(words: list[str], expected: list[str]) -> None:
    assert candidates(make_parser(), words, lambda: ["one", "other"]) == expected


def test_every_command_that_has_help_is_offered() -> None:
    found = candidates(make_parser(), [""], list)
    assert {
        "run",
        "list",
        "status",
        "checkpoints",
        "savepoint",
        "stop",
        "cancel",
        "rescale",
        "sinks",
        "logs",
        "history",
    } <= set(found)
    assert "complete" not in found


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_the_script_of_each_shell_is_accepted_by_it(shell: str, capsys: Captured, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0
    if shutil.which(shell) is not None:
        script = tmp_path / "script"
        script.write_text(out)
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


def test_bash_completes_with_it(tmp_path: Path) -> None:
    """As a user's shell does: the function is called with the words so far, and gives the candidates."""
    (tmp_path / "tidegate").write_text(f'#!/bin/sh\nexec {sys.executable} -m tidegate.cli.main "$@"\n')
    (tmp_path / "tidegate").chmod(0o755)
    script = SCRIPTS["bash"] + 'COMP_WORDS=(tidegate st); COMP_CWORD=1; _tidegate; printf "%s\\n" "${COMPREPLY[@]}"'
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.split() == ["status", "stop"], done.stderr


def test_what_the_shells_scripts_call_is_not_offered_to_people(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    choices = capsys.readouterr().err.partition("choose from")[2]
    assert "completion" in choices
    assert "complete" not in choices.replace("completion", "")
    assert run(capsys, "complete", "--", "sta")[:2] == (0, "status\n")


def test_every_command_stands_in_the_help_with_what_it_does_on_one_line(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for command in ("checkpoints", "checkpoint", "completion", "run"):
        (line,) = [line for line in lines if line.split()[:1] == [command]]
        assert len(line.split()) > 2, line


def test_a_command_that_is_given_too_much_says_what_it_takes_itself(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["savepoint", "hand", "/tmp/there"])

    assert raised.value.code == 2
    err = capsys.readouterr().err
    assert "usage: tidegate savepoint" in err
    assert "--to FOLDER" in err
    assert "unrecognized arguments: /tmp/there" in err
