"""Spark sessions: making one with the right settings, or taking the user's and refusing it in words. Driver."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tidegate.errors import NotEnoughSlots, SparkSettingsError
from tidegate.python_paths import path_entry, prepend_for_children
from tidegate.spark.cluster_managers import manager_settings
from tidegate.spark.jvm_output import drawer, start_jvm
from tidegate.spark.masters import check_master, did_not_start
from tidegate.spark.pipelined import check_has_jvm
from tidegate.spark.settings import (
    COMFORT,
    ENCRYPTING,
    SESSION,
    check_encrypting,
    check_static,
    encrypting_keys,
    static_settings,
)
from tidegate.spark.shipping import Shipment, pack
from tidegate.spark.slot_width import TASK_CPUS, cluster_settings, local_width, narrower

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tidegate.spark")

#: A new attempt starts while the tasks of the last one are still dying, and they hold their slots until they have.
LOCAL_SPARE_FACTOR = 2
NEEDED_FILES_PER_PAIR = 6


@dataclass(frozen=True, slots=True)
class ExecutorPython:
    """What the user says of the Python on a cluster's executors."""

    files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    executable: str | None = None


def make_session(
    app: str,
    master: str | None,
    slots_needed: int,
    extra: Mapping[str, str] | None = None,
    python: ExecutorPython | None = None,
    layers: int = 1,
    *,
    encrypt: bool = False,
) -> SparkSession:
    """A session with everything set, and what executors need shipped to them. A running one of the same process is taken, if it
    fits. The slots of one subtask in all layers share a core, unless `spark.task.cpus` is given.

    :raises ConfigurationError: for what cannot be shipped. :raises SparkUnavailable:
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        session = SparkSession.builder.getOrCreate()
        check_session(session, encrypt)
        return session
    given = {**submitted_settings(), **(extra or {})}
    master = master or given.get("spark.master")
    local_slots = slots_needed * LOCAL_SPARE_FACTOR + 2
    if master is None or master == "local" or (master.startswith("local[") and master.endswith("*]")):
        master = f"local[{max(local_slots, 16)}]"
    settings = {"spark.app.name": app, **session_settings(master, given, encrypt=encrypt)}
    python = python or ExecutorPython()
    executable = python.executable or given.get("spark.pyspark.python")
    shipment: Shipment | None = None
    if is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= local_width(local_cores(master), local_slots, given)
        executable = executable or os.environ.get("PYSPARK_PYTHON") or sys.executable
        prepend_for_children(map(path_entry, python.files))
        if python.archives:
            log.warning("archives are for the executors of a cluster; on this machine nothing is unpacked")
    else:
        if encrypt:
            check_encrypting(settings)
        check_master(master)
        shipment = pack(sys.path[0], python.files, python.archives)
        settings |= shipment.settings(given) | cluster_settings(master, slots_needed, layers, given)
    if executable is not None:
        os.environ["PYSPARK_PYTHON"] = executable  # what PySpark reads in a driver that Spark has not started
    drawer.open()
    try:
        start_jvm(settings)
        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    except Exception as error:
        raise did_not_start(master, error, drawer.lines()) from error
    except BaseException:  # interrupted
        drawer.close()
        raise
    drawer.close()
    quieten(session)
    check_session(session, encrypt)
    if shipment is not None:
        shipment.send(session)
    return session


def session_settings(master: str, given: Mapping[str, str], *, encrypt: bool = False) -> dict[str, str]:
    """Of every session on such a master, whatever job runs in it; `given` are the user's, and go before ours."""
    private = {setting.key: setting.value for setting in ENCRYPTING} if encrypt and not is_local(master) else {}
    return {**COMFORT, **static_settings(), **manager_settings(master), **private, **given, "spark.master": master}


def is_local(master: str) -> bool:
    """Executors are in this process's JVM, and see what it sees."""
    return master == "local" or master.startswith("local[")


def submitted_settings() -> dict[str, str]:
    """Spark's settings that stand in PYSPARK_SUBMIT_ARGS, where PySpark and `tidegate run -D spark.KEY=VALUE` put them."""
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    pairs = [value for option, value in pairwise(words) if option in ("--conf", "-c") and "=" in value]
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def local_cores(master: str) -> int:
    """Of a local master that says how many: `local[4]`, or `local[4,2]`, where the second is how often a task is tried."""
    return int(master.removeprefix("local[").rstrip("]").partition(",")[0])


def check_session(session: SparkSession, encrypt: bool = False) -> None:
    """`encrypt`: the job asks for it. :raises SparkSettingsError: naming what to set."""
    check_has_jvm(session)
    conf = session.sparkContext.getConf()
    check_static({key: conf.get(key) for key in [*static_settings()]})
    if encrypt and not is_local(session.sparkContext.master):  # there, tasks never leave the driver's JVM
        check_encrypting({key: conf.get(key) for key in encrypting_keys()})


def has_ended(session: SparkSession) -> bool:
    """Nothing more can run in it: it was stopped, or its cluster manager has ended the application, or its JVM is gone."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    context = session.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except (Py4JNetworkError, OSError):
        return True


def own_session(session: SparkSession) -> SparkSession:
    """A session of ours on the same SparkContext: its SQL settings never touch the user's."""
    ours = session.newSession()
    for setting in SESSION:
        ours.conf.set(setting.key, setting.value)
    return ours


def quieten(session: SparkSession) -> None:
    """A cancelled attempt is normal here; Spark's stack traces of it help nobody."""
    session.sparkContext.setLogLevel("ERROR")
    levels = session._jvm.org.apache.logging.log4j.Level
    configurator = session._jvm.org.apache.logging.log4j.core.config.Configurator
    for logger in (
        "org.apache.spark.shuffle.streaming",
        "org.apache.spark.executor",
        "org.apache.spark.scheduler",
        "org.apache.spark.api.python",
        "org.apache.spark.sql.execution.python",
        "org.apache.spark.network",
        "org.apache.spark.util",
        "org.apache.spark.storage",
        "org.apache.spark.TaskContextImpl",
    ):
        configurator.setLevel(logger, levels.OFF)


def total_slots(session: SparkSession) -> int:
    """Task slots of the executors that are there now."""
    context = session.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def check_slots(session: SparkSession, needed: int) -> None:
    """:raises NotEnoughSlots: with the number needed."""
    there = total_slots(session)
    if there < needed:
        width = narrower(there, needed, session.sparkContext.getConf().get(TASK_CPUS) or "1")
        narrow_slots = f", make slots narrower ({TASK_CPUS}={width}, when Spark starts)" if width else ""
        raise NotEnoughSlots(
            f"the job needs {needed} task slots at once and the cluster has {there}: every subtask of a pipelined job runs "
            f"at the same time. Add executor cores (spark.cores.max, --total-executor-cores, local[{needed}]){narrow_slots} or "
            "lower the parallelism.",
            needed=needed,
            there=there,
        )


def check_process_limits(connections: int) -> None:
    """Spark opens about 5.5 file descriptors and a thread for each pair of slots. Local mode: all in one process."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections * NEEDED_FILES_PER_PAIR + 500
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise SparkSettingsError(
            f"the job opens {connections} channels, which need about {needed} file descriptors; this process may open {soft}. "
            f"Run `ulimit -n {needed}` before it, or lower the parallelism."
        )


def driver_address(session: SparkSession) -> tuple[str, str]:
    """(address to bind, address for executors to call)."""
    conf = session.sparkContext.getConf()
    if is_local(session.sparkContext.master):
        return "127.0.0.1", "127.0.0.1"
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return conf.get("spark.driver.bindAddress") or host, host
