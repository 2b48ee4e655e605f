"""The driver's JVM, started with its standard error in our hands. Driver.

Two reasons: Spark and Java greet every start with lines that say nothing about the job, some of them before any logging
setting is read; and what the user's functions print on a local executor comes out there, and must not run through a live
display. Everything that is neither a greeting nor the last cry of a worker whose attempt has ended is passed on, line by
line, to tidegate.console. While Spark starts it is held back: if the start fails, hundreds of lines of Java say less than a
sentence (spark/masters.py), and go into a file.

Leans on `launch_gateway(popen_kwargs=)` and `SparkContext._ensure_initialized(gateway=)` of PySpark.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import IO

from tidegate.console import show_err

_GREETINGS = re.compile(
    r"WARNING: Using incubator modules: "
    r"|Using Spark's default log4j profile: "
    r'|Setting default log level to "'
    r"|To adjust logging level use sc\.setLogLevel"
    r"|\S+ \S+ WARN Utils: Your hostname, .* resolves to a loopback address"
    r"|\S+ \S+ WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address"
    r"|\S+ \S+ WARN NativeCodeLoader: Unable to load native-hadoop library"
)
_TRACEBACK = "Traceback (most recent call last):"
_DAEMON = "pyspark/daemon.py"
MAX_HELD = 10_000  #: lines


class Drawer:
    """Where the JVM's lines go: to the console, or, while Spark starts, in here. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=MAX_HELD)
        self._is_open = False

    def open(self) -> None:
        with self._lock:
            self._lines.clear()
            self._is_open = True

    def close(self) -> None:
        """Spark has started: what it said meanwhile is shown, and all that follows."""
        with self._lock:
            self._is_open = False
            held = "".join(self._lines)
            self._lines.clear()
        if held:
            show_err(held)

    def lines(self) -> list[str]:
        with self._lock:
            return list(self._lines)

    def take(self, line: str) -> None:
        with self._lock:
            if self._is_open:
                self._lines.append(line)
                return
        show_err(line)


drawer = Drawer()  #: one for the process, as its JVM is


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM for the session that is made next, with that session's settings. One that runs already is kept."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    read_end, write_end = os.pipe()
    stream = os.fdopen(read_end, encoding="utf-8", errors="replace")
    reader = threading.Thread(target=_pass_on, args=(stream,), name="tidegate-jvm-output", daemon=True)
    reader.start()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": write_end})
    except BaseException:
        os.close(write_end)
        reader.join(1.0)  # why it did not start stands in what it said
        raise
    os.close(write_end)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def without_noise(lines: Iterable[str]) -> Iterator[str]:
    """Drops greetings, and tracebacks of PySpark's daemon about a pipe that its JVM has closed: every restart has them."""
    held: list[str] = []  #: a traceback, until its last line says whether it matters
    for line in lines:
        if line.startswith(_TRACEBACK):
            yield from held
            held = [line]
        elif held and line.startswith(" "):
            held.append(line)
        elif held:
            if not (line.startswith("BrokenPipeError") and any(_DAEMON in frame for frame in held)):
                yield from (*held, line)
            held = []
        elif not _GREETINGS.match(line):
            yield line
    yield from held


def _pass_on(stream: IO[str]) -> None:
    with stream:
        for line in without_noise(stream):
            drawer.take(line if line.endswith("\n") else line + "\n")
