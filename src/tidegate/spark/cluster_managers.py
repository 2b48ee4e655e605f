"""What sessions on YARN and on Kubernetes need, beside what every session gets. Driver; pure.

Anything of it gives way to what the user has set.
"""

from __future__ import annotations

from tidegate.spark.settings import Setting

#: Spark ends the application after twice as many lost executors as it has, and at least three, whenever they were lost. A job
#: that runs for months loses more, one at a time, and its restart strategy decides what is too much.
_FORGIVING = Setting(
    "spark.executor.failuresValidityInterval", "1h", "executors that were lost long ago do not end a job", False
)
MANAGERS = {
    "yarn": (
        Setting(
            "spark.python.unix.domain.socket.dir",
            "/tmp",
            "the folder for temporary files of a container is too deep for the path of a socket",
            False,
        ),
        _FORGIVING,
    ),
    "k8s://": (
        Setting(
            "spark.executor.decommission.signal",
            "PWR",
            "before a pod is deleted Spark's image sends SIGPWR; an executor that listens for another one dies of it",
            False,
        ),
        _FORGIVING,
    ),
}


def manager_settings(master: str) -> dict[str, str]:
    return {
        setting.key: setting.value
        for begin, settings in MANAGERS.items()
        if master.startswith(begin)
        for setting in settings
    }
