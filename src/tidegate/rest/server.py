"""The HTTP server of a driver: one thread, one socket, the jobs of this process. Driver.

One server for each set of settings, made with the first job that has them and kept until the process ends: what has finished
can still be looked at, and a notebook's next job is at the same address.
"""

from __future__ import annotations

import atexit
import errno
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn

from tidegate.config import JobConfig
from tidegate.coordinator.observing import JobEvent, StatusChanged
from tidegate.errors import ConfigurationError
from tidegate.rest import registry
from tidegate.rest.app import LOOPBACK_NAMES, make_app
from tidegate.rest.operations import Operations
from tidegate.rest.pages import pages
from tidegate.rest.served import JobTable, ServedJob
from tidegate.storage.store import without_credentials

if TYPE_CHECKING:
    from tidegate.wire.certificates import Certificate

log = logging.getLogger("tidegate.rest")

FIRST_PORT = 8081
PORTS_TRIED = 100  #: from FIRST_PORT on; then any free one
MAX_CONNECTIONS = 200
LINGER_S = 10.0  #: for a client that waits for the result of what ended the job
TOKEN_VARIABLE = "TIDEGATE_REST_TOKEN"


@dataclass(frozen=True, slots=True)
class RestSettings:
    address: str
    port: int | None
    token: str | None = field(repr=False)
    tls: bool = False
    certificate: str | None = None  #: files; None: one is made
    key: str | None = None

    @classmethod
    def of(cls, config: JobConfig) -> RestSettings:
        token = config.rest_token or os.environ.get(TOKEN_VARIABLE) or None
        files = (config.certificate, config.certificate_key) if config.rest_tls else (None, None)
        return cls(config.rest_address, config.rest_port, token, config.rest_tls, *files)


class RestServer:
    """Listens from its making on."""

    def __init__(self, settings: RestSettings) -> None:
        """:raises ConfigurationError: when the address or the port cannot be had."""
        self.jobs = JobTable()
        self.operations = Operations()
        certificate = _certificate(settings)
        self.fingerprint = None if certificate is None else certificate.fingerprint
        self._socket = listen(settings.address, settings.port)
        is_local = is_loopback(self._socket.getsockname()[0])
        self.token = settings.token or (None if is_local else secrets.token_urlsafe(32))
        host = "localhost" if is_local else _reachable(settings.address)
        self.port: int = self._socket.getsockname()[1]
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        app = make_app(self.jobs, self.operations, self.token, pages())
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=5,
            ws="none",
        )
        config.load()
        config.ssl = None if certificate is None else certificate.server_context(ssl.TLSVersion.TLSv1_2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="tidegate-rest", daemon=True)
        self._thread.start()

    def serve(self, job: ServedJob) -> str:
        """Show a job from before its first attempt on, and put it into the registry folder until it ends. Gives the URL."""
        self.jobs.add(job)
        storage = job.config.storage
        entry = registry.Entry(
            id=job.id,
            name=job.name,
            url=self.url,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=job.started_at,
            token=self.token,
            fingerprint=self.fingerprint,
            storage=None if storage is None else without_credentials(storage),
        )
        if registry.add(entry):

            def on(event: JobEvent) -> None:
                if isinstance(event, StatusChanged) and event.status.is_terminal:
                    registry.remove(entry)

            job.view.subscribe(on)
        return self.url

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(2.0)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException:
            log.exception("REST has ended; the job continues without it")


def _certificate(settings: RestSettings) -> Certificate | None:
    """:raises ConfigurationError: when the one that was given cannot be used."""
    if not settings.tls:
        return None
    from tidegate.rest.certificate import kept_certificate
    from tidegate.wire.certificates import given_certificate

    if settings.certificate is not None and settings.key is not None:
        return given_certificate(settings.certificate, settings.key)
    return kept_certificate(_reachable(settings.address))


def listen(address: str, port: int | None) -> socket.socket:
    """A listening socket. :raises ConfigurationError:"""
    candidates = [*range(FIRST_PORT, FIRST_PORT + PORTS_TRIED), 0] if port is None else [port]
    try:
        family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigurationError(f"rest.bind-address: {address} is not an address of this machine: {error}") from error
    for candidate in candidates:
        # With the protocol named, asyncio sends at once (TCP_NODELAY); else each answer waits 40 ms for an acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            # A port that a driver has just left may be taken at once; one that is in use is refused all the same.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((place[0], candidate, *place[2:]))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or candidate == candidates[-1]:
                raise ConfigurationError(
                    f"REST cannot listen on {address}:{candidate}: {error.strerror}. Give another rest.port (0: any free one) "
                    "or rest.bind-address, or tidegate.rest.enabled=false"
                ) from error
    raise AssertionError("the last candidate returns or raises")


def is_loopback(address: str) -> bool:
    return address in LOOPBACK_NAMES or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _reachable(address: str) -> str:
    """A name that others can use, where the server listens on every address."""
    return socket.gethostname() if address in ("", "0.0.0.0", "::") else address


# -- one process -------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_servers: dict[RestSettings, RestServer] = {}


def server_for(settings: RestSettings) -> RestServer:
    """This process's server with these settings. :raises ConfigurationError:"""
    with _lock:
        server = _servers.get(settings)
        if server is None:
            if not _servers:
                atexit.register(_at_exit)
            server = _servers[settings] = RestServer(settings)
        return server


def _at_exit() -> None:
    for server in _servers.values():
        server.operations.wait_until_fetched(LINGER_S)
        server.close()
