"""Real database servers as child processes on loopback, each with a data folder of its own. Used by tests and tools.

Nothing of a server that the machine runs is touched. A server can be killed (SIGKILL, with all of its processes) and started
again on the same data. `ask` uses the server's own command-line client: it shares no code with what is tested.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import psutil

from free_ports import free_port

PATIENCE_S = 60.0
TRANSACTION_TIMEOUT_S = 2  #: a session that does nothing in an open transaction is ended after this
USER = "worker"
PASSWORD = "s3cret/@:% word"  # with all that a URL must escape
DATABASE = "shop"


AnyServer = TypeVar("AnyServer", bound="DatabaseServer")


class ServerMissing(Exception):
    """The machine does not have the server. Says how to get it."""


class DatabaseServer(ABC):
    """One server. Files under `folder`."""

    kind: str
    package: str
    password = PASSWORD  #: of the user in `url`

    def __init__(self, folder: str | Path, port: int | None = None, durable: bool = False) -> None:
        """`durable`: as in production. Else nothing is synced: a killed process loses nothing that it has written."""
        self.durable = durable
        self._idle_s = (
            0 if durable else TRANSACTION_TIMEOUT_S
        )  #: ours must say that they may wait; strict operators set it
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process can ask, but neither start nor kill."""
        return {**self.__dict__, "_process": None}

    @property
    def url(self) -> str:
        return self.url_of()

    def url_of(self, user: str = USER, password: str = PASSWORD, database: str = DATABASE) -> str:
        return f"{self.kind}://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """On its data; makes them when there are none. Returns when it answers."""
        first = not self.data.exists()
        if first:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_data()
        self._launch()
        if first:
            for sql in self._first_statements():
                self.ask(sql, as_admin=True)

    def _launch(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with open(self.log, "ab") as log:
                self._process = subprocess.Popen(
                    self._command(),
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    **_as_user(),
                )
            while self._process.poll() is None:
                if self._answers():
                    return
                if time.monotonic() > deadline:
                    self.kill()
                    raise AssertionError(f"{self.package} does not answer:\n{self.tail()}")
                time.sleep(0.05)
            # Right after a SIGKILL the old processes' memory may still be in use; the server then gives up at once.
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.package} does not start:\n{self.tail()}")
            time.sleep(0.2)

    def kill(self) -> None:
        """As a power cut would: all of its processes at once."""
        if self._process is None:
            return
        processes: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self._process.pid)
            processes = [main, *main.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(PATIENCE_S)
        psutil.wait_procs(processes, timeout=PATIENCE_S)
        self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
            self.kill()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "(no log)"

    # -- the independent client ---------------------------------------------------------------------------------------

    def ask(self, sql: str, *, as_admin: bool = False, database: str | None = None) -> list[tuple[str, ...]]:
        """Run a statement with the server's own client; its rows as text."""
        done = subprocess.run(
            self._client(as_admin, database),
            input=sql.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, **self._client_environment()},
        )
        if done.returncode != 0:
            raise AssertionError(f"{sql}\n{done.stderr.decode()}")
        lines = done.stdout.decode().splitlines()
        return [tuple(line.split("\t")) for line in lines if line]

    @abstractmethod
    def settle(self, name: str, commit: bool) -> None:
        """Commit or roll back a prepared transaction of Tidegate, by hand."""

    @abstractmethod
    def prepare_foreign(self, table: str) -> str:
        """A prepared transaction of somebody else."""

    @abstractmethod
    def settle_foreign(self, name: str) -> None: ...

    @abstractmethod
    def _make_data(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _first_statements(self) -> list[str]: ...

    @abstractmethod
    def _client(self, as_admin: bool, database: str | None) -> list[str]: ...

    def _client_environment(self) -> dict[str, str]:
        return {}

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1", as_admin=True, database=self._admin_database)
        except AssertionError:
            return False
        return True

    _admin_database: str


class Postgres(DatabaseServer):
    kind, package, _admin_database = "postgresql", "postgresql", "postgres"

    def __init__(self, folder: str | Path, port: int | None = None, durable: bool = False, prepared: int = 64) -> None:
        super().__init__(folder, port, durable)
        self._prepared = prepared

    def _make_data(self) -> None:
        _give_away(self.folder)
        _run([_postgres("initdb"), "-D", str(self.data), "-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256",
              "--no-sync", "-E", "UTF8", "--locale=C"], as_user=True)  # fmt: skip

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "port": str(self.port),
            "max_prepared_transactions": str(self._prepared),
            "fsync": "on" if self.durable else "off",
            "idle_in_transaction_session_timeout": f"{self._idle_s}s",
            "max_connections": "200",
            "shared_buffers": "64MB",
        }
        return [_postgres("postgres"), "-D", str(self.data), *(f"--{name}={value}" for name, value in settings.items())]

    def _first_statements(self) -> list[str]:
        return [f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'", f"CREATE DATABASE {DATABASE} OWNER {USER}"]

    def settle(self, name: str, commit: bool) -> None:
        self.ask(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{name}'")

    def prepare_foreign(self, table: str) -> str:
        self.ask(f"BEGIN; INSERT INTO {table} (id) VALUES (99); PREPARE TRANSACTION 'somebody:{table}'")
        return f"somebody:{table}"

    def settle_foreign(self, name: str) -> None:
        self.ask(f"ROLLBACK PREPARED '{name}'")

    def _client(self, as_admin: bool, database: str | None) -> list[str]:
        user = "postgres" if as_admin else USER
        name = database or (self._admin_database if as_admin else DATABASE)
        return [*_psql(), "-h", str(self.folder), "-p", str(self.port), "-U", user, "-d", name]


class MariaDb(DatabaseServer):
    kind, package, _admin_database = "mysql", "mariadb-server-core", "mysql"

    def _make_data(self) -> None:
        _give_away(self.folder)
        _run([_found("mariadb-install-db"), "--no-defaults", f"--datadir={self.data}", "--skip-test-db",
              "--auth-root-authentication-method=normal", "--skip-name-resolve"], as_user=True)  # fmt: skip

    def _command(self) -> list[str]:
        unsynced = [] if self.durable else ["--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"]
        return [_found("mariadbd"), "--no-defaults", f"--datadir={self.data}", f"--port={self.port}",
                "--bind-address=127.0.0.1", f"--socket={self.folder}/socket", "--skip-name-resolve", "--skip-log-bin",
                f"--pid-file={self.folder}/pid", "--innodb-buffer-pool-size=64M",
                f"--idle-transaction-timeout={self._idle_s}", "--max-connections=200", *unsynced]  # fmt: skip

    def _first_statements(self) -> list[str]:
        password = PASSWORD.replace("'", "''")
        return [
            f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4",
            f"CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY '{password}'",
            f"GRANT ALL ON {DATABASE}.* TO {USER}@'127.0.0.1'",
        ]

    def settle(self, name: str, commit: bool) -> None:
        for format_id, gtrid_length, _, data in self.ask("XA RECOVER"):
            if data == name:
                cut = int(gtrid_length)
                self.ask(f"XA {'COMMIT' if commit else 'ROLLBACK'} '{data[:cut]}','{data[cut:]}',{format_id}")

    def prepare_foreign(self, table: str) -> str:
        self.ask(
            f"XA START 'tidegate:x'; INSERT INTO {table} (id) VALUES (99); XA END 'tidegate:x'; XA PREPARE 'tidegate:x'"
        )
        return "tidegate:x"

    def settle_foreign(self, name: str) -> None:
        self.ask(f"XA ROLLBACK '{name}'")

    def _client(self, as_admin: bool, database: str | None) -> list[str]:
        # The worker has no account for the socket; what an independent reader sees does not depend on who it is.
        name = database or (self._admin_database if as_admin else DATABASE)
        return [*_mariadb(), f"--socket={self.folder}/socket", "-u", "root", "-D", name]


# -- servers that somebody else runs ----------------------------------------------------------------------------------


class _Given:
    """A mixin: asked over the network with the user of a URL, and neither started nor killed."""

    def __init__(self, url: str, variable: str) -> None:
        parts = urlsplit(url)
        super().__init__("/nowhere", parts.port or (5432 if parts.scheme == "postgresql" else 3306))  # type: ignore[call-arg]
        self._variable = variable
        self._host = parts.hostname or "127.0.0.1"
        self._user, self.password = unquote(parts.username or ""), unquote(parts.password or "")
        self._database = parts.path.lstrip("/")

    @property
    def url(self) -> str:
        return self.url_of()

    def url_of(self, user: str | None = None, password: str | None = None, database: str | None = None) -> str:
        secret = quote(self.password if password is None else password, safe="")
        place = f"{self._host}:{self.port}/{database or self._database}"  # type: ignore[attr-defined]
        return f"{self.kind}://{user or self._user}:{secret}@{place}"  # type: ignore[attr-defined]

    def kill(self) -> None:
        self._refuse("kills")

    def start(self) -> None:
        self._refuse("starts")

    def _refuse(self, does: str) -> None:
        import pytest

        pytest.skip(f"{self._variable} names a running server, and this test {does} its own")

    def _in_network(self, as_admin: bool) -> list[str]:
        if as_admin:
            self._refuse("administers")
        return [f"--host={self._host}", f"--port={self.port}", f"--user={self._user}"]  # type: ignore[attr-defined]


class GivenPostgres(_Given, Postgres):
    def _client(self, as_admin: bool, database: str | None) -> list[str]:
        return [*_psql(), *self._in_network(as_admin), f"--dbname={database or self._database}"]

    def _client_environment(self) -> dict[str, str]:
        return {"PGPASSWORD": self.password}


class GivenMariaDb(_Given, MariaDb):
    def _client(self, as_admin: bool, database: str | None) -> list[str]:
        return [*_mariadb(), *self._in_network(as_admin), f"--database={database or self._database}"]

    def _client_environment(self) -> dict[str, str]:
        return {"MYSQL_PWD": self.password}


def given(kind: type[DatabaseServer], url: str, variable: str) -> DatabaseServer:
    """The server that an environment variable names."""
    return GivenPostgres(url, variable) if kind is Postgres else GivenMariaDb(url, variable)


@contextlib.contextmanager
def removed_afterwards(server: AnyServer) -> Iterator[AnyServer]:
    """Whatever happens, it is stopped, and its folder is gone."""
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


# -- the machine ------------------------------------------------------------------------------------------------------


def new_folder(name: str) -> Path:
    """Short, because a socket's path may have 107 letters; and open to the user that the server runs as."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidegate-{name}-"))
    folder.chmod(0o755)
    return folder


def _server_user() -> str | None:
    """PostgreSQL refuses to run as root: then as a user that every machine has."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ServerMissing("there is no user to run a database server as: PostgreSQL refuses root")


def _as_user() -> dict[str, Any]:
    user = _server_user()
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _give_away(folder: Path) -> None:
    user = _server_user()
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)


def _run(command: Sequence[str], as_user: bool) -> None:
    done = subprocess.run(
        command, capture_output=True, timeout=PATIENCE_S, check=False, cwd="/", **(_as_user() if as_user else {})
    )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout.decode()}{done.stderr.decode()}")


def _found(program: str) -> str:
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is None:
        raise ServerMissing(
            f"{program} is not installed, and the tests of the database connectors need it: run `sh tools/services.sh` as "
            "root (it uses apt), or install MariaDB and PostgreSQL yourself."
        )
    return path


def _psql() -> list[str]:
    return [_postgres("psql"), "-XqAt", "-F", "\t", "-v", "ON_ERROR_STOP=1"]


def _mariadb() -> list[str]:
    return [_found("mariadb"), "--no-defaults", "-N", "-B"]


def _postgres(program: str) -> str:
    """Debian keeps the server's programs out of the PATH; the newest version is taken."""
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda folder: int(folder.split("/")[4]), reverse=True)
    for folder in folders:
        if os.access(f"{folder}/{program}", os.X_OK):
            return f"{folder}/{program}"
    return _found(program)
