"""Where a database is and who asks, with the password kept out of every text. Driver and executors.

    postgresql://user:password@host:5432/database          (also postgres://)
    mysql://user:password@host:3306/database               (also mariadb://)

Parts of a URL that hold "@", ":" or "/" are written with %-escapes. A password need not stand in the URL: give the name
of an environment variable instead, which is read on the driver.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidegate import extras
from tidegate.errors import ConfigurationError

POSTGRES, MYSQL = "postgresql", "mysql"
_KINDS = {"postgresql": POSTGRES, "postgres": POSTGRES, "mysql": MYSQL, "mariadb": MYSQL}
_PORTS = {POSTGRES: 5432, MYSQL: 3306}
_EXTRAS = {POSTGRES: extras.POSTGRES, MYSQL: extras.MYSQL}
#: What may follow "?": nothing else is passed on, so nothing else can carry a secret past us.
_OPTIONS = {POSTGRES: ("sslmode", "sslrootcert"), MYSQL: ("ssl_ca",)}


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """One database of one server. `str` and `repr` never show the password."""

    kind: str  #: POSTGRES or MYSQL
    host: str
    port: int
    database: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        return f"{self.kind}://{user}{self.host}:{self.port}/{self.database}"

    def scrub(self, text: str) -> str:
        """A text of the driver or the server, without the password."""
        if not self.password:
            return text
        for secret in (self.password, quote(self.password, safe=""), repr(self.password)[1:-1]):
            text = text.replace(secret, "***")
        return text


def parse_url(text: str, password_env: str | None = None) -> DatabaseUrl:
    """:raises ConfigurationError: when it names no database; the message does not repeat what it cannot take apart."""
    try:
        parts = urlsplit(text)
        kind, port = _KINDS.get(parts.scheme.lower()), parts.port
    except ValueError:
        raise ConfigurationError(
            f"The URL of the database cannot be read. {_form()} Write @, : and / of names and passwords as %40, %3A, %2F."
        ) from None
    if kind is None:
        raise ConfigurationError(
            f"There is no database connector for {parts.scheme or 'a URL without a scheme'}. {_form()}"
        )
    _EXTRAS[kind].check()
    database = unquote(parts.path.lstrip("/"))
    if not parts.hostname or not database or "/" in database:
        raise ConfigurationError(f"The URL of the database needs a host and a database. {_form()}")
    options = tuple(parse_qsl(parts.query))
    if unknown := [name for name, _ in options if name not in _OPTIONS[kind]]:
        raise ConfigurationError(
            f"The URL of the database has options that are not passed on: {', '.join(unknown)}. "
            f"For {kind} there are {', '.join(_OPTIONS[kind])}."
        )
    password = None if parts.password is None else unquote(parts.password)
    if password_env is not None:
        if password is not None:
            raise ConfigurationError("Give the password in the URL or by password_env, not both.")
        password = os.environ.get(password_env)
        if password is None:
            raise ConfigurationError(
                f"The environment variable {password_env}, which holds the password of the database, is not set here."
            )
    return DatabaseUrl(
        kind=kind,
        host=parts.hostname,
        port=port or _PORTS[kind],
        database=database,
        user=None if parts.username is None else unquote(parts.username),
        password=password,
        options=options,
    )


def _form() -> str:
    return "Write postgresql://user:password@host:5432/database or mysql://user:password@host:3306/database."
