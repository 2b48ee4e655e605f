from __future__ import annotations

import socket
import time

import pytest
from connector_kit import HandClock, reader_context

from tidegate.connectors.contract import ReaderContext
from tidegate.connectors.socket import SocketText
from tidegate.errors import ConfigurationError, ConnectorError


class Server:
    """Serves one connection, from the test's own thread: loopback connects before accept is called."""

    def __init__(self, **options):
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.source = SocketText("127.0.0.1", port, **options)
        # Real time here: the selector waits in it. Only a failing test waits as long as a deadline.
        self.reader = self.source.reader(ReaderContext(0, 1, time.monotonic, time.sleep))
        self.reader.add_splits(self.source.discover_splits(1))
        self.peer, _ = self._listener.accept()
        self._listener.close()

    def read(self, count):
        rows = []
        while len(rows) < count:
            got = self.reader.poll(time.monotonic() + 10)
            assert got is not None, f"got only {rows}"
            rows.extend(got)
        return rows

    def close(self):
        self.peer.close()
        self.reader.close()


@pytest.fixture
def serve():
    servers = []

    def start(**options):
        servers.append(Server(**options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_lines_are_cut_at_the_delimiter_wherever_the_packets_end(serve):
    server = serve()
    data = "eins\nzwölf\r\n\n日本語\n".encode()
    for byte in data:
        server.peer.sendall(bytes([byte]))

    assert server.read(4) == ["eins", "zwölf", "", "日本語"]


def test_the_stream_ends_when_the_peer_closes_and_the_rest_is_a_line(serve):
    server = serve()
    server.peer.sendall(b"one\ntwo")
    server.peer.close()

    assert server.read(2) == ["one", "two"]
    assert server.reader.poll(time.monotonic() + 10) is None
    assert [split.finished for split in server.reader.splits()] == [True]


def test_an_open_connection_is_not_finished_and_poll_keeps_to_the_deadline(serve):
    server = serve()
    server.peer.sendall(b"half a li")

    assert server.reader.poll(time.monotonic() + 0.01) is None
    assert [split.finished for split in server.reader.splits()] == [False]
    server.peer.sendall(b"ne\n")
    assert server.read(1) == ["half a line"]


def test_a_delimiter_may_have_several_characters_and_keeps_carriage_returns(serve):
    server = serve(delimiter="||", encoding="latin-1")
    server.peer.sendall("käse\r||brot|".encode("latin-1"))
    server.peer.sendall(b"|wein||")

    assert server.read(3) == ["käse\r", "brot", "wein"]


@pytest.mark.parametrize("data", [b"12345678901\n", b"ok\n123456789012"])
def test_a_line_over_the_limit_is_an_error_that_names_the_limit(serve, data):
    server = serve(max_line_bytes=10)
    server.peer.sendall(data)

    with pytest.raises(ConnectorError, match="max_line_bytes=10"):
        server.read(2)


def test_bytes_that_are_not_of_the_encoding_are_an_error_that_names_the_line(serve):
    server = serve()
    server.peer.sendall(b"fine\n\xff\xfe\n")

    with pytest.raises(ConnectorError, match=r"Line 2 .* not utf-8"):
        server.read(2)


def test_a_refused_connection_says_whom_it_could_not_reach():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    source = SocketText("127.0.0.1", port)
    reader = source.reader(reader_context(HandClock()))

    with pytest.raises(ConnectorError, match=f"cannot connect to 127.0.0.1:{port}"):
        reader.add_splits(source.discover_splits(1))
    assert not any(split.finished for split in reader.splits())


def test_it_says_that_it_cannot_be_replayed():
    source = SocketText("localhost", 9999)
    assert (source.replayable, source.bounded, source.record_type) == (False, False, str)
    assert len(source.discover_splits(8)) == 1


@pytest.mark.parametrize("options", [{"delimiter": ""}, {"encoding": "utf-16"}, {"encoding": "no-such"}])
def test_impossible_settings_are_refused(options):
    with pytest.raises(ConfigurationError):
        SocketText("localhost", 9999, **options)
