"""Is Spark's master there? Asked before the JVM starts, which needs a minute and hundreds of lines to say no. Driver."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from urllib.parse import urlsplit

from tidegate.errors import ConfigurationError, SparkUnavailable
from tidegate.shown import first_line
from tidegate.spark.resource_manager import resource_managers

CONNECT_S = 3.0
STANDALONE = "spark://"
YARN = "yarn"
_REASON = "Reason: "  #: with which Spark says why an application was killed
WAY_OUT = "another is named with --master, tidegate.master or StreamEnvironment(master=...); without one jobs run here"


def check_master(master: str, timeout_s: float = CONNECT_S) -> None:
    """That one of a standalone cluster's masters, or of YARN's resource managers, takes a connection. To Kubernetes only Spark
    knows the way.

    :raises ConfigurationError: for an address that cannot be one. :raises SparkUnavailable: when none of them answers.
    """
    if master.startswith(STANDALONE):
        _check_answer(f"Spark master answers at {master}", master, addresses(master), timeout_s)
    elif master == YARN:
        _check_answer("resource manager of YARN answers", master, resource_managers(os.environ), timeout_s)


def _check_answer(who: str, master: str, asked: list[tuple[str, int]], timeout_s: float) -> None:
    tried = []
    for host, port in asked:
        try:
            socket.create_connection((host, port), timeout_s).close()
            return
        except OSError as error:
            reason = f"nothing answered within {timeout_s:g} s" if isinstance(error, TimeoutError) else error.strerror
            tried.append(f"{host}:{port}: {reason or error}")
    if tried:
        raise SparkUnavailable(
            f"no {who} ({'; '.join(tried)}). Check that it runs, and that this machine can reach it; {WAY_OUT}.",
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


def did_not_start(master: str, error: Exception, said: Sequence[str] = ()) -> SparkUnavailable:
    """Spark's or Java's own failure in a sentence. All that the JVM has said goes into a file."""
    java = getattr(error, "java_exception", None)
    reasons = [line.partition(_REASON)[2].strip() for line in said if _REASON in line]
    reason = reasons[-1] if reasons else first_line(error) if java is None else str(java).splitlines()[0]
    message = f"Spark did not start on {master}: {reason.rstrip('.!')}."
    if "JAVA_GATEWAY_EXITED" in reason:
        message += " Is Java 17 or newer there (JAVA_HOME, or java in PATH)?"
    elif master.startswith(STANDALONE):
        message += (
            " Something takes connections there, but not as a master: is it its port, and not that of its web page?"
        )
    return SparkUnavailable(message + _kept(said), master=master)


def _kept(said: Sequence[str]) -> str:
    if not said:
        return ""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="tidegate-spark-", suffix=".log", delete=False) as file:
            file.writelines(said)
    except OSError:
        return ""
    return f" What it said itself is in {file.name}"
