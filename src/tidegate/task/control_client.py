"""The slot's connection to the coordinator. Executor: one thread reads, one sends heartbeats, any thread may send.

A slot that loses its connection has been given up, or will be: the process ends at once, before it touches the outside
again. This is the fence against workers that were frozen and wake up late. The connection is also lost when the coordinator has
confirmed nothing for as long as it would bear the slot's silence: the network between the two may be cut without a word.

Heartbeats say that the process lives, whatever else they cannot say: for one that cannot be made or sent the last one that
could is sent again. A message that cannot be read or handled ends the slot, which says so.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tidegate.wire.control import FromSlot, Heartbeat, ToSlot, decode_to_slot, encode
from tidegate.wire.framing import HEAD, Received, frames_of
from tidegate.wire.handshake import CHALLENGE_BYTES, ControlAddress, Hello, check_coordinator, sign_hello

if TYPE_CHECKING:
    from tidegate.wire.tls import TlsSocket

log = logging.getLogger("tidegate.control")

HEARTBEAT_S = 1.0
CONNECT_TIMEOUT_S = 30.0
SILENCE_S = 30.0


class ControlClient:
    """Implements ports.ControlPort."""

    def __init__(self, address: ControlAddress, hello: Hello, silence_s: float = SILENCE_S) -> None:
        """`silence_s`: a coordinator that has not even confirmed what it was sent for so long is lost."""
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._received = Received()
        self._closing = threading.Event()
        self._socket = socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _give_up_after(self._socket, silence_s)
        try:
            self._stream = _encrypted(self._socket, address)
            challenge = self._read(CHALLENGE_BYTES)
            self._write(sign_hello(address.token, challenge, hello))
            check_coordinator(address.token, hello.challenge, self._read_message())
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)

    def start(
        self,
        on_message: Callable[[ToSlot], None],
        heartbeat: Callable[[], Heartbeat],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure`: nothing can be heard any more. Called from the reading thread; it ends the slot."""
        threading.Thread(
            target=self._listen, args=(on_message, on_failure), name="tidegate-control", daemon=True
        ).start()
        threading.Thread(target=self._beat, args=(heartbeat,), name="tidegate-heartbeat", daemon=True).start()

    def send(self, message: FromSlot) -> None:
        try:
            self._write(encode(message))
        except OSError:
            self._lost()

    def close(self) -> None:
        """The job is over; losing the connection is not news any more."""
        self._closing.set()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the coordinator was quicker

    def _listen(self, on_message: Callable[[ToSlot], None], on_failure: Callable[[BaseException], None]) -> None:
        try:
            while True:
                on_message(decode_to_slot(self._read_message()))
        except OSError:
            self._lost()
        except BaseException as error:
            on_failure(error)

    def _beat(self, heartbeat: Callable[[], Heartbeat]) -> None:
        last = Heartbeat(0, 0, 0, 0, 0)
        said = False
        while not self._closing.wait(HEARTBEAT_S):
            try:
                newest = heartbeat()
                self.send(newest)
                last = newest
            except Exception:
                if not said:
                    said = True  # once: it may come with each heartbeat
                    log.exception("a heartbeat could not be made; the slot continues, its metrics stand still")
                self.send(msgspec.structs.replace(last, logs=[], logs_dropped=0))

    def _lost(self) -> None:
        if not self._closing.is_set():
            sys.stderr.flush()
            os._exit(70)

    def _write(self, body: bytes) -> None:
        for frame in frames_of(body, next(self._numbers)):
            with self._lock:  # for each: a heartbeat need not wait for the end of a large message
                self._stream.sendall(frame)

    def _read_message(self) -> bytes:
        while True:
            head = self._read(HEAD.size)
            message = self._received.message(head, self._read(self._received.length_of(head)))
            if message is not None:
                return message

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self._stream.recv(min(length - len(data), 1 << 20))
            if not part:
                raise ConnectionError("the coordinator closed the connection")
            data += part
        return bytes(data)


def _give_up_after(connection: socket.socket, silence_s: float) -> None:
    """Without it a slot whose network is cut would send into the void, and be at work, for a quarter of an hour. Heartbeats are
    always under way, so there is always something that the other end must confirm. Linux alone has this."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(silence_s * 1000)))


def _encrypted(plain: socket.socket, address: ControlAddress) -> socket.socket | TlsSocket:
    if address.fingerprint is None:
        return plain
    from tidegate.wire.tls import TlsSocket  # only here: most jobs need no TLS in their slots

    return TlsSocket(plain, address.fingerprint)
