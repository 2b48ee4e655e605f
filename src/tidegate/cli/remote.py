"""A running job, asked over REST: found by name, id or address. Any machine; needs neither Spark nor the job's program."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from tidegate.rest import registry
from tidegate.rest.registry import Entry

TIMEOUT_S = 30.0
FIRST_POLL_S, LONGEST_POLL_S = 0.05, 1.0
TOKEN_VARIABLE = "TIDEGATE_REST_TOKEN"


class JobNotFound(Exception):
    """No such job, or its driver does not answer."""


class Refused(Exception):
    """The driver said no, or what was asked for failed."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Server:
    """One driver."""

    url: str
    token: str | None = None

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """:raises JobNotFound: when nobody answers. :raises Refused: with the driver's own words."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/v1{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(_words_of(error), error.code) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise JobNotFound(f"no driver answers at {self.url} ({reason})") from None


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """One job at its driver."""

    server: Server
    id: str
    name: str

    def ask(self, path: str = "", method: str = "GET", body: Any = None) -> Any:
        return self.server.ask(f"/jobs/{self.id}{path}", method, body)

    def operate(
        self, method: str, path: str, results: str, body: Any = None, wait: Callable[[float], None] = time.sleep
    ) -> dict[str, Any]:
        """Trigger something and wait for its end. :raises Refused: when it failed."""
        trigger = self.ask(path, method, body)["request-id"]
        pause = FIRST_POLL_S
        while True:
            answer = self.ask(f"{results}/{trigger}")
            operation: dict[str, Any] | None = answer["operation"]
            if answer["status"]["id"] == "COMPLETED":
                failure = (operation or {}).get("failure-cause") or (operation or {}).get("failureCause")
                if failure:
                    raise Refused(failure["stack-trace"].partition(": ")[2] or failure["stack-trace"])
                return operation or {}
            wait(pause)
            pause = min(pause * 1.5, LONGEST_POLL_S)


def _no_redirects() -> urllib.request.OpenerDirector:
    """No proxy either: drivers are on this machine or in this network, and the token is for them alone."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *arguments: Any) -> None:
            return None

    return urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay())


_OPENER = _no_redirects()


def _words_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["errors"][0])
    except Exception:
        return f"{error.code} {error.reason}"


def server_at(address: str, token: str | None) -> Server:
    """From what a user writes: host, host:port, or a URL."""
    url = address if "://" in address else f"http://{address}"
    parts = urlsplit(url)
    port = parts.port or 8081
    host = parts.hostname or "localhost"
    known = next((e.token for e in registry.entries() if urlsplit(e.url).port == port and host == "localhost"), None)
    host = f"[{host}]" if ":" in host else host
    return Server(f"{parts.scheme}://{host}:{port}", token or os.environ.get(TOKEN_VARIABLE) or known)


def running_jobs(address: str | None, token: str | None) -> list[tuple[RemoteJob, Entry | None]]:
    """All jobs at an address, or all in the registry folder. :raises JobNotFound: when the address does not answer."""
    if address is not None:
        server = server_at(address, token)
        return [(RemoteJob(server, job["jid"], job["name"]), None) for job in server.ask("/jobs/overview")["jobs"]]
    return [(RemoteJob(Server(entry.url, entry.token), entry.id, entry.name), entry) for entry in registry.entries()]


def find_job(name: str | None, address: str | None, token: str | None) -> RemoteJob:
    """By name, by id or its beginning; without one, the only job there is. :raises JobNotFound:"""
    jobs = [job for job, _ in running_jobs(address, token)]
    where = f"at {address}" if address else "on this machine"
    if name is None:
        if len(jobs) == 1:
            return jobs[0]
        if not jobs:
            raise JobNotFound(f"no job is running {where}")
        raise JobNotFound(f"{len(jobs)} jobs are running {where}: say which ({_names(jobs)})")
    found = [job for job in jobs if job.name == name] or [job for job in jobs if job.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if not found:
        hint = f"; running: {_names(jobs)}" if jobs else ", nor is any other"
        raise JobNotFound(f"no job {name!r} is running {where}{hint}. One on another machine: --address HOST:PORT")
    raise JobNotFound(
        f"{len(found)} jobs are called {name!r}: name one by its id ({', '.join(j.id[:8] for j in found)})"
    )


def _names(jobs: list[RemoteJob]) -> str:
    return ", ".join(sorted({job.name for job in jobs}))


def quoted(text: str) -> str:
    return quote(text, safe="")
