"""The slot's connection to the coordinator. Executor: one thread reads, one sends heartbeats, any thread may send.

A slot that loses its connection has been given up, or will be: the process ends at once, before it touches the outside
again. This is the fence against workers that were frozen and wake up late.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Callable

from tidegate.errors import ProtocolViolation
from tidegate.wire.control import MAX_MESSAGE_BYTES, FromSlot, Heartbeat, ToSlot, decode_to_slot, encode
from tidegate.wire.handshake import CHALLENGE_BYTES, Hello, check_coordinator, sign_hello

HEARTBEAT_S = 1.0
CONNECT_TIMEOUT_S = 30.0
_LENGTH = struct.Struct(">I")


class ControlClient:
    """Implements task.ports.ControlPort."""

    def __init__(self, address: tuple[str, int], token: bytes, hello: Hello) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._socket = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = self._read(CHALLENGE_BYTES)
        self._write(sign_hello(token, challenge, hello))
        check_coordinator(token, hello.challenge, self._read_message())
        self._socket.settimeout(None)

    def start(self, on_message: Callable[[ToSlot], None], heartbeat: Callable[[], Heartbeat]) -> None:
        threading.Thread(target=self._listen, args=(on_message,), name="tidegate-control", daemon=True).start()
        threading.Thread(target=self._beat, args=(heartbeat,), name="tidegate-heartbeat", daemon=True).start()

    def send(self, message: FromSlot) -> None:
        try:
            self._write(encode(message))
        except OSError:
            self._lost()

    def close(self) -> None:
        """The job is over; losing the connection is no news any more."""
        self._closing.set()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the coordinator was quicker

    def _listen(self, on_message: Callable[[ToSlot], None]) -> None:
        try:
            while True:
                on_message(decode_to_slot(self._read_message()))
        except (OSError, ProtocolViolation):
            self._lost()

    def _beat(self, heartbeat: Callable[[], Heartbeat]) -> None:
        while not self._closing.wait(HEARTBEAT_S):
            self.send(heartbeat())

    def _lost(self) -> None:
        if not self._closing.is_set():
            sys.stderr.flush()
            os._exit(70)

    def _write(self, body: bytes) -> None:
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def _read_message(self) -> bytes:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolViolation(f"the coordinator announced a message of {length} bytes")
        return self._read(length)

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self._socket.recv(min(length - len(data), 1 << 20))
            if not part:
                raise ConnectionError("the coordinator closed the connection")
            data += part
        return bytes(data)
