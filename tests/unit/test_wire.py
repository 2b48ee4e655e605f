"""Frames, records, control messages and the handshake: what is foreign, damaged or cut is refused, and nothing is
unpickled before its seal was checked."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

import tidegate as tg
from tidegate.batch import Batch
from tidegate.errors import ProtocolViolation
from tidegate.storage.metadata import Committable, FileRef, SlotSnapshot, SplitState, SubtaskSnapshot
from tidegate.types import record_type
from tidegate.wire import control, handshake
from tidegate.wire.frame import (
    FLAG_HOLDS_PICKLES,
    FLAG_PICKLED,
    HEADER_BYTES,
    PAYLOAD_OFFSET,
    VERSION,
    Frame,
    FrameSeal,
    Kind,
    decode_frame,
    encode_frame,
)
from tidegate.wire.records import decode_records, encode_records

OURS = FrameSeal(b"the attempt's key")
TOKEN = b"t" * 32


def sent(kind: Kind = Kind.RECORDS, seal: FrameSeal = OURS, **fields: Any) -> bytes:
    fields = {"sender": 1, "sequence": 2, "origin": 3, "target": 4, "edge": 5, "count": 6, "value": 7, **fields}
    return encode_frame(seal, kind, **fields)


def received(data: bytes, seal: FrameSeal = OURS) -> Frame:
    return decode_frame(seal, memoryview(data))


# -- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("flags", [0, FLAG_PICKLED])
def test_a_frame_is_read_as_it_was_written(kind: Kind, flags: int) -> None:
    frame = received(sent(kind, value=-(2**63), sequence=2**32 + 9, flags=flags, payload=b"payload"))

    assert (frame.kind, frame.sender, frame.origin, frame.target, frame.edge) == (kind, 1, 3, 4, 5)
    assert (frame.sequence, frame.count, frame.value, frame.flags) == (9, 6, -(2**63), flags)
    assert bytes(frame.payload) == b"payload"
    assert frame.size_bytes == PAYLOAD_OFFSET + 7


def test_the_layout_is_pinned() -> None:
    """Version 1, as the module's table says: executors of one release must agree, and a change needs a new version."""
    data = sent(Kind.CHECKPOINT_BARRIER, payload=b"xyz")

    assert data[:HEADER_BYTES] == struct.pack("<BBHHHHHIIq", 1, 3, 0, 1, 3, 4, 5, 2, 6, 7)
    assert (HEADER_BYTES, PAYLOAD_OFFSET) == (28, 44)
    assert data[PAYLOAD_OFFSET:] == b"xyz"


@pytest.mark.parametrize("flags", [0, FLAG_PICKLED])
def test_a_frame_of_another_attempt_is_refused(flags: int) -> None:
    with pytest.raises(ProtocolViolation, match="sender 1 is not sealed by this attempt"):
        received(sent(seal=FrameSeal(b"another attempt's key"), flags=flags, payload=b"payload"))


@pytest.mark.parametrize("flags", [0, FLAG_PICKLED])
def test_a_change_of_any_bit_is_noticed(flags: int) -> None:
    data = sent(flags=flags, payload=b"some payload")
    for position in range(len(data)):
        for bit in (0x01, 0x80):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(ProtocolViolation):
                received(bytes(damaged))


@pytest.mark.parametrize("flags", [0, FLAG_PICKLED])
def test_a_frame_that_is_cut_short_or_too_long_is_refused(flags: int) -> None:
    data = sent(flags=flags, payload=b"some payload")
    for length in range(len(data)):
        with pytest.raises(ProtocolViolation):
            received(data[:length])
    with pytest.raises(ProtocolViolation):
        received(data + b"\0")


def test_a_frame_of_another_format_version_is_refused_by_name() -> None:
    data = bytearray(sent())
    data[0] = VERSION + 1

    with pytest.raises(ProtocolViolation, match=r"format version 2; this release reads 1"):
        received(bytes(data))


def test_a_sealed_frame_of_an_unknown_kind_is_a_violation_not_a_crash() -> None:
    with pytest.raises(ProtocolViolation, match="kind 99"):
        received(sent(99))  # type: ignore[arg-type]


def test_a_cheap_seal_is_never_taken_for_the_strong_one() -> None:
    """A stranger who could forge the fast seal of typed columns still could not have a pickle read."""
    typed = sent(payload=b"anything")
    forged = bytearray(typed)
    forged[2] |= FLAG_PICKLED

    with pytest.raises(ProtocolViolation):
        received(bytes(forged))


# -- records ----------------------------------------------------------------------------------------------------------


class Trap:
    """Unpickling it is noticed."""

    sprung = 0

    def __reduce__(self) -> Any:
        return _spring, ()


def _spring() -> str:
    Trap.sprung += 1
    return "sprung"


@dataclass(frozen=True)
class Order:
    id: int
    note: tg.Pickled


PICKLING = [tg.Pickled, tuple[int, tg.Pickled], Order, list[tg.Pickled], dict[str, tg.Pickled], tg.Pickled | None]


def over_the_wire(batch: Batch, seal: FrameSeal = OURS) -> bytes:
    flags, payload = encode_records(batch)
    return encode_frame(seal, Kind.RECORDS, sender=0, sequence=0, count=len(batch), flags=flags, payload=payload)


@pytest.mark.parametrize(
    ("annotation", "rows"),
    [
        (int, [1, 2, 3]),
        (tuple[int, str], [(1, "a"), (2, "b")]),
        (Order, [Order(1, {"any": object}), Order(2, None)]),
        (None, [1, "two", (3,), {"four": 4}]),
        (tg.Pickled, [{1}, {2}]),
    ],
)
@pytest.mark.parametrize("stamps", [None, [5, -(2**63)]])
def test_records_and_their_timestamps_come_back(annotation: Any, rows: list[Any], stamps: list[int] | None) -> None:
    timestamps = None if stamps is None else np.array(stamps[: len(rows)], dtype=np.int64)
    kind = record_type(annotation)
    back = decode_records(received(over_the_wire(Batch(kind, rows=rows, timestamps=timestamps))), kind)

    assert back.rows() == rows
    if timestamps is None:
        assert back.timestamps is None
    else:
        assert back.timestamps is not None
        assert back.timestamps.tolist() == timestamps.tolist()


def test_pickled_rows_travel_under_the_strong_seal() -> None:
    flags, _ = encode_records(Batch(record_type(None), rows=["any"]))
    assert flags & FLAG_PICKLED


def test_a_pickle_of_a_stranger_is_never_read() -> None:
    Trap.sprung = 0
    payload = pickle.dumps([Trap()])
    forged = encode_frame(
        FrameSeal(b"a guess"), Kind.RECORDS, sender=0, sequence=0, flags=FLAG_PICKLED, payload=payload
    )

    with pytest.raises(ProtocolViolation):
        decode_records(received(forged), record_type(None)).rows()
    assert Trap.sprung == 0


@pytest.mark.parametrize("annotation", PICKLING, ids=str)
def test_columns_that_hold_pickles_travel_under_the_strong_seal_too(annotation: Any) -> None:
    """The fast seal keeps out mistakes, not attackers; whoever could forge it must not reach a pickle."""
    rows: dict[Any, list[Any]] = {
        PICKLING[0]: ["any"],
        PICKLING[1]: [(1, "any")],
        PICKLING[2]: [Order(1, "any")],
    }
    kind = record_type(annotation)
    value = rows.get(annotation) or ([["any"]] if "list" in str(annotation) else [{"k": "any"}])
    if annotation == PICKLING[5]:
        value = [None, "any"]
    frame = received(over_the_wire(Batch(kind, rows=value)))
    assert frame.flags & FLAG_HOLDS_PICKLES
    assert decode_records(frame, kind).rows() == value

    weak = received(
        encode_frame(OURS, Kind.RECORDS, sender=0, sequence=0, payload=memoryview(kind.to_batch(value).serialize()))
    )
    with pytest.raises(ProtocolViolation, match="pickle"):
        decode_records(weak, kind)


# -- control messages -------------------------------------------------------------------------------------------------

MESSAGES: list[Any] = [
    control.Ready(1.5),
    control.Heartbeat(1, 2, 3, 4, 5, [control.OperatorMetrics("u", 0, 1, 2)]),
    control.Heartbeat(1, 2, 3, 4, 5, logs=[control.LogLine(1.5, "INFO", "l", "m", "u", "o", 3)], logs_dropped=2),
    control.LastCounts([control.OperatorMetrics("u", 0, 1, 2, -5, {"mine": 7})]),
    control.Acknowledge(
        7,
        SlotSnapshot(
            1,
            2,
            FileRef(3, inline=b"\x00\xff"),
            [SubtaskSnapshot("u", 0, True, 9, [SplitState("s", {"at": [1, None]})], [Committable("u", 7, 1, b"\x01")])],
        ),
        control.SnapshotTimings(),
    ),
    control.Decline(7, "why"),
    control.Ended(),
    control.Committed(7),
    control.SlotFailed("user", "m", "t", checkpoint=None),
    control.ToDriver("u", 0, "print", b"\xff"),
]
ORDERS: list[Any] = [
    control.Start(None, [control.SubtaskRestore("u", 0)], [FileRef(0, path="p")]),
    control.Trigger(1),
    control.Complete(1),
    control.Abort(2, 1),
    control.Finish(),
    control.Cancel(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_a_slot_says_comes_back(message: Any) -> None:
    assert control.decode_from_slot(control.encode(message)) == message


@pytest.mark.parametrize("message", ORDERS, ids=lambda message: type(message).__name__)
def test_what_the_coordinator_says_comes_back(message: Any) -> None:
    assert control.decode_to_slot(control.encode(message)) == message


def test_a_message_for_the_other_direction_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="not a message from a slot"):
        control.decode_from_slot(control.encode(control.Trigger(1)))
    with pytest.raises(ProtocolViolation, match="not a message to a slot"):
        control.decode_to_slot(control.encode(control.Committed(1)))


@pytest.mark.parametrize("message", [*MESSAGES, *ORDERS], ids=lambda message: type(message).__name__)
def test_a_message_that_is_cut_short_is_refused(message: Any) -> None:
    data = control.encode(message)
    for length in range(len(data)):
        with pytest.raises(ProtocolViolation):
            control.decode_from_slot(data[:length])
        with pytest.raises(ProtocolViolation):
            control.decode_to_slot(data[:length])


@pytest.mark.parametrize("data", [b"", b"\xc1", b"hello", pickle.dumps(["Ready"]), b"\x93\x01\x02\x03"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        control.decode_from_slot(data)


def test_a_field_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ProtocolViolation):
        control.decode_from_slot(msgspec.msgpack.encode({"type": "Committed", "checkpoint": "seven"}))


def test_a_message_beyond_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(ProtocolViolation, match=r"\(ToDriver\) of .* bytes is over the limit"):
        control.encode(control.ToDriver("u", 0, "t", bytes(200)))


# -- the handshake ----------------------------------------------------------------------------------------------------


def hello(version: int = control.PROTOCOL_VERSION) -> handshake.Hello:
    return handshake.Hello(version, 1, 2, 3, 4, 5, "host", handshake.new_challenge())


def test_both_sides_prove_that_they_know_the_token() -> None:
    challenge, greeting = handshake.new_challenge(), hello()

    assert handshake.check_hello(TOKEN, challenge, handshake.sign_hello(TOKEN, challenge, greeting)) == greeting
    handshake.check_coordinator(TOKEN, greeting.challenge, handshake.prove(TOKEN, greeting.challenge))


def test_a_worker_with_the_token_of_another_attempt_is_refused() -> None:
    challenge = handshake.new_challenge()
    with pytest.raises(ProtocolViolation, match="another attempt, or a stranger"):
        handshake.check_hello(TOKEN, challenge, handshake.sign_hello(b"x" * 32, challenge, hello()))


def test_a_hello_that_was_recorded_is_refused_on_the_next_connection() -> None:
    recorded = handshake.sign_hello(TOKEN, handshake.new_challenge(), hello())
    with pytest.raises(ProtocolViolation):
        handshake.check_hello(TOKEN, handshake.new_challenge(), recorded)


def test_a_coordinator_that_does_not_know_the_token_is_left() -> None:
    challenge = handshake.new_challenge()
    with pytest.raises(ProtocolViolation, match="the coordinator does not know"):
        handshake.check_coordinator(TOKEN, challenge, handshake.prove(b"x" * 32, challenge))


def test_a_slots_proof_is_no_coordinators_proof() -> None:
    """Else a stranger could answer a challenge by sending it back."""
    challenge = handshake.new_challenge()
    signed = msgspec.msgpack.decode(handshake.sign_hello(TOKEN, challenge, hello()))
    with pytest.raises(ProtocolViolation):
        handshake.check_coordinator(TOKEN, challenge, signed["proof"])


def test_another_release_on_the_executor_is_named() -> None:
    challenge = handshake.new_challenge()
    data = handshake.sign_hello(TOKEN, challenge, hello(version=control.PROTOCOL_VERSION + 1))
    with pytest.raises(ProtocolViolation, match="install the same release"):
        handshake.check_hello(TOKEN, challenge, data)


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n", b"\x82\xa5hello\xc4\x00\xa5proof\xc4\x00"])
def test_a_stranger_that_says_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        handshake.check_hello(TOKEN, handshake.new_challenge(), data)


def test_a_signed_hello_that_is_none_is_refused() -> None:
    challenge = handshake.new_challenge()
    body = msgspec.msgpack.encode({"version": "two"})
    proof = handshake._hello_proof(TOKEN, challenge, body)
    with pytest.raises(ProtocolViolation):
        handshake.check_hello(TOKEN, challenge, msgspec.msgpack.encode({"hello": body, "proof": proof}))
