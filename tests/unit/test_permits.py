"""The permit to commit (protocol/logged.py): who makes one, and what is refused without it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tidegate.errors import ProtocolViolation
from tidegate.ids import CheckpointId
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.storage.log import JobLog
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store

SOURCE = Path(__file__).parents[2] / "src" / "tidegate"


def makers(name: str) -> set[str]:
    return {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == name and path.name != "logged.py"
    }


def test_only_the_log_makes_a_permit_and_only_a_slot_takes_the_drivers_word() -> None:
    assert makers("in_log") == {"storage/log.py"}
    assert makers("from_driver") == {"task/slot.py"}


def test_a_number_is_not_a_permit() -> None:
    with pytest.raises(ProtocolViolation, match="nobody has seen checkpoint 3"):
        LoggedCheckpoint(CheckpointId(3))


def test_a_log_without_a_checkpoint_gives_no_permit() -> None:
    log = JobLog(open_store("memory://permits"), JobPaths("job"))
    with pytest.raises(ProtocolViolation, match="no generation"):
        log.latest_logged()
    log.take_generation("driver", 1.0)
    with pytest.raises(ProtocolViolation, match="nobody can say that a checkpoint counts by record 0"):
        log.latest_logged()
