"""Both ends of a control connection prove that they know the attempt's token, without sending it.

    coordinator -> slot   challenge (32 random bytes)
    slot -> coordinator   Hello{slot, attempt, pid, host, its own challenge}, HMAC(token, challenge + hello)
    coordinator -> slot   HMAC(token, slot's challenge)

A slot of another attempt has another token, so it is refused here: this is the fence for old workers on the control plane.
In a job that encrypts, all of this is said within TLS, and the slot has seen the certificate that it was told of.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

import msgspec

from tidegate.errors import ProtocolViolation
from tidegate.wire.control import PROTOCOL_VERSION

CHALLENGE_BYTES = 32
MAX_HELLO_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where the slots of one attempt find their coordinator, and how each knows the other. Travels with the attempt."""

    host: str
    port: int
    token: bytes = field(repr=False)
    fingerprint: str | None = None  #: of the coordinator's certificate; None: the connection is not encrypted


class Hello(msgspec.Struct, frozen=True):
    """Who is calling."""

    version: int
    generation: int
    attempt: int
    layer: int
    index: int
    pid: int
    host: str
    challenge: bytes


class _SignedHello(msgspec.Struct, frozen=True):
    hello: bytes
    proof: bytes


class _VersionOnly(msgspec.Struct, frozen=True):
    version: int


def new_challenge() -> bytes:
    return secrets.token_bytes(CHALLENGE_BYTES)


def prove(token: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token, b"tidegate coordinator" + challenge, "sha256")


def sign_hello(token: bytes, challenge: bytes, hello: Hello) -> bytes:
    body = msgspec.msgpack.encode(hello)
    return msgspec.msgpack.encode(_SignedHello(body, _hello_proof(token, challenge, body)))


def check_hello(token: bytes, challenge: bytes, data: bytes) -> Hello:
    """:raises ProtocolViolation: when the caller does not know this attempt's token."""
    try:
        signed = msgspec.msgpack.decode(data, type=_SignedHello)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation("the first message on a control connection was no hello") from error
    if not hmac.compare_digest(signed.proof, _hello_proof(token, challenge, signed.hello)):
        raise ProtocolViolation("a worker of another attempt, or a stranger, called the coordinator; it was refused")
    try:
        version = msgspec.msgpack.decode(signed.hello, type=_VersionOnly).version  # the rest may look different there
        if version != PROTOCOL_VERSION:
            raise ProtocolViolation(
                f"an executor runs another release of tidegate (control protocol {version}, ours {PROTOCOL_VERSION}); "
                "install the same release on the driver and the executors"
            )
        return msgspec.msgpack.decode(signed.hello, type=Hello)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation("the first message on a control connection was a hello that cannot be read") from error


def check_coordinator(token: bytes, challenge: bytes, proof: bytes) -> None:
    if not hmac.compare_digest(proof, prove(token, challenge)):
        raise ProtocolViolation("the coordinator does not know this attempt's token")


def _hello_proof(token: bytes, challenge: bytes, body: bytes) -> bytes:
    return hmac.digest(token, b"tidegate slot" + challenge + body, "sha256")
