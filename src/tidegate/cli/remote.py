"""A running job, asked over REST: found by name, id or address. Any machine; needs neither Spark nor the job's program."""

from __future__ import annotations

import functools
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from tidegate.rest import registry
from tidegate.rest.registry import Entry
from tidegate.wire.tls import is_pinned, pinning_context

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
    token: str | None = field(default=None, repr=False)
    fingerprint: str | None = None  #: what its certificate is known by; None: by those whom this machine trusts

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """:raises JobNotFound: when nobody answers. :raises Refused: with the driver's own words."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/v1{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with _opener(self.fingerprint).open(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(_words_of(error), error.code) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise JobNotFound(f"no driver answers at {self.url} ({reason}){_hint(self.url, reason)}") from None


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


def _pinned(fingerprint: str) -> type[http.client.HTTPSConnection]:
    """Connections to the owner of one certificate alone, whoever has signed it and whatever name it bears."""

    class Pinned(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            if not is_pinned(self.sock.getpeercert(binary_form=True), fingerprint):
                self.close()
                raise ConnectionError(
                    "its certificate is not the one that the job's driver has put into the registry folder"
                )

    return Pinned


@functools.cache
def _opener(fingerprint: str | None) -> urllib.request.OpenerDirector:
    """No redirects, and no proxy: drivers are on this machine or in this network, and the token is for them alone."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *arguments: Any) -> None:
            return None

    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), Stay()]
    if fingerprint is not None:
        pinned = _pinned(fingerprint)

        class ByFingerprint(urllib.request.HTTPSHandler):
            def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(pinned, request, context=pinning_context())

        handlers.append(ByFingerprint())
    return urllib.request.build_opener(*handlers)


def _hint(url: str, reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ". If its certificate is yours, name the file in SSL_CERT_FILE"
    if url.startswith("http:") and isinstance(reason, http.client.BadStatusLine | ConnectionResetError):
        return ". If it answers by TLS, its address begins with https://"
    return ""


def _words_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["errors"][0])
    except Exception:
        return f"{error.code} {error.reason}"


def server_at(address: str, token: str | None) -> Server:
    """From what a user writes: host, host:port, or a URL. Of a driver of this user more is known."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    port = parts.port or 8081
    host = parts.hostname or "localhost"
    known = next((e for e in registry.entries() if urlsplit(e.url).port == port and host == "localhost"), None)
    scheme = parts.scheme or (urlsplit(known.url).scheme if known else "http")
    host = f"[{host}]" if ":" in host else host
    token = token or os.environ.get(TOKEN_VARIABLE) or (known.token if known else None)
    return Server(f"{scheme}://{host}:{port}", token, known.fingerprint if known else None)


def _server_of(entry: Entry) -> Server:
    return Server(entry.url, entry.token, entry.fingerprint)


def running_jobs(address: str | None, token: str | None) -> list[tuple[RemoteJob, Entry | None]]:
    """All jobs at an address, or all in the registry folder. :raises JobNotFound: when the address does not answer."""
    if address is not None:
        server = server_at(address, token)
        return [(RemoteJob(server, job["jid"], job["name"]), None) for job in server.ask("/jobs/overview")["jobs"]]
    return [(RemoteJob(_server_of(entry), entry.id, entry.name), entry) for entry in registry.entries()]


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
