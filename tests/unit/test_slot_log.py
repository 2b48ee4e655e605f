"""What is logged in a slot's process: whose line it is, the two formats, and the bound."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from cli_kit import planned_sums

from tidegate.batch import Batch
from tidegate.task.logs import MAX_LINES, MAX_MESSAGE, SlotLog
from tidegate.task.operators.base import RunningOperator
from tidegate.types import UNTYPED

Captured = pytest.CaptureFixture[str]
users = logging.getLogger("tests.user")


class Logging(RunningOperator):
    def process(self, batch: Batch, input_index: int) -> None:
        users.info("%d records", len(batch))


@pytest.fixture
def slot_log() -> Iterator[SlotLog]:
    handler = SlotLog("sums", "g1-a2", "1.0")
    users.addHandler(handler)
    users.setLevel(logging.INFO)
    users.propagate = False
    yield handler
    users.removeHandler(handler)
    users.setLevel(logging.NOTSET)
    users.propagate = True


def operator(uid: str, subtask: int) -> Logging:
    planned = next(planned for planned in planned_sums().operators if planned.uid == uid)
    return Logging(planned, subtask)


def test_a_line_names_the_operator_that_was_at_work(slot_log: SlotLog) -> None:
    operator("sums", 1).run(Batch(UNTYPED, [1, 2]), 0)
    users.info("between two records")

    lines, dropped = slot_log.take()

    assert [(line.message, line.uid, line.subtask) for line in lines] == [
        ("2 records", "sums", 1),
        ("between two records", "", -1),
    ]
    assert dropped == 0
    assert slot_log.take() == ([], 0), "a line is sent once"


def test_warnings_stand_on_standard_error_with_their_place(slot_log: SlotLog, capsys: Captured) -> None:
    users.info("only for the driver")
    users.warning("for everybody")

    (line,) = capsys.readouterr().err.splitlines()

    assert line.endswith(" WARNING [sums g1-a2 1.0] tests.user: for everybody")


def test_json_is_one_object_a_line(capsys: Captured) -> None:
    handler = SlotLog("sums", "g1-a2", "1.0", "json")
    users.addHandler(handler)
    try:
        raise KeyError("gone")
    except KeyError:
        users.exception("of two\nlines")
    finally:
        users.removeHandler(handler)

    (line,) = capsys.readouterr().err.splitlines()
    shown = json.loads(line)
    assert shown["message"].startswith("of two\nlines\nTraceback")
    assert "KeyError: 'gone'" in shown["message"]
    assert {key: shown[key] for key in ("job", "attempt", "slot", "level", "logger")} == {
        "job": "sums",
        "attempt": "g1-a2",
        "slot": "1.0",
        "level": "ERROR",
        "logger": "tests.user",
    }


def test_what_is_over_the_bound_is_counted_and_left_out(slot_log: SlotLog) -> None:
    for number in range(MAX_LINES + 7):
        users.info("%d", number)
    users.info("x" * (MAX_MESSAGE * 2))

    lines, dropped = slot_log.take()

    assert [line.message for line in lines] == [str(number) for number in range(MAX_LINES)]
    assert dropped == 8
    users.info("x" * (MAX_MESSAGE * 2))
    ((only,), none) = slot_log.take()
    assert len(only.message) == MAX_MESSAGE + 4
    assert none == 0


def test_a_message_that_cannot_be_formatted_does_not_end_the_slot(slot_log: SlotLog, capsys: Captured) -> None:
    slot_log.handle(logging.LogRecord("tests.user", logging.INFO, __file__, 1, "%d records", ("many",), None))

    assert slot_log.take() == ([], 0)
    assert "Logging error" in capsys.readouterr().err


def test_a_line_that_standard_error_does_not_take_is_told_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    log, gone = SlotLog("job", "g1-a1", "0.0"), io.StringIO()
    gone.close()
    monkeypatch.setattr("sys.stderr", gone)

    log.emit(logging.LogRecord("user", logging.ERROR, "file", 1, "a bad record", None, None))

    assert [line.message for line in log.take()[0]] == ["a bad record"]
