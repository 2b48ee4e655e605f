"""The control server ends every connection that it has accepted, those too that nobody has looked at yet."""

from __future__ import annotations

import gc
import socket

from tidegate.coordinator.server import ControlServer
from tidegate.ids import AttemptId, SlotId
from tidegate.wire.control import FromSlot
from tidegate.wire.handshake import Hello


class Nobody:
    """Events of a server that no slot reaches."""

    def connected(self, slot: SlotId, hello: Hello) -> None:
        raise AssertionError(f"slot {slot} was let in")

    def said(self, slot: SlotId, message: FromSlot) -> None:
        raise AssertionError(f"slot {slot} said {message}")

    def lost(self, slot: SlotId, reason: str) -> None:
        raise AssertionError(f"slot {slot} was lost")


def test_a_server_that_closes_ends_the_connections_that_come_at_that_moment() -> None:
    for waiting in range(40):
        server = ControlServer("127.0.0.1", AttemptId(1, 1), b"token" * 8, Nobody())
        callers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(waiting % 8)]
        server.close()
        for caller in callers:
            with caller:
                caller.settimeout(10)
                _read_to_the_end(caller)
    gc.collect()  # a socket that was forgotten warns now, and pytest makes a failure of the warning


def _read_to_the_end(caller: socket.socket) -> None:
    try:
        while caller.recv(1024):
            pass
    except ConnectionError:
        pass
