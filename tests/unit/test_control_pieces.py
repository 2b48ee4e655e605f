"""Control messages of any size travel in pieces: in whatever order threads send them, each arrives whole."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from control_kit import DEADLINE_S, Driver, connection
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ProtocolViolation
from tidegate.ids import SlotId
from tidegate.storage.metadata import Committable
from tidegate.task.operators import sink
from tidegate.wire import framing
from tidegate.wire.control import Heartbeat, Start, SubtaskRestore, ToDriver, ToSlot
from tidegate.wire.framing import HEAD, Received, frames_of


def whole(received: Received, frame: bytes) -> bytes | None:
    head, body = frame[: HEAD.size], frame[HEAD.size :]
    assert received.length_of(head) == len(body)
    return received.message(head, body)


@given(messages=st.lists(st.binary(max_size=60), max_size=6), order=st.randoms(use_true_random=False))
def test_messages_arrive_whole_however_their_pieces_are_mixed(messages: list[bytes], order: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "PIECE_BYTES", 7)
        waiting = [(message, list(frames_of(message, number))) for number, message in enumerate(messages)]
        received, arrived = Received(), []
        while waiting:
            entry = order.choice(waiting)
            message, frames = entry
            assert all(len(frame) <= 7 + HEAD.size + 5 for frame in frames)
            got = whole(received, frames.pop(0))
            assert (got is not None) == (not frames)
            if got is not None:
                assert got == message
                arrived.append(got)
                waiting.remove(entry)

    assert sorted(arrived) == sorted(messages)


def test_a_frame_that_nobody_sends_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolViolation, match="was announced; the limit is"):
        Received().length_of(HEAD.pack(framing.PIECE_BYTES + 1))


def test_pieces_are_refused_when_they_are_more_than_a_message_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "PIECE_BYTES", 10)
    monkeypatch.setattr(framing, "MAX_MESSAGE_BYTES", 35)
    received = Received()
    frames = list(frames_of(bytes(100), 0))

    assert [whole(received, frame) for frame in frames[:3]] == [None] * 3
    with pytest.raises(ProtocolViolation, match="more than 35 bytes"):
        whole(received, frames[3])


def test_a_slot_may_be_told_to_continue_with_what_many_subtasks_had_waiting() -> None:
    """A sink may keep so much for each subtask; at a lower parallelism one subtask gets that of several, and a slot has several
    sinks."""
    assert framing.MAX_MESSAGE_BYTES >= 20 * sink.MAX_UNCOMMITTED_BYTES


def test_a_start_of_many_pieces_reaches_the_slot_and_its_answer_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "PIECE_BYTES", 1000)
    payload = bytes(range(256)) * 400
    restored = SubtaskRestore("sink", 0, committables=[Committable("sink", n, 1, payload) for n in range(3)])
    start = Start(restored_from=1, subtasks=[restored], files=[])
    told: list[ToSlot] = []
    heard = threading.Event()

    def on_message(message: ToSlot) -> None:
        told.append(message)
        heard.set()

    with connection(monkeypatch, lambda: Heartbeat(0, 0, 0, 0, 0), on_message) as (driver, server, client):
        driver.wait_for(lambda: bool(driver.heartbeats()))
        server.send(SlotId(0, 0), start)
        assert heard.wait(DEADLINE_S)
        client.send(ToDriver("sink", 0, "topic", payload))
        driver.wait_for(lambda: answers_in(driver) == [payload])

    assert told == [start]


def test_large_messages_of_several_threads_and_heartbeats_share_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "PIECE_BYTES", 500)
    payloads = [bytes([number]) * 50_000 for number in range(6)]

    with connection(monkeypatch, lambda: Heartbeat(0, 0, 0, 0, 0)) as (driver, _, client):
        senders = [
            threading.Thread(target=client.send, args=(ToDriver("sink", 0, "topic", payload),)) for payload in payloads
        ]
        for sender in senders:
            sender.start()
        driver.wait_for(lambda: len(answers_in(driver)) == len(payloads) and bool(driver.heartbeats()))
        for sender in senders:
            sender.join()

    assert sorted(answers_in(driver)) == payloads


def answers_in(driver: Driver) -> list[bytes]:
    return [message.payload for message in driver.messages if isinstance(message, ToDriver)]
