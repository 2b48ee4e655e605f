"""Hosts on this machine: network namespaces with addresses of their own, joined by a router, without a way out.

    driver    worker-1    worker-2    kafka    s3   ...      a namespace each: eth0 has 10.77.<n>.2, and there is no other
      |           |           |         |       |            veth pairs; with a `wire` (wire.py) between the two where asked for
    ===================== router ======================      a namespace that forwards, and drops what is cut. It has no uplink

What a thread opens or starts within `host.inside()` is on that host, for as long as it lives. Files are shared by all.
Needs Linux, the right to make namespaces (root) and `ip` of iproute2; `nft` only where packets are to be lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from services import had

CLONE_NEWNET = 0x40000000
PREFIX = "tidegate-"
RULES = 100  #: preference of the router's rules: before its own routes
ALL = "10.77.0.0/16"


class NoNamespaces(Exception):
    """This machine, or this user, cannot make them."""


@dataclass(frozen=True)
class Way:
    """From one host to another: packets the other way are not meant."""

    sender: str
    receiver: str


def ways(one: Iterable[str], other: Iterable[str], direction: str = "both") -> frozenset[Way]:
    """Between two groups of hosts. `direction`: "both", "there" (from the first group) or "back"."""
    there = {Way(a, b) for a in one for b in other if a != b}
    back = {Way(way.receiver, way.sender) for way in there}
    return frozenset({"both": there | back, "there": there, "back": back}[direction])


@dataclass
class Host:
    name: str
    address: str
    namespace: str

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is on the host: what it opens and starts, threads too, stays there."""
        with open("/proc/thread-self/ns/net") as home:
            with open(f"/run/netns/{self.namespace}") as there:
                _move_to(there.fileno())
            try:
                yield
            finally:
                _move_to(home.fileno())


@dataclass
class Network:
    """Made by `network`."""

    hosts: dict[str, Host]
    router: str
    cut_ways: set[Way] = field(default_factory=set)
    _wires: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _loses: bool = False

    def __getitem__(self, host: str) -> Host:
        return self.hosts[host]

    def cut(self, some: Iterable[Way]) -> None:
        """Packets that go these ways vanish: nobody is told."""
        new = sorted(set(some) - self.cut_ways, key=str)
        self._rules("add", new)
        self.cut_ways.update(new)

    def heal(self, some: Iterable[Way] | None = None) -> None:
        """None: all that is cut."""
        healed = sorted(self.cut_ways if some is None else self.cut_ways.intersection(some), key=str)
        self._rules("del", healed)
        self.cut_ways.difference_update(healed)

    def _rules(self, verb: str, some: Sequence[Way]) -> None:
        lines = [
            f"rule {verb} pref {RULES} from {self[way.sender].address} to {self[way.receiver].address} blackhole\n"
            for way in some
        ]
        _run(["ip", "-n", self.router, "-batch", "-"], "".join(lines))

    def unplug(self, host: str) -> None:
        """Its cable: the host itself sees that it has no carrier."""
        _ip(self.router, f"link set {_plug(host)} down")

    def plug_in(self, host: str) -> None:
        _ip(self.router, f"link set {_plug(host)} up")

    def lose(self, percent: int, some: Iterable[Way]) -> None:
        """So many of the packets that go these ways, at random. Needs `nft`."""
        which = "" if percent == 100 else f"numgen random mod 100 < {percent}"
        self._filter(
            [
                f"ip saddr {self[way.sender].address} ip daddr {self[way.receiver].address} {which} drop"
                for way in sorted(some, key=str)
            ]
        )

    def lose_nothing(self) -> None:
        self._filter([])

    def swallow_ends(self, some: Iterable[Way]) -> None:
        """No end of a connection comes through that way: who is left believes that it is open."""
        self._filter(
            [
                f"ip saddr {self[way.sender].address} ip daddr {self[way.receiver].address} "
                "tcp flags & (fin | rst) != 0 drop"
                for way in sorted(some, key=str)
            ]
        )

    def can_filter(self) -> bool:
        """Whether packets can be lost here: there is `nft`, and the kernel takes its rules."""
        try:
            _run(["ip", "netns", "exec", self.router, "nft", "list", "tables"])
        except AssertionError:
            return False
        return True

    def _filter(self, rules: Sequence[str]) -> None:
        if not rules and not self._loses:
            return
        begin = "delete table ip faults\n" if self._loses else ""
        lines = ["table ip faults {", "chain passing {", "type filter hook forward priority 0", *rules, "}", "}", ""]
        _run(["ip", "netns", "exec", self.router, "nft", "-f", "-"], begin + ("\n".join(lines) if rules else ""))
        self._loses = bool(rules)

    def slow_down(self, some: Iterable[Way], delay_ms: float, jitter_ms: float) -> None:
        """What passes the wires of these hosts takes so long, and up to `jitter_ms` more, each packet for itself: they overtake
        each other. Both ways, and to everywhere: it is the cable that is slow."""
        ends = {host for way in some for host in (way.sender, way.receiver)}
        for host in ends.intersection(self._wires):
            self._tell(host, delay_ms, jitter_ms)

    def speed_up(self) -> None:
        for host in self._wires:
            self._tell(host, 0, 0)

    def _tell(self, host: str, delay_ms: float, jitter_ms: float) -> None:
        wire = self._wires[host]
        assert wire.stdin is not None
        assert wire.stdout is not None
        wire.stdin.write(json.dumps({"delay_ms": delay_ms, "jitter_ms": jitter_ms}) + "\n")
        wire.stdin.flush()
        assert wire.stdout.readline() == "so\n", f"the wire of {host} has ended"

    def as_new(self) -> None:
        """Nothing is cut, lost or slow any more."""
        self.heal()
        self.lose_nothing()
        self.speed_up()
        for host in self.hosts:
            self.plug_in(host)

    def close(self) -> None:
        for wire in self._wires.values():
            wire.kill()
            wire.communicate()
        for host in self.hosts:
            _delete(_wire_of(self.hosts[host].namespace))
            _delete(self.hosts[host].namespace)
        _delete(self.router)


@contextlib.contextmanager
def network(
    names: Sequence[str], wired: Sequence[str] = (), sysctl: Iterable[tuple[str, str]] = ()
) -> Iterator[Network]:
    """Hosts of these names, each with these settings of its kernel; those in `wired` can be made slow. Where there can be none
    the test is skipped, with the reason; in CI it fails."""
    had("network of hosts", NoNamespaces, _try_out)
    _delete_those_of_the_dead()
    own = f"{PREFIX}{os.getpid()}-"
    hosts = {name: Host(name, f"10.77.{number}.2", own + name) for number, name in enumerate(names, 1)}
    made = Network(hosts, f"{own}router")
    try:
        _make(made.router)
        _write(made.router, "net.ipv4.ip_forward", "1")
        for host in hosts.values():
            _connect(made, host, host.name in wired)
            for name, value in sysctl:
                _write(host.namespace, name, value)
        yield made
    finally:
        made.close()


def _connect(made: Network, host: Host, wired: bool) -> None:
    gateway = host.address.removesuffix(".2") + ".1"
    _make(host.namespace)
    if wired:
        wire = _wire_of(host.namespace)
        _make(wire)
        _ip(made.router, f"link add name {_plug(host.name)} type veth peer name a netns {wire}")
        _ip(wire, f"link add name b type veth peer name eth0 netns {host.namespace}")
        for end in "ab":
            _ip(wire, f"link set dev {end} up")
        made._wires[host.name] = subprocess.Popen(
            ["ip", "netns", "exec", wire, sys.executable, str(Path(__file__).with_name("wire.py")), "a", "b"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    else:
        _ip(made.router, f"link add name {_plug(host.name)} type veth peer name eth0 netns {host.namespace}")
    _ip(made.router, f"addr add {gateway}/24 dev {_plug(host.name)}")
    _ip(made.router, f"link set {_plug(host.name)} up")
    _ip(host.namespace, f"addr add {host.address}/24 dev eth0")
    _ip(host.namespace, "link set eth0 up")
    _ip(host.namespace, f"route add {ALL} via {gateway}")


def _try_out() -> None:
    """:raises NoNamespaces:"""
    name = f"{PREFIX}{os.getpid()}-try"
    try:
        _make(name)
    except FileNotFoundError:
        raise NoNamespaces("there is no `ip` (iproute2)") from None
    except AssertionError as error:
        raise NoNamespaces(str(error)) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            _delete(name)


def _delete_those_of_the_dead() -> None:
    """Tests that were killed could not."""
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for line in found.splitlines():
        name = line.split()[0]
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not psutil.pid_exists(int(owner)):
            _delete(name)


def _plug(host: str) -> str:
    """The router's end of the host's cable."""
    return f"to-{host}"[:15]


def _wire_of(namespace: str) -> str:
    return f"{namespace}-wire"


def _make(namespace: str) -> None:
    _run(["ip", "netns", "add", namespace])
    _ip(namespace, "link set lo up")


def _delete(namespace: str) -> None:
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _ip(namespace: str, words: str) -> None:
    _run(["ip", "-n", namespace, *words.split()])


def _write(namespace: str, sysctl: str, value: str) -> None:
    _run(["ip", "netns", "exec", namespace, "tee", f"/proc/sys/{sysctl.replace('.', '/')}"], value)


def _run(command: Sequence[str], text: str | None = None) -> None:
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}: {ran.stderr.strip()}"


_libc = ctypes.CDLL(None, use_errno=True)


def _move_to(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this thread cannot change its network namespace: {os.strerror(number)}")
