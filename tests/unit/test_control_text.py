"""Whatever text and numbers users' code makes, a slot is heard: heartbeats continue, and a failure says what it was.

Every control message is enumerated, and its fields are filled with what Python allows and no encoding takes: lone surrogates,
integers beyond 64 bits.
"""

from __future__ import annotations

import json
import logging
import threading
import types
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import msgspec
import pytest
from control_kit import DEADLINE_S, connection
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.errors import GraphError, JobFailed
from tidegate.functions.counters import Counters
from tidegate.ids import SlotId
from tidegate.shown import is_writable
from tidegate.task.failures import describe_failure
from tidegate.task.logs import SlotLog
from tidegate.wire.control import (
    SHOWN,
    FromSlot,
    Heartbeat,
    OperatorMetrics,
    SlotFailed,
    ToSlot,
    Unsendable,
    decode_from_slot,
    decode_to_slot,
    encode,
)

FROM_SLOT, TO_SLOT = typing.get_args(FromSlot), typing.get_args(ToSlot)
ODD = json.loads('"caf\\ud83d"')  # what a record may hold: half of a pair of surrogates

anything = st.text(st.characters(), max_size=8)  # surrogates are characters of Python's
numbers = st.one_of(st.integers(-(2**70), 2**70), st.integers(0, 100))


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """All that a field of this type may hold, and what it must not hold and may get all the same."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind)):
        return messages_of(kind)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: anything,
        int: numbers,
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        bytes: st.binary(max_size=8),
        type(None): st.none(),
        Any: st.one_of(anything, numbers, st.none()),
    }
    return plain[kind]


def messages_of(kind: type) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: values_of(of) for name, of in typing.get_type_hints(kind).items()})


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_that_is_only_shown_is_always_sent(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))

    received = decode_from_slot(encode(message))

    assert type(received) is kind
    if is_plain(message):
        assert received == message


@pytest.mark.parametrize("kind", [k for k in FROM_SLOT + TO_SLOT if k not in SHOWN], ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_that_is_acted_on_arrives_as_it_is_or_is_refused(kind: type, data: st.DataObject) -> None:
    """Never a split with another name, or a position with another number."""
    message = data.draw(messages_of(kind))
    decode: Callable[[bytes], Any] = decode_from_slot if kind in FROM_SLOT else decode_to_slot

    try:
        encoded = encode(message)
    except Unsendable:
        assert not is_plain(message)
    else:
        assert decode(encoded) == message


def is_plain(value: Any) -> bool:
    """Whether all of its text and numbers can be encoded."""
    match value:
        case str():
            return all(not "\ud800" <= character <= "\udfff" for character in value)
        case bool() | float() | bytes() | None:
            return True
        case int():
            return -(2**63) <= value < 2**63
        case list() | tuple():
            return all(map(is_plain, value))
        case dict():
            return all(map(is_plain, [*value, *value.values()]))
        case msgspec.Struct():
            return all(is_plain(getattr(value, name)) for name in value.__struct_fields__)
        case _:
            return all(is_plain(getattr(value, name)) for name in value.__dataclass_fields__)


# -- over a real connection -------------------------------------------------------------------------------------------


def test_an_odd_log_line_and_an_endless_counter_do_not_silence_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    log, counters = SlotLog("job", "g1-a1", "0.0"), Counters()

    def heartbeat() -> Heartbeat:
        lines, dropped = log.take()
        return Heartbeat(0, 0, 0, 0, 0, [OperatorMetrics("u", 0, 0, 0, counters=counters.values())], lines, dropped)

    with connection(monkeypatch, heartbeat) as (driver, _, _):
        driver.wait_for(lambda: len(driver.heartbeats()) > 1)
        log.emit(logging.LogRecord("user", logging.INFO, "f", 1, "odd record %s", (ODD,), None))
        counters.get("bytes").inc(2**64)
        counters.get(f"of {ODD}").inc()
        heard = len(driver.heartbeats())
        driver.wait_for(lambda: len(driver.heartbeats()) > heard + 3)

    said = [line.message for beat in driver.heartbeats() for line in beat.logs]
    assert said == ["odd record caf\\ud83d"]
    assert driver.heartbeats()[-1].operators[0].counters == {"bytes": 2**63 - 1, "of caf\\ud83d": 1}


def test_heartbeats_go_on_when_none_can_be_made_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = iter([Heartbeat(7, 0, 0, 0, 0)])

    with connection(monkeypatch, lambda: next(made)) as (driver, _, _):
        driver.wait_for(lambda: len(driver.heartbeats()) > 5)

    assert {beat.busy_ms for beat in driver.heartbeats()} == {7}  # the last that could be made
    assert [record.message for record in caplog.records if "heartbeat" in record.message] == [
        "a heartbeat could not be made; the slot continues, its metrics stand still"
    ]


def test_a_slot_that_cannot_handle_a_message_says_why_and_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(message: ToSlot) -> None:
        raise KeyError(f"no place for {type(message).__name__}")

    failures: list[BaseException] = []
    failed = threading.Event()

    def on_failure(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    with connection(monkeypatch, lambda: Heartbeat(0, 0, 0, 0, 0), fails, on_failure) as (driver, server, _):
        driver.wait_for(lambda: bool(driver.heartbeats()))
        server.send(SlotId(0, 0), TO_SLOT[2]())
        assert failed.wait(DEADLINE_S)

    assert isinstance(failures[0], KeyError)


# -- failures ---------------------------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError(ODD), "ValueError: caf\\ud83d"),
        (ValueError(), "ValueError"),
        (Mute(), "Mute: (its message cannot be shown: RuntimeError)"),
        (ValueError("x" * 100_000), f"ValueError: {'x' * 19_988} ... (80012 more characters)"),
    ],
)
def test_the_last_words_of_a_slot_tell_what_failed(error: Exception, message: str) -> None:
    heard = decode_from_slot(encode(describe_failure(error)))

    assert isinstance(heard, SlotFailed)
    assert heard.message == message
    assert len(heard.traceback) <= 20_000


def test_an_error_of_ours_can_be_written_wherever_it_goes() -> None:
    error = JobFailed(f"cannot read {ODD}", operator=ODD, subtask=3)

    assert str(error) == "cannot read caf\\ud83d"
    assert (error.context["operator"], error.context["subtask"]) == ("caf\\ud83d", 3)


@pytest.mark.parametrize(
    ("given_by", "shown"),
    [(2**64, 2**63 - 1), (-(2**64), -(2**63)), (float("inf"), 2**63 - 1), (-float("inf"), -(2**63)), (2.9, 2)],
)
def test_a_counter_shows_the_nearest_number_that_can_be_told(given_by: Any, shown: int) -> None:
    counters = Counters()
    counters.get("n").inc(given_by)

    assert counters.values() == {"n": shown}


def test_a_counter_of_what_is_not_a_number_is_left_out() -> None:
    counters = Counters()
    counters.get("n").inc(float("nan"))  # type: ignore[arg-type]
    counters.get("m").inc()

    assert counters.values() == {"m": 1}


@pytest.mark.parametrize("what", ["uid", "name"])
def test_what_could_not_be_in_a_checkpoint_is_refused_where_it_is_given(what: str) -> None:
    env = tg.StreamEnvironment("job")

    with pytest.raises(GraphError, match=rf"the {what} of an operator at .*test_control_text.py:\d+ is 'caf\\ud83d'"):
        env.from_collection([1], type=int, uid="in").map(lambda n: n, returns=int, **{what: ODD})


def test_whether_text_can_be_written_is_what_utf_8_says() -> None:
    assert [is_writable(text) for text in ("plain", "Zürich \N{SNOWMAN}", "a\\ud83d", "\U0001f600", ODD)] == [
        True
    ] * 4 + [False]
