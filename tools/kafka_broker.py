"""A Kafka broker on this machine: KRaft, one node, on loopback unless told otherwise. For tests and for trying things out.

    python tools/kafka_broker.py start FOLDER     prints the address when it answers; does nothing if it runs already
    python tools/kafka_broker.py stop FOLDER

Its jars are fetched by tools/fetch.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fetch
from free_ports import free_ports

USER, PASSWORD = "tide", "gate"  #: of the listener with a password
START_S = 90.0
STOP_S = 30.0
_SETTINGS = """
node.id=1
process.roles=broker,controller
listeners=PLAIN://{host}:{port},LOGIN://{host}:{login_port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAIN://{host}:{port},LOGIN://{host}:{login_port}
listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT
inter.broker.listener.name=PLAIN
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{host}:{controller_port}
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    user_{user}="{password}";
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
transaction.max.timeout.ms=900000
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=8388608
log.segment.bytes=67108864
"""


def jars() -> Path:
    """The folder with Kafka's jars. :raises NotFetched: when they cannot be had."""
    return fetch.folder_of("kafka")


class Broker:
    """One broker, with its data in `folder`. The ports stay the same over restarts."""

    def __init__(self, folder: str | os.PathLike[str], host: str = "127.0.0.1") -> None:
        self.folder = Path(folder)
        self._host = host
        self._state = self.folder / "broker.json"
        if not self._state.exists():
            self._format()
        known = json.loads(self._state.read_text())
        self.address = f"{host}:{known['port']}"
        self.login_address = f"{host}:{known['login_port']}"
        self._port = known["port"]
        self._process: subprocess.Popen[bytes] | None = None

    def _format(self) -> None:
        data = self.folder / "data"
        if data.exists():
            shutil.rmtree(data)
        data.mkdir(parents=True)
        ports = dict(zip(("port", "login_port", "controller_port"), free_ports(3)))
        settings = _SETTINGS.format(**ports, host=self._host, data=data, user=USER, password=PASSWORD)
        (self.folder / "server.properties").write_text(settings)
        self._run("kafka.tools.StorageTool", "format", "-t", "VGlkZWdhdGVUaWRlZ2F0ZQ", "-c", "server.properties").wait(
            60
        )
        self._state.write_text(json.dumps(ports))

    def _run(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "output.log", "ab") as output:
            return subprocess.Popen(
                [fetch.java(), "-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*",
                 main, *arguments],
                cwd=self.folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def start(self) -> Broker:
        self._process = self._run("kafka.Kafka", "server.properties")
        (self.folder / "pid").write_text(str(self._process.pid))
        deadline = time.monotonic() + START_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka did not start:\n{(self.folder / 'output.log').read_text()[-3000:]}")
            time.sleep(0.1)
        return self

    def answers(self) -> bool:
        """A socket that accepts is not enough: the broker must know its own topics."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            socket.create_connection((self._host, self._port), 1).close()
            admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
            return bool(admin.list_topics(timeout=5).brokers)
        except (OSError, KafkaException):
            return False

    def kill(self) -> None:
        """kill -9: nothing is said to anybody."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        os.kill(self._process.pid, number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def running_pid(folder: Path) -> int | None:
    try:
        pid = int((folder / "pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if b"kafka.Kafka" in command else None


def start_in(folder: Path) -> str:
    """The address of the broker of that folder, which is started unless it runs already."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = Broker(folder)
    if running_pid(folder) is None:
        broker.start()
    return broker.address


def stop_in(folder: Path) -> bool:
    """Whether one was running."""
    pid = running_pid(folder)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while running_pid(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return True


def main(command: str, folder: str = "") -> None:
    if command == "start":
        print(start_in(Path(folder)))
    elif command == "stop":
        stop_in(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
