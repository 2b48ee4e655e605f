"""The network that the other tests of this folder cut does what it says: cut is cut, one way is one way, and slow is slow."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from hosts.network import Network, network, ways

PATIENCE_S = 20.0
SHORT_S = 0.3  #: how long nothing has to come where nothing may


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(["a", "b", "c"], wired=["c"]) as made:
        yield made


@pytest.fixture(autouse=True)
def as_new(net: Network) -> Iterator[None]:
    yield
    net.as_new()


@contextlib.contextmanager
def mailbox(net: Network, host: str) -> Iterator[socket.socket]:
    with net[host].inside():
        box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with box:
        box.bind((net[host].address, 7))
        box.settimeout(PATIENCE_S)
        yield box


def arrives(net: Network, one: str, other: str) -> bool:
    """Whether a datagram does. It is sent again until it comes, or `SHORT_S` have passed."""
    with mailbox(net, one) as sender, mailbox(net, other) as box:
        box.settimeout(0.02)
        deadline = time.monotonic() + SHORT_S
        while time.monotonic() < deadline:
            sender.sendto(b"x", (net[other].address, 7))
            with contextlib.suppress(TimeoutError):
                return box.recv(1) == b"x"
    return False


def comes_back(net: Network, one: str, other: str) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if arrives(net, one, other):
            return True
    return False


def test_a_way_that_is_cut_is_cut_and_no_other(net: Network) -> None:
    assert comes_back(net, "a", "b")

    net.cut(ways(["a"], ["b"], "there"))

    assert not arrives(net, "a", "b")
    assert arrives(net, "b", "a")
    assert arrives(net, "a", "c")
    net.cut(ways(["a"], ["b"]))
    assert not arrives(net, "b", "a")
    net.heal(ways(["a"], ["b"], "there"))
    assert arrives(net, "a", "b")
    assert not arrives(net, "b", "a")
    net.heal()
    assert arrives(net, "b", "a")


def test_an_open_connection_hears_nothing_of_a_cut_and_goes_on_after_it(net: Network) -> None:
    with connected(net, "a", "b") as (near, far):
        net.cut(ways(["a"], ["b"]))
        near.sendall(b"said while it was cut")
        far.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            far.recv(100)

        net.heal()

        far.settimeout(PATIENCE_S)
        assert far.recv(100) == b"said while it was cut"


@contextlib.contextmanager
def connected(net: Network, one: str, other: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    with net[other].inside(), socket.create_server((net[other].address, 0)) as listening:
        port = listening.getsockname()[1]
        with net[one].inside():
            near = socket.create_connection((net[other].address, port), PATIENCE_S)
        with near:
            far, _ = listening.accept()
            with far:
                yield near, far


def test_an_unplugged_host_is_alone_until_it_is_plugged_in(net: Network) -> None:
    net.unplug("b")
    assert not arrives(net, "a", "b")

    net.plug_in("b")

    assert comes_back(net, "a", "b")


def test_there_is_no_way_out(net: Network) -> None:
    with net["a"].inside(), pytest.raises(OSError, match="unreachable"):
        socket.create_connection(("192.0.2.1", 80), PATIENCE_S)


def test_a_wire_delays_and_reorders(net: Network) -> None:
    assert comes_back(net, "a", "c")
    net.slow_down(ways(["a"], ["c"]), delay_ms=60, jitter_ms=60)
    with mailbox(net, "a") as sender, mailbox(net, "c") as box:
        began = time.monotonic()
        for number in range(50):
            sender.sendto(bytes([number]), (net["c"].address, 7))
        came = [box.recv(1)[0]]
        took = time.monotonic() - began
        came += [box.recv(1)[0] for _ in range(49)]

    assert took >= 0.06
    assert sorted(came) == list(range(50))
    assert came != sorted(came)


def test_a_slow_wire_carries_a_connection_whole(net: Network) -> None:
    """Large segments and unfinished checksums too, which is how the kernel hands packets on."""
    net.slow_down(ways(["a"], ["c"]), delay_ms=1, jitter_ms=3)
    text = bytes(range(256)) * 8000
    with connected(net, "a", "c") as (near, far):
        near.settimeout(PATIENCE_S)
        far.setblocking(False)
        sent, got = 0, bytearray()
        near.setblocking(False)
        with selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_WRITE)
            ready.register(far, selectors.EVENT_READ)
            while len(got) < len(text):
                for key, _ in ready.select(PATIENCE_S):
                    if key.fileobj is far:
                        got += far.recv(1 << 16)
                    elif sent < len(text):
                        sent += near.send(text[sent : sent + (1 << 16)])

    assert got == text


@pytest.fixture
def filtering(net: Network) -> None:
    if not net.can_filter():
        pytest.skip("packets cannot be filtered here: there is no nft, or the kernel does not take its rules")


def test_lost_packets_are_lost_one_way(net: Network, filtering: None) -> None:
    net.lose(100, ways(["a"], ["b"], "there"))

    assert not arrives(net, "a", "b")
    assert arrives(net, "b", "a")

    net.lose_nothing()
    assert arrives(net, "a", "b")


def test_an_end_that_is_swallowed_leaves_a_connection_half_open(net: Network, filtering: None) -> None:
    net.swallow_ends(ways(["a"], ["b"]))
    with connected(net, "a", "b") as (near, far):
        near.sendall(b"x")
        assert far.recv(1) == b"x"

        near.close()

        far.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            far.recv(1)
