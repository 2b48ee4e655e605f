"""Frames, records, control messages and the handshake: what is foreign, damaged or cut is refused, and nothing is
unpickled before its seal was checked."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.batch import Batch
from tidegate.errors import ProtocolViolation
from tidegate.ids import SlotId
from tidegate.storage.metadata import Committable, FileRef, SlotSnapshot, SplitState, SubtaskSnapshot
from tidegate.types import record_type
from tidegate.wire import control, handshake
from tidegate.wire.frame import (
    FLAG_PICKLED,
    FLAG_TIMESTAMPS,
    OVERHEAD_BYTES,
    PAYLOAD_OFFSET,
    VERSION,
    Frame,
    Kind,
    decode_frame,
    encode_frame,
)
from tidegate.wire.records import decode_records, encode_records
from tidegate.wire.seal import TAG_BYTES, FrameSeal

OURS = FrameSeal(b"the attempt's key")
BOTH = [OURS, FrameSeal(b"the attempt's key", encrypts=True)]
HERE = SlotId(1, 0)
TOKEN = b"t" * 32


def sent(kind: Kind = Kind.RECORDS, seal: FrameSeal = OURS, **fields: Any) -> bytes:
    fields = {"sequence": 2, "origin": 3, "target": 4, "edge": 5, "count": 6, "value": 7, **fields}
    return encode_frame(seal.channel(HERE, 1), kind, **fields)


def received(data: bytes, seal: FrameSeal = OURS) -> Frame:
    return decode_frame(seal, HERE, memoryview(data))


# -- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seal", BOTH, ids=["signed", "encrypted"])
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("payload", [b"", b"payload"])
def test_a_frame_is_read_as_it_was_written(seal: FrameSeal, kind: Kind, payload: bytes) -> None:
    frame = received(sent(kind, seal, value=-(2**63), sequence=2**40 + 9, flags=FLAG_PICKLED, payload=payload), seal)

    assert (frame.kind, frame.sender, frame.origin, frame.target, frame.edge) == (kind, 1, 3, 4, 5)
    assert (frame.sequence, frame.count, frame.value, frame.flags) == (2**40 + 9, 6, -(2**63), FLAG_PICKLED)
    assert bytes(frame.payload) == payload
    assert frame.size_bytes == OVERHEAD_BYTES + len(payload)


@pytest.mark.parametrize("seal", BOTH, ids=["signed", "encrypted"])
def test_a_frame_is_read_from_the_row_that_it_came_in(seal: FrameSeal) -> None:
    """As workers get it: memory of Arrow's."""
    column = pa.array([sent(seal=seal, payload=b"payload")], pa.binary())

    frame = decode_frame(seal, HERE, memoryview(column[0].as_buffer()))

    assert bytes(frame.payload) == b"payload"
    assert pa.py_buffer(frame.payload).address % 8 == 0, "columns are quicker there"


def test_the_layout_is_pinned() -> None:
    """Version 2, as the module's table says: executors of one release must agree, and a change needs a new version."""
    data = sent(Kind.CHECKPOINT_BARRIER, payload=b"xyz")

    assert data[:PAYLOAD_OFFSET] == struct.pack("<BxHxxxxQ", 2, 1, 2) + struct.pack("<BxHHHHxxIq", 3, 0, 3, 4, 5, 6, 7)
    assert data[PAYLOAD_OFFSET:-TAG_BYTES] == b"xyz"
    assert (PAYLOAD_OFFSET, OVERHEAD_BYTES, len(data)) == (40, 56, 59)


@pytest.mark.parametrize("seal", BOTH, ids=["signed", "encrypted"])
def test_a_change_of_any_bit_is_noticed(seal: FrameSeal) -> None:
    data = sent(seal=seal, payload=b"some payload")
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(ProtocolViolation):
                received(bytes(damaged), seal)


@pytest.mark.parametrize("seal", BOTH, ids=["signed", "encrypted"])
def test_a_frame_that_is_cut_short_or_too_long_is_refused(seal: FrameSeal) -> None:
    data = sent(seal=seal, payload=b"some payload")
    for length in range(len(data)):
        with pytest.raises(ProtocolViolation):
            received(data[:length], seal)
    with pytest.raises(ProtocolViolation):
        received(data + b"\0", seal)


def test_a_frame_of_another_format_version_is_refused_by_name() -> None:
    data = bytearray(sent())
    data[0] = VERSION + 1

    with pytest.raises(ProtocolViolation, match=r"format version 3 came to slot 1\.0; this release reads 2"):
        received(bytes(data))


def test_a_sealed_frame_of_an_unknown_kind_is_a_violation_not_a_crash() -> None:
    with pytest.raises(ProtocolViolation, match="kind 99"):
        received(sent(99))  # type: ignore[arg-type]


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


def over_the_wire(batch: Batch, seal: FrameSeal = OURS) -> bytes:
    flags, payload = encode_records(batch)
    return sent(seal=seal, count=len(batch), flags=flags, payload=payload)


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


def test_a_pickle_of_a_stranger_is_never_read() -> None:
    Trap.sprung = 0
    payload = pickle.dumps([Trap()])
    forged = sent(seal=FrameSeal(b"a guess"), flags=FLAG_PICKLED, payload=payload)

    with pytest.raises(ProtocolViolation):
        decode_records(received(forged), record_type(None)).rows()
    assert Trap.sprung == 0


@pytest.mark.parametrize("annotation", [int, str, tuple[int, str], Order, pa.schema([("n", pa.int32())])])
@pytest.mark.parametrize("stamped", [False, True])
def test_for_a_stream_with_a_type_no_pickle_is_read(annotation: Any, stamped: bool) -> None:
    """Frames are also in checkpoints, which may be of somebody else."""
    Trap.sprung = 0
    stamps = (8).to_bytes(4, "little") + bytes(8) if stamped else b""
    flags = FLAG_PICKLED | (FLAG_TIMESTAMPS if stamped else 0)
    frame = Frame(Kind.RECORDS, 0, 0, 0, 0, 0, 1, 0, flags, memoryview(stamps + pickle.dumps([Trap()])))

    with pytest.raises(ProtocolViolation, match="pickles are read for streams without a type alone"):
        decode_records(frame, record_type(annotation)).rows()
    assert Trap.sprung == 0
    assert decode_records(frame, record_type(None)).rows() == ["sprung"]


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
