"""What is cut, for how long and when: the cells of docs/faults-tried.md."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hosts.network import Network, Way, ways

DRIVER, MASTER, KAFKA, S3, CLIENT = "driver", "master", "kafka", "s3", "client"
WORKERS = ("worker-1", "worker-2")
HOSTS = (DRIVER, MASTER, *WORKERS, KAFKA, S3, CLIENT)

#: Between whom. "there" is from the first group to the second.
BETWEEN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "driver and executors": ((DRIVER,), WORKERS),
    "driver and one executor": ((DRIVER,), WORKERS[:1]),
    "one executor and the other": (WORKERS[:1], WORKERS[1:]),
    "executors and storage": (WORKERS, (S3,)),
    "driver and storage": ((DRIVER,), (S3,)),
    "executors and Kafka": (WORKERS, (KAFKA,)),
    "driver, executors and master": ((DRIVER, *WORKERS, MASTER), (DRIVER, *WORKERS, MASTER)),
}

#: Where a restart is: a worker is killed for it.
RESTARTING = ("slot.restoring", "slot.restored")
#: Where a checkpoint is, or a restart, by the crash point that lies there, and in which layer the one sits that waits.
STEPS: dict[str, int | None] = {
    "driver.triggered": None,
    "source.before-barrier": 0,
    "slot.aligned": 1,
    "slot.barrier-forwarded": 1,
    "slot.snapshot-taken": 1,
    "slot.before-store": 1,
    "slot.before-ack": 2,
    "slot.after-ack": 2,
    "driver.before-metadata": None,
    "driver.before-log": None,
    "driver.after-log": None,
    "driver.before-notify": None,
    "driver.notified": None,
    "slot.before-commit": 2,
    "slot.after-commit": 2,
    "slot.restoring": 1,
    "slot.restored": 1,
}

Some = frozenset[Way]

DEAF_S = 15.0


def cut_and_swallow_ends(net: Network, some: Some) -> None:
    net.swallow_ends(some)
    net.cut(some)


def heal_and_hear_ends_later(net: Network) -> None:
    """Who has given a connection up cannot say so when the network is back: the other end has it open."""
    net.heal()
    _let_pass(DEAF_S)
    net.lose_nothing()


#: What is done to these ways, and how it is ended.
WHAT: dict[str, tuple[Callable[[Network, Some], None], Callable[[Network], None]]] = {
    "cut": (Network.cut, Network.heal),
    "cut, then deaf": (cut_and_swallow_ends, heal_and_hear_ends_later),
    "20 % lost": (lambda net, some: net.lose(20, some), Network.lose_nothing),
    "slow, out of order": (lambda net, some: net.slow_down(some, delay_ms=30, jitter_ms=60), Network.speed_up),
}

#: (seconds of trouble, seconds without), one after the other.
HOW = {
    "2 s": [(2.0, 0.0)],
    "5 s": [(5.0, 0.0)],
    "20 s": [(20.0, 0.0)],
    "60 s": [(60.0, 0.0)],
    "flapping": [(1.0, 0.7)] * 9 + [(1.0, 0.0)],
}


@dataclass(frozen=True)
class Setting:
    """In place of a default."""

    config: tuple[tuple[str, Any], ...] = ()  #: of the job
    sysctl: tuple[tuple[str, str], ...] = ()  #: of each host


SETTINGS = {
    "": Setting(),
    "checkpoint timeout 10 s": Setting(config=(("timeout_s", 10.0),)),
    "net.ipv4.tcp_retries2=3": Setting(sysctl=(("net.ipv4.tcp_retries2", "3"),)),
    "net.ipv4.tcp_rto_max_ms=2000": Setting(sysctl=(("net.ipv4.tcp_rto_max_ms", "2000"),)),
}


@dataclass(frozen=True)
class Cell:
    """One line of the page."""

    between: str  #: a name of BETWEEN
    direction: str = "both"  #: "there", "back"
    how: str = "5 s"  #: a name of HOW
    step: str = ""  #: a name of STEPS; "": at any moment
    what: str = "cut"  #: a name of WHAT
    settings: str = ""  #: a name of SETTINGS

    @property
    def id(self) -> str:
        words = [self.what, self.between, self.direction, self.how, self.step, self.settings]
        return re.sub(r"[ ,%]+", "_", "-".join(filter(None, words)))

    def __str__(self) -> str:
        return self.id

    def carry_out(self, network: Network, has_begun: Callable[[], None]) -> None:
        """The network is whole again after it. `has_begun` is called when the first trouble has been made."""
        some = ways(*BETWEEN[self.between], self.direction)
        begin, end = WHAT[self.what]
        for number, (trouble_s, whole_s) in enumerate(HOW[self.how]):
            begin(network, some)
            if number == 0:
                has_begun()
            _let_pass(trouble_s)
            end(network)
            _let_pass(whole_s)


def _let_pass(seconds: float) -> None:
    """How long a cut lasts is what is tried, so time it is; what happens then is waited for."""
    time.sleep(seconds)


AT_ANY_MOMENT = [
    Cell(between, direction, how)
    for how in ("5 s", "flapping", "60 s")
    for between in BETWEEN
    for direction in ("both", "there", "back")
    if direction == "both" or between != "driver, executors and master"
]
IN_A_STEP = [
    Cell(between, "both", "2 s", step)
    for between in ("driver and executors", "executors and storage", "driver and storage", "executors and Kafka")
    for step in STEPS
]
DEAF = [Cell("driver and executors", how="60 s", what="cut, then deaf")]
LOSSY = [
    Cell(between, "both", "20 s", what="20 % lost")
    for between in (
        "driver and executors",
        "one executor and the other",
        "executors and storage",
        "executors and Kafka",
    )
]
SLOW = [Cell("driver and executors", "both", "20 s", what="slow, out of order")]  #: needs workers with wires
SHORTENED = [
    Cell("one executor and the other", how="20 s", settings="net.ipv4.tcp_retries2=3"),
    Cell("one executor and the other", how="60 s", settings="net.ipv4.tcp_rto_max_ms=2000"),
    Cell("driver and executors", how="60 s", settings="net.ipv4.tcp_rto_max_ms=2000"),
    Cell("one executor and the other", how="60 s", settings="checkpoint timeout 10 s"),
]
CELLS = [*AT_ANY_MOMENT, *DEAF, *IN_A_STEP, *LOSSY, *SLOW, *SHORTENED]
