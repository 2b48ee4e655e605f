"""The Spark settings that a pipelined job of ours needs, each with its reason. Driver.

Static ones are read when the SparkContext starts, so a session made without them is refused, naming what to set. The
others belong on a session of our own (`newSession`), never on the user's. Evidence: docs/decisions/0009-spark-internals.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.errors import SparkSettingsError


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: str
    reason: str
    required: bool = True  #: False: recommended; another value of the user's is respected


STATIC = (
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "TCP between the JVM and Python costs about 10 ms a hop and hides megabytes in front of a barrier",
    ),
    Setting("spark.python.udf.pipelined.enabled", "true", "input and output of a worker must run at the same time"),
    Setting("spark.python.daemon.module", "tidegate.spark.daemon", "warm workers: a restart takes 1 s instead of 4 s"),
    Setting(
        "spark.python.worker.reuse",
        "false",
        "a worker's reader thread may outlive its task and eat the next one's bytes",
    ),
    Setting("spark.shuffle.streaming.networkBufferSize", "32", "Spark's credit counts buffers: one frame, one credit"),
    Setting("spark.shuffle.streaming.networkBufferMaxWaitTimeMs", "1000", "there is nothing to wait for; 0 would spin"),
    Setting("spark.shuffle.streaming.writerMaxMemory", "1", "two frames a channel in the writer"),
    Setting("spark.shuffle.streaming.readerMaxMemory", "524288", "bounds what is in front of a barrier", False),
    Setting("spark.rpc.io.threads", "1", "each writer task starts that many server threads", False),
    Setting("spark.task.reaper.enabled", "true", "frees the slots of tasks that will not die", False),
    Setting(
        "spark.decommission.enabled", "true", "an executor that is told to go says so, and the job moves first", False
    ),
    Setting(
        "spark.executor.decommission.signal",
        "TERM",
        "SIGTERM is what machines, pods and supervisors send; it gives the job the time to move",
        False,
    ),
    Setting("spark.speculation", "false", "a pipelined group cannot run a task twice"),
    Setting("spark.dynamicAllocation.enabled", "false", "a pipelined group holds its slots"),
)

SESSION = (
    Setting("spark.sql.adaptive.enabled", "false", "AQE would split the stages"),
    Setting("spark.sql.execution.arrow.maxRecordsPerBatch", "2", "a frame, and the empty row in front of it"),
    Setting(
        "spark.sql.execution.arrow.maxBytesPerBatch",
        "32",
        "a batch is full when it has a frame, which is not held back",
    ),
    Setting(
        "spark.sql.codegen.wholeStage", "false", "compiled, the plan would copy each frame once more, and start later"
    ),
    Setting("spark.sql.execution.pandas.udf.buffer.size", "128", "each Arrow message is flushed at once"),
)

#: What a job that encrypts needs on a cluster, where Spark sends its tasks over the network and the attempt's key with them.
ENCRYPTING = (
    Setting("spark.authenticate", "true", "whoever knows no secret of Spark's may not ask for the job's keys"),
    Setting("spark.network.crypto.enabled", "true", "else Spark sends the job's keys in the clear"),
    Setting("spark.network.crypto.cipher", "AES/GCM/NoPadding", "Spark's default can be changed on its way", False),
    Setting("spark.network.crypto.authEngineVersion", "2", "Spark's default derives its keys less well", False),
)
_RPC_BY_TLS = "spark.ssl.rpc.enabled"  #: in place of network.crypto

#: Not needed, but what a session of ours gets.
COMFORT = {
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}


def static_settings() -> dict[str, str]:
    return {setting.key: setting.value for setting in STATIC}


def check_static(actual: Mapping[str, str | None]) -> None:
    """:raises SparkSettingsError: naming every setting that a given session lacks, ready to copy."""
    wrong = [
        setting
        for setting in STATIC
        if setting.required and (actual.get(setting.key) or _default(setting)) != setting.value
    ]
    if wrong:
        lines = "\n".join(f'    .config("{s.key}", "{s.value}")   # {s.reason}' for s in wrong)
        raise SparkSettingsError(
            "this Spark session cannot run a Tidegate job: these settings are read when Spark starts, so make the session "
            f"with\n{lines}\nor let StreamEnvironment make the session.",
            missing=[s.key for s in wrong],
        )


def check_encrypting(actual: Mapping[str, str | None]) -> None:
    """:raises SparkSettingsError: for a session of a cluster that would send the keys of a job that encrypts in the clear."""
    by_tls = actual.get(_RPC_BY_TLS) == "true"
    wrong = [
        setting
        for setting in ENCRYPTING
        if setting.required
        and actual.get(setting.key) != setting.value
        and not (by_tls and setting.key == "spark.network.crypto.enabled")
    ]
    if wrong:
        lines = "\n".join(f'    .config("{s.key}", "{s.value}")   # {s.reason}' for s in wrong)
        raise SparkSettingsError(
            "the job is to be encrypted (security.ssl.internal.enabled), and this Spark session is not: make it with\n"
            f"{lines}\n({_RPC_BY_TLS} may take the place of spark.network.crypto.enabled). A standalone cluster needs the same "
            "spark.authenticate.secret on its master, its workers and the driver.",
            missing=[s.key for s in wrong],
        )


def encrypting_keys() -> list[str]:
    """What `check_encrypting` wants to know."""
    return [*(setting.key for setting in ENCRYPTING), _RPC_BY_TLS]


def _default(setting: Setting) -> str:
    """Spark's own default, where it happens to be the value we need."""
    return "false" if setting.key in ("spark.speculation", "spark.dynamicAllocation.enabled") else ""
