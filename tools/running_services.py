"""Services to try the connectors with by hand: `make services` starts PostgreSQL, MariaDB and Kafka, `make services-stop` stops
them. Both can be run again at any time.

On loopback, with their data in `.services` of the project (when started as root, in a folder of /tmp that the servers' user
can read). Tests start services of their own, unless the environment names running ones: the lines that `make services`
prints do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

import kafka_broker  # noqa: E402
from databases.servers import DatabaseServer, MariaDb, Postgres  # noqa: E402
from services import KAFKA, MYSQL, POSTGRES  # noqa: E402

KINDS: dict[str, type[DatabaseServer]] = {"postgres": Postgres, "mariadb": MariaDb}
VARIABLES = {"postgres": POSTGRES, "mariadb": MYSQL, "kafka": KAFKA}
STOP_S = 30.0


def folder() -> Path:
    """PostgreSQL runs as another user than root, who may not see the project."""
    if os.geteuid() == 0:
        place = Path(tempfile.gettempdir()) / f"tidegate-services-{ROOT.name}"
    else:
        place = ROOT / ".services"
    place.mkdir(exist_ok=True)
    return place


def notes() -> Path:
    """Port and process of each database server that was ever started here."""
    return folder() / "running.json"


def known() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(notes().read_text()) if notes().exists() else {}
    return found


def is_server(pid: int, name: str) -> bool:
    try:
        process = psutil.Process(pid)
        return name in process.name() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start() -> None:
    told = known()
    addresses = {}
    for name, kind in KINDS.items():
        before = told.get(name, {})
        server = kind(folder() / name, before.get("port"), durable=True)
        if not is_server(before.get("pid", 0), name):
            server.start()
            told[name] = {"port": server.port, "pid": server.pid}
            notes().write_text(json.dumps(told))
        addresses[name] = server.url
    addresses["kafka"] = kafka_broker.start_in(folder() / "kafka")
    for name, address in addresses.items():
        print(f"export {VARIABLES[name]}='{address}'")


def stop() -> None:
    for name, about in known().items():
        if is_server(about["pid"], name):
            psutil.Process(about["pid"]).send_signal(signal.SIGINT if name == "postgres" else signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            while is_server(about["pid"], name) and time.monotonic() < deadline:
                time.sleep(0.1)
            print(f"{name} has stopped")
    if kafka_broker.stop_in(folder() / "kafka"):
        print("kafka has stopped")


if __name__ == "__main__":
    {"start": start, "stop": stop}[sys.argv[1]]()
