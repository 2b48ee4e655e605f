"""Servers to try the connectors with by hand: `make services` starts MariaDB and PostgreSQL, `make services-stop` stops them.

On loopback, with their data in `.services` of the project (when started as root, in a folder of /tmp that the servers' user
can read). Both commands can be run again at any time. Tests start servers of their own.
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
sys.path.insert(0, str(ROOT / "tests"))

from databases.servers import DatabaseServer, MariaDb, Postgres  # noqa: E402

KINDS: dict[str, type[DatabaseServer]] = {"postgres": Postgres, "mariadb": MariaDb}


def folder() -> Path:
    """PostgreSQL runs as another user than root, who may not see the project."""
    if os.geteuid() == 0:
        place = Path(tempfile.gettempdir()) / f"tidegate-services-{ROOT.name}"
    else:
        place = ROOT / ".services"
    place.mkdir(exist_ok=True)
    return place


def notes() -> Path:
    return folder() / "running.json"


def running() -> dict[str, dict[str, int]]:
    """Port and process of each that is there."""
    if not notes().exists():
        return {}
    found: dict[str, dict[str, int]] = json.loads(notes().read_text())
    return {name: told for name, told in found.items() if is_server(told["pid"], name)}


def is_server(pid: int, name: str) -> bool:
    try:
        return name in psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return False


def start() -> None:
    known = json.loads(notes().read_text()) if notes().exists() else {}
    there = running()
    for name, kind in KINDS.items():
        server = kind(folder() / name, known.get(name, {}).get("port"), durable=True)
        if name not in there:
            server.start()
            there[name] = {"port": server.port, "pid": server.pid}
        print(f"{name:10} {server.url_of(password='...')}    (the password is in tests/databases/servers.py)")
    notes().write_text(json.dumps(there))


def stop() -> None:
    for name, told in running().items():
        process = psutil.Process(told["pid"])
        process.send_signal(signal.SIGINT if name == "postgres" else signal.SIGTERM)
        deadline = time.monotonic() + 30
        while is_server(told["pid"], name) and time.monotonic() < deadline:
            time.sleep(0.1)
        print(f"{name} has stopped")


if __name__ == "__main__":
    {"start": start, "stop": stop}[sys.argv[1]]()
