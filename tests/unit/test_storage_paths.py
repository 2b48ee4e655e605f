"""Paths of a job in its storage."""

from __future__ import annotations

import pytest

from tidegate.errors import ConfigurationError
from tidegate.ids import AttemptId, AttemptNumber, CheckpointId, Generation, SlotId
from tidegate.storage.paths import JobPaths

ATTEMPT = AttemptId(Generation(3), AttemptNumber(5))
CHECKPOINT = CheckpointId(17)


def test_the_layout_is_what_the_documentation_says() -> None:
    paths = JobPaths("word.count-2")

    assert paths.log(42) == "word.count-2/log/00000042.json"
    assert paths.checkpoint(CHECKPOINT, ATTEMPT) == "word.count-2/chk-17/g3-a5/"
    assert paths.metadata(CHECKPOINT, ATTEMPT) == "word.count-2/chk-17/g3-a5/_metadata.json"
    assert paths.slot_file(CHECKPOINT, ATTEMPT, SlotId(1, 0)) == "word.count-2/chk-17/g3-a5/slot-1-0.snapshot"
    assert paths.staging(ATTEMPT, "x") == "word.count-2/staging/g3-a5/x"
    assert paths.probe(ATTEMPT) == "word.count-2/probe/g3-a5"
    assert paths.create_probe == "word.count-2/probe/create"
    assert paths.input("orders") == "word.count-2/input/orders/"


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 100, "-x", "_x", "9"])
def test_ordinary_names_are_taken(name: str) -> None:
    assert JobPaths(name).folder == f"{name}/"


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "ä", "x" * 101, "a\n", "a\\b", "a%41"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a job"):
        JobPaths(name)


def test_any_uid_gives_one_plain_folder_of_its_own() -> None:
    uids = ["a", "a/b", "a_b", "a b", "..", ".", "", "ä", "x" * 300, "x" * 301, "\ud800"]
    folders = [JobPaths("job").input(uid) for uid in uids]

    assert len(set(folders)) == len(uids)
    for folder in folders:
        name = folder.removeprefix("job/input/").removesuffix("/")
        assert name
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
        assert len(name) <= 100


def test_a_path_tells_its_checkpoint_and_attempt() -> None:
    paths = JobPaths("job")

    assert paths.checkpoint_of(paths.slot_file(CHECKPOINT, ATTEMPT, SlotId(0, 1))) == (CHECKPOINT, ATTEMPT)
    assert paths.attempt_of(paths.metadata(CHECKPOINT, ATTEMPT)) == ATTEMPT
    assert paths.attempt_of(paths.staging(ATTEMPT, "x")) == ATTEMPT
    assert paths.attempt_of(paths.probe(ATTEMPT)) == ATTEMPT
    assert paths.attempt_of("job/probe/.g3-a5.0123abcd.tmp") == ATTEMPT
    for other in (
        paths.log(1),
        paths.create_probe,
        "job/probe/g3-a5x",
        "job2/chk-17/g3-a5/x",
        "chk-17/g3-a5/x",
        "job/chk-x/g3-a5/y",
    ):
        assert paths.checkpoint_of(other) is None
        assert paths.attempt_of(other) is None
