"""Which lines of the driver's JVM the user gets to see."""

from __future__ import annotations

import pytest

from tidegate.spark.jvm_output import Drawer, without_noise

GREETINGS = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/15 21:25:26 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead (on eth0)
26/11/15 21:25:26 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/15 21:25:27 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java classes
"""
DAEMON_CRY = """\
Traceback (most recent call last):
  File "/site-packages/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
"""
USERS_TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/job.py", line 3, in send
    pipe.write(b"x")
BrokenPipeError: [Errno 32] Broken pipe
"""


def shown(text: str) -> str:
    return "".join(without_noise(text.splitlines(keepends=True)))


def test_greetings_are_dropped_and_everything_else_is_kept_in_order() -> None:
    text = f"printed by a worker\n{GREETINGS}26/11/15 21:25:28 WARN Utils: Service 'sparkDriver' could not bind\n"

    assert shown(text) == "printed by a worker\n26/11/15 21:25:28 WARN Utils: Service 'sparkDriver' could not bind\n"


def test_only_the_daemon_s_broken_pipe_is_dropped() -> None:
    assert shown(f"before\n{DAEMON_CRY}{USERS_TRACEBACK}{DAEMON_CRY}after\n") == f"before\n{USERS_TRACEBACK}after\n"


def test_a_traceback_that_is_cut_off_is_kept() -> None:
    cut_off = "".join(DAEMON_CRY.splitlines(keepends=True)[:2])

    assert shown(cut_off) == cut_off
    assert shown(cut_off + USERS_TRACEBACK) == cut_off + USERS_TRACEBACK


def test_what_spark_says_while_it_starts_is_held_back_and_shown_when_it_has_started(
    capfd: pytest.CaptureFixture[str],
) -> None:
    drawer = Drawer()
    drawer.open()
    drawer.take("WARN one\n")
    drawer.take("WARN two\n")
    assert (capfd.readouterr().err, drawer.lines()) == ("", ["WARN one\n", "WARN two\n"])

    drawer.close()
    drawer.take("three\n")
    assert (capfd.readouterr().err, drawer.lines()) == ("WARN one\nWARN two\nthree\n", [])
