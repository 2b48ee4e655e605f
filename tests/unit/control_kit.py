"""A slot's real control connection to a real server, in one process; the driver only keeps what it hears."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tidegate.coordinator.server import ControlServer
from tidegate.ids import AttemptId, AttemptNumber, Generation, SlotId
from tidegate.task import control_client
from tidegate.task.control_client import ControlClient
from tidegate.wire.certificates import Certificate
from tidegate.wire.control import PROTOCOL_VERSION, FromSlot, Heartbeat, ToSlot
from tidegate.wire.handshake import ControlAddress, Hello, new_challenge

TOKEN = b"t" * 32
DEADLINE_S = 30.0


@dataclass
class Driver:
    """What the coordinator has heard."""

    messages: list[Any] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def connected(self, slot: SlotId, hello: Hello) -> None:
        pass

    def said(self, slot: SlotId, message: FromSlot) -> None:
        with self.news:
            self.messages.append(message)
            self.news.notify_all()

    def lost(self, slot: SlotId, reason: str) -> None:
        self.said(slot, reason)  # type: ignore[arg-type]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(condition, DEADLINE_S), self.messages[-3:]

    def heartbeats(self) -> list[Heartbeat]:
        return [message for message in self.messages if isinstance(message, Heartbeat)]


def hello(index: int = 0) -> Hello:
    return Hello(PROTOCOL_VERSION, 1, 1, 0, index, 1, "host", new_challenge())


def address_of(server: ControlServer, certificate: Certificate | None = None) -> ControlAddress:
    return ControlAddress("127.0.0.1", server.port, TOKEN, None if certificate is None else certificate.fingerprint)


@contextmanager
def connection(
    monkeypatch: pytest.MonkeyPatch,
    heartbeat: Callable[[], Heartbeat],
    on_message: Callable[[ToSlot], None] = lambda message: None,
    on_failure: Callable[[BaseException], None] = lambda error: None,
    certificate: Certificate | None = None,
) -> Iterator[tuple[Driver, ControlServer, ControlClient]]:
    monkeypatch.setattr(control_client, "HEARTBEAT_S", 0.01)
    driver = Driver()
    server = ControlServer("127.0.0.1", AttemptId(Generation(1), AttemptNumber(1)), TOKEN, driver, certificate)
    client = ControlClient(address_of(server, certificate), hello())
    client.start(on_message, heartbeat, on_failure)
    try:
        yield driver, server, client
    finally:
        client.close()
        server.close()
        client._socket.close()  # as the end of the process does
