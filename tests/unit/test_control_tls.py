"""The control connection of a job that encrypts: nothing in the clear, nobody else at either end, and the server stays up."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from control_kit import DEADLINE_S, TOKEN, Driver, address_of, connection, hello

from tidegate.coordinator import server as server_module
from tidegate.coordinator.server import ControlServer
from tidegate.errors import ProtocolViolation
from tidegate.ids import AttemptId, AttemptNumber, Generation, SlotId
from tidegate.task.control_client import ControlClient
from tidegate.wire.certificates import Certificate, made_certificate
from tidegate.wire.control import Heartbeat, ToDriver, ToSlot
from tidegate.wire.control import Start as Order
from tidegate.wire.handshake import ControlAddress
from tidegate.wire.tls import pinning_context

MARKER = b"a record that nobody else may read"


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return made_certificate(["tidegate"])


@contextlib.contextmanager
def control_server(certificate: Certificate | None) -> Iterator[tuple[ControlServer, Driver]]:
    driver = Driver()
    attempt = AttemptId(Generation(1), AttemptNumber(1))
    server = ControlServer("127.0.0.1", attempt, TOKEN, driver, certificate)
    try:
        yield server, driver
    finally:
        server.close()


@dataclass
class Tap:
    """Stands between two ends and keeps what passes."""

    to: int
    passed: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        caller, _ = self._listening.accept()
        called = socket.create_connection(("127.0.0.1", self.to))
        back = threading.Thread(target=self._pass_on, args=(called, caller), daemon=True)
        back.start()
        self._pass_on(caller, called)
        back.join(DEADLINE_S)
        caller.close()
        called.close()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 16):
                self.passed += part
                sink.sendall(part)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._threads[0].join(DEADLINE_S)
        self._listening.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_slot_and_driver_say_can_be_read_on_its_way_only_where_it_is_not_encrypted(
    encrypted: bool, certificate: Certificate
) -> None:
    shown = certificate if encrypted else None
    heard = threading.Event()
    with control_server(shown) as (server, driver):
        tap = Tap(server.port)
        told = address_of(server, shown)
        client = ControlClient(ControlAddress(told.host, tap.port, told.token, told.fingerprint), hello())
        client.start(lambda message: heard.set(), lambda: Heartbeat(0, 0, 0, 0, 0), lambda error: None)
        client.send(ToDriver("printed", 0, "print", MARKER))
        driver.wait_for(lambda: any(isinstance(each, ToDriver) for each in driver.messages))
        server.send(SlotId(0, 0), Order(1, [], []))
        assert heard.wait(DEADLINE_S)
        client.close()
    client._socket.close()
    tap.close()

    assert (MARKER in tap.passed) is not encrypted
    assert TOKEN not in tap.passed


def test_messages_of_many_pieces_and_heartbeats_pass_each_other_in_both_directions(
    monkeypatch: pytest.MonkeyPatch, certificate: Certificate
) -> None:
    got: list[ToSlot] = []
    large = bytes(range(256)) * 80_000  # 20 MB
    with connection(monkeypatch, lambda: Heartbeat(1, 2, 3, 4, 5), on_message=got.append, certificate=certificate) as (
        driver,
        server,
        client,
    ):
        threads = [
            threading.Thread(target=client.send, args=(ToDriver("sink", subtask, "t", large),)) for subtask in range(2)
        ]
        for thread in threads:
            thread.start()
        for _ in range(200):
            server.send(SlotId(0, 0), Order(1, [], []))
        for thread in threads:
            thread.join(DEADLINE_S)
        driver.wait_for(lambda: sum(isinstance(each, ToDriver) for each in driver.messages) == 2)
        driver.wait_for(lambda: len(driver.heartbeats()) > 3)
        deadline = time.monotonic() + DEADLINE_S
        while len(got) < 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    assert [each.payload == large for each in driver.messages if isinstance(each, ToDriver)] == [True, True]


def speak_plainly(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
        caller.settimeout(DEADLINE_S)
        with contextlib.suppress(ConnectionError):
            while caller.recv(1024):
                pass


def speak_an_old_tls(port: int) -> None:
    context = pinning_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", port)) as caller, pytest.raises(OSError):
        context.wrap_socket(caller)


@pytest.mark.parametrize("speak", [speak_plainly, speak_an_old_tls])
def test_who_does_not_speak_tls_is_refused_in_words_and_the_server_stays_up(
    speak: Callable[[int], None], certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    with control_server(certificate) as (server, driver):
        speak(server.port)
        deadline = time.monotonic() + DEADLINE_S
        while not caplog.messages:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "a control connection was refused: it does not speak TLS as this attempt does" in caplog.text
        client = ControlClient(address_of(server, certificate), hello())
        client.send(Heartbeat(1, 2, 3, 4, 5))
        driver.wait_for(lambda: bool(driver.heartbeats()))
        client.close()
        client._socket.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_says_nothing_is_forgotten(
    encrypted: bool, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HELLO_TIMEOUT_S", 0.1)
    monkeypatch.setattr(server_module, "CLOSE_TIMEOUT_S", 0.1)
    with control_server(certificate if encrypted else None) as (server, _):
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            silent.settimeout(DEADLINE_S)
            with contextlib.suppress(OSError):
                while silent.recv(1024):
                    pass
        deadline = time.monotonic() + DEADLINE_S
        while server._open:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_slot_says_nothing_to_who_shows_another_certificate(certificate: Certificate) -> None:
    with control_server(made_certificate(["tidegate"])) as (server, driver):
        with pytest.raises(ProtocolViolation, match=r"127\.0\.0\.1:\d+ shows another certificate than this attempt's"):
            ControlClient(address_of(server, certificate), hello())
        assert driver.messages == []


def test_a_slot_says_nothing_to_who_speaks_no_tls(certificate: Certificate) -> None:
    with (
        control_server(None) as (server, _),
        pytest.raises(ProtocolViolation, match="does not speak TLS as this attempt does"),
    ):
        ControlClient(address_of(server, certificate), hello())


def test_a_slot_that_knows_of_no_certificate_is_refused(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "HELLO_TIMEOUT_S", 0.2)
    with control_server(certificate) as (server, driver), pytest.raises(OSError):
        ControlClient(address_of(server), hello())
    assert driver.messages == []
    assert "a control connection was refused: it has not said within 0.2 s who it is" in caplog.text


def test_a_slot_calls_once_in_an_attempt_also_when_its_connection_is_lost() -> None:
    """Its frames are sealed with keys of its place: a second worker there would use their numbers again."""
    with control_server(None) as (server, driver):
        first = ControlClient(address_of(server), hello())
        first._socket.close()
        driver.wait_for(lambda: "the connection was closed" in driver.messages)
        with pytest.raises(OSError):
            ControlClient(address_of(server), hello())
        other = ControlClient(address_of(server), hello(index=1))
        other.close()
        other._socket.close()


def test_the_token_is_in_no_text(certificate: Certificate) -> None:
    address = ControlAddress("127.0.0.1", 1, b"s3cret-token", certificate.fingerprint)

    assert "s3cret" not in repr(address)
    assert "PRIVATE" not in repr(certificate)
