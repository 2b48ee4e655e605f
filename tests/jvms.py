"""How tests start JVMs: for a short life. They compile at once and not well, and collect garbage with one thread; Spark's map
their classes from a file (tools/class_archive.py), where there is one.

Much of what a test on Spark costs is a JVM that starts. Processor time of a session and its first small job: 9
to 10 s without the file, 5 s with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
OPTIONS_OF = ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")  #: a driver, and the processes of a cluster
LAUNCHER = "SPARK_LAUNCHER_OPTS"


def of_spark() -> str:
    """Options of a JVM with Spark's jars. What cannot be used of the file is left alone without a word."""
    archive = Path(sys.prefix) / "spark.jsa"
    return f"{QUICK_START} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else QUICK_START


def start_quickly() -> None:
    """Spark's JVMs of this process, and of all that it starts."""
    for name in OPTIONS_OF:
        os.environ.setdefault(name, of_spark())
    os.environ.setdefault(LAUNCHER, QUICK_START)
