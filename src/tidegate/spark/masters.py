"""Is Spark's master there? Asked before the JVM starts, which needs a minute and hundreds of lines to say no. Driver."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from tidegate.errors import ConfigurationError, SparkUnavailable
from tidegate.shown import first_line

CONNECT_S = 3.0
STANDALONE = "spark://"
WAY_OUT = "another is named with --master, tidegate.master or StreamEnvironment(master=...); without one jobs run here"


def check_master(master: str, timeout_s: float = CONNECT_S) -> None:
    """That one of a standalone cluster's masters takes a connection. Of others (YARN, Kubernetes) only Spark knows the way.

    :raises ConfigurationError: for an address that cannot be one. :raises SparkUnavailable: when none of them answers.
    """
    if not master.startswith(STANDALONE):
        return
    tried = []
    for host, port in addresses(master):
        try:
            socket.create_connection((host, port), timeout_s).close()
            return
        except OSError as error:
            reason = f"nothing answered within {timeout_s:g} s" if isinstance(error, TimeoutError) else error.strerror
            tried.append(f"{host}:{port}: {reason or error}")
    raise SparkUnavailable(
        f"no Spark master answers at {master} ({'; '.join(tried)}). Check that it runs, and that this machine can reach it; "
        f"{WAY_OUT}.",
        master=master,
    )


def addresses(master: str) -> list[tuple[str, int]]:
    """Of "spark://one:7077,two:7077". :raises ConfigurationError:"""
    found = []
    for part in master.removeprefix(STANDALONE).split(","):
        try:
            parts = urlsplit(f"//{part.strip()}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or port is None:
            raise ConfigurationError(
                f"{master!r} is not the address of a Spark master: write spark://host:7077, or several as "
                "spark://one:7077,two:7077"
            )
        found.append((host, port))
    return found


def did_not_start(master: str, error: Exception) -> SparkUnavailable:
    """Spark's or Java's own failure, by its first line."""
    java = getattr(error, "java_exception", None)
    said = first_line(error) if java is None else str(java).splitlines()[0]
    hint = " Is Java 17 or newer there (JAVA_HOME, or java in PATH)?" if "JAVA_GATEWAY_EXITED" in said else ""
    return SparkUnavailable(f"Spark did not start on {master}: {said}.{hint}", master=master)
