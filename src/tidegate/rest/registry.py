"""The registry folder: one small file for each running job of this user, so that the command line finds it. Driver and CLI.

    ~/.local/state/tidegate/jobs/<job id>-<pid>.json        or under TIDEGATE_REGISTRY, or XDG_STATE_HOME

A file holds the address of the job's REST, its token and what its certificate is known by, so folder and files are for their
owner alone. It is written before the first attempt and removed when the job has ended; that of a driver that was killed is
removed by whoever finds it.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import msgspec

log = logging.getLogger("tidegate.rest")


class Entry(msgspec.Struct, frozen=True):
    """A running job."""

    id: str
    name: str
    url: str
    pid: int
    host: str
    started_at: float  # epoch seconds
    token: str | None = None
    storage: str | None = None
    fingerprint: str | None = None  # of the certificate, where the address is an https one

    def __repr__(self) -> str:  # without the token
        return f"Entry(id={self.id!r}, name={self.name!r}, url={self.url!r}, pid={self.pid}, host={self.host!r})"

    @property
    def file_name(self) -> str:
        return f"{self.id}-{self.pid}.json"

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    def may_be_running(self) -> bool:
        """False only where the driver is known to be gone."""
        return not self.is_here or is_alive(self.pid)


def registry_folder() -> Path:
    given = os.environ.get("TIDEGATE_REGISTRY")
    if given:
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tidegate" / "jobs"


def add(entry: Entry) -> bool:
    """False where it cannot be written: the job runs all the same, and is found by its address only."""
    folder = registry_folder()
    path = folder / entry.file_name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(entry))
        draft.replace(path)
    except (OSError, ValueError) as error:
        log.info("the job is not in the registry folder %s (%s): name it by its address", folder, error)
        return False
    return True


def remove(entry: Entry) -> None:
    try:
        (registry_folder() / entry.file_name).unlink(missing_ok=True)
    except OSError as error:
        log.info("the job stays in the registry folder: %s", error)


def entries() -> list[Entry]:
    """The jobs that may be running, the oldest first. Files of drivers that are gone are removed."""
    found = []
    folder = registry_folder()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=Entry)
        except (OSError, msgspec.MsgspecError):
            continue  # being removed, or not ours
        if entry.may_be_running():
            found.append(entry)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda entry: entry.started_at)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
