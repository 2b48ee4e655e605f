"""Spark's worker daemon with everything imported before it forks, so that a new attempt starts in a second. Executor.

Started by Spark as `python -m tidegate.spark.daemon pyspark.worker` (`spark.python.daemon.module`). It must fork with one
thread: OpenBLAS and Arrow's allocator start their own on import unless told not to, and a thread that holds a lock at the
fork would leave it locked for ever in the child.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from tidegate.spark.executor_python import NEEDED, no_module

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

#: Of a worker's streams. The session of a slot sets a small one, for the JVM, which sends when it is full. A worker says itself
#: when something is to be sent, and with a large one reads all that is there.
BUFFER_BYTES = 1 << 16


def _import_all() -> None:
    import numpy  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow
    import pyarrow.compute  # noqa: F401
    import pyspark.sql.pandas.serializers
    import pyspark.worker  # noqa: F401

    import tidegate.spark.slot_worker  # noqa: F401


class LackingModules:
    """The last finder of modules, for workers too, which are forked: it finds nothing, and says all that lacks at once."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._names:
            raise ModuleNotFoundError(no_module(name, self._names), name=name)
        return None


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:  # no /proc: not Linux
        return 1


def main() -> None:
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    sys.meta_path.append(LackingModules(lacking))
    try:
        _import_all()
    except ImportError as error:  # the first task fails with the same, and Spark passes it on to the driver
        print(f"tidegate: the worker daemon starts without {error.name or error}", file=sys.stderr, flush=True)
    if _threads() > 1:
        print(f"tidegate: the worker daemon has {_threads()} threads before it forks", file=sys.stderr, flush=True)
    os.environ["SPARK_BUFFER_SIZE"] = str(max(BUFFER_BYTES, int(os.environ.get("SPARK_BUFFER_SIZE", "0"))))
    import gc

    gc.collect()
    gc.freeze()  # what is imported never changes: keep its pages shared with the children
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
