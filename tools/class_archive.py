"""Spark's classes in one file, ready for a JVM to map: it then starts with half the work. For the tests, which start dozens.

    sh tools/with_spark.sh .venv/bin/python tools/class_archive.py

The file is in the virtual environment, beside the jars that it was made from; tests/jvms.py names it to the JVMs. One that
cannot use it, because its Java or its jars are others, starts as it always does. It is made once, by a JVM that has run a small
job; where that fails the tests are slower, and no more.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main() -> None:
    if ARCHIVE.exists() or " " in str(ARCHIVE):  # the options that name it are cut at spaces
        return
    draft = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
    os.environ["SPARK_LAUNCHER_OPTS"] = OPTIONS
    try:
        _run_a_job()
        draft.rename(ARCHIVE)
    except Exception as error:
        print(f"class archive: not made, so the tests start their JVMs as usual: {error}", file=sys.stderr)
    finally:
        draft.unlink(missing_ok=True)


def _run_a_job() -> None:
    from pyspark import SparkContext

    from tidegate.spark.session import make_session

    session = make_session("class archive", "local[4]", 4)
    rows = session.range(0, 100, 1, 2).repartition(3, "id").mapInArrow(lambda batches: batches, "id long")
    assert rows.count() == 100
    session.stop()
    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends when its input does, and writes the file
    gateway.proc.wait(120)


if __name__ == "__main__":
    main()
