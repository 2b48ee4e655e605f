"""Savepoints and checkpoints of somebody else: whatever their metadata names, a job leaves alone what is not theirs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from protocol_kit import Numbered, counting_job, environment

import tidegate as tg
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.savepoints.reading import Savepoint
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers
from tidegate.testing.runner import Ask, InProcessRun

SOURCE = Numbered(1, 2, 400, (2,))
STATE_FILE = {
    "uid": "count",
    "subtask": 0,
    "first_key_group": 1,
    "last_key_group": 0,
    "format": "heap",
    "files": [{"name": "x", "path": "", "size": 1, "checksum": "", "checkpoint": 1}],
}


def job(folder: Path, name: str, **settings: Any) -> tg.StreamEnvironment:
    env = environment(name, every="20ms", parallelism=1, storage=f"file://{folder}/{name}")
    env._config = replace(env._config, **settings)
    return counting_job(env, SOURCE, LedgerSink("foreign"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    forget_ledgers()
    file = tmp_path / "home" / "precious.state"
    file.parent.mkdir()
    file.write_text("of somebody else")
    return file


def savepoint_in(folder: Path, format: str) -> Path:
    ask = Ask(SavepointRequest(f"file://{folder}/savepoints", format=format), after_checkpoints=1)
    InProcessRun(job(folder, "one"), 1, asks=[ask]).run()
    return Path(ask.outcome.path.removeprefix("file://")) / "_metadata.json"


def places(value: Any) -> Iterator[dict[str, Any]]:
    """Whatever names a file, anywhere in the metadata."""
    if isinstance(value, dict):
        if isinstance(value.get("path"), str):
            yield value
        for item in value.values():
            yield from places(item)
    elif isinstance(value, list):
        for item in value:
            yield from places(item)


def with_a_state_file(metadata: dict[str, Any]) -> dict[str, Any]:
    """As a savepoint has of a backend that keeps its state as files."""
    slot = next(slot for slot in metadata["slots"] if any(each["uid"] == "count" for each in slot["subtasks"]))
    slot["states"] = [*slot.get("states", []), json.loads(json.dumps(STATE_FILE))]
    return metadata


WAYS_OUT: dict[str, Callable[[Path, Path], str]] = {
    "up": lambda metadata, file: "../../home/precious.state",
    "down and up": lambda metadata, file: "x/../../../home/precious.state",
    "absolute": lambda metadata, file: str(file),
    "a URI": lambda metadata, file: f"file://{file}",
    "itself": lambda metadata, file: ".",
    "nothing": lambda metadata, file: "",
    "two slashes": lambda metadata, file: f"x/{file}",
    "NUL": lambda metadata, file: "x\0y",
}


@pytest.mark.parametrize("format", ["canonical", "native"])
def test_a_savepoint_that_names_a_file_outside_its_folder_is_refused(
    format: str, tmp_path: Path, precious: Path
) -> None:
    metadata = savepoint_in(tmp_path, format)
    whole = with_a_state_file(json.loads(metadata.read_text()))
    number = len(list(places(whole)))
    assert number >= 3
    for way, out in WAYS_OUT.items():
        for place in range(number):
            changed = json.loads(json.dumps(whole))
            list(places(changed))[place]["path"] = out(metadata, precious)
            metadata.write_text(json.dumps(changed))
            with pytest.raises(tg.CheckpointDamaged, match=r"names the file .* not inside its folder"):
                InProcessRun(job(tmp_path, "two", resume=str(metadata.parent), claim_mode="claim"), 2).run()
            with pytest.raises(tg.CheckpointDamaged, match=r"names the file .* not inside its folder"):
                Savepoint.load(str(metadata.parent))
            assert precious.exists(), way


def checkpoint_in(folder: Path) -> Path:
    """The oldest of a job that keeps them all."""
    InProcessRun(job(folder, "one", retained=100), 1).run()
    return min((folder / "one" / "one").glob("chk-*/*/_metadata.json"), key=lambda path: int(path.parts[-3][4:]))


@pytest.mark.parametrize("whose", ["its own", "of somebody else"])
def test_a_claimed_checkpoint_makes_no_files_of_others_the_jobs_own(whose: str, tmp_path: Path, precious: Path) -> None:
    """By URI a checkpoint may name files of a savepoint elsewhere, which its job had claimed; so it is not refused."""
    metadata = checkpoint_in(tmp_path)
    own = metadata.with_name("own.state")
    own.write_text("of the checkpoint")
    changed = with_a_state_file(json.loads(metadata.read_text()))
    (added,) = [place for place in places(changed) if place["path"] == ""]
    inside = str(own.relative_to(tmp_path / "one"))
    added["path"] = inside if whose == "its own" else f"file://{precious}"
    metadata.write_text(json.dumps(changed))

    result = InProcessRun(job(tmp_path, "next", resume=str(metadata), claim_mode="claim"), 2).run()

    assert result.status.value == "FINISHED"
    assert precious.exists()
    assert own.exists() is (whose != "its own")


@pytest.mark.parametrize("path", ["../../home/precious.state", "one/../../home/precious.state", "file:///a/../b.state"])
def test_a_checkpoint_that_names_a_file_outside_every_storage_is_refused(path: str, tmp_path: Path) -> None:
    metadata = checkpoint_in(tmp_path)
    changed = with_a_state_file(json.loads(metadata.read_text()))
    (added,) = [place for place in places(changed) if place["path"] == ""]
    added["path"] = path
    metadata.write_text(json.dumps(changed))
    with pytest.raises(tg.CheckpointDamaged, match="not inside its folder"):
        InProcessRun(job(tmp_path, "next", resume=str(metadata), claim_mode="claim"), 2).run()
