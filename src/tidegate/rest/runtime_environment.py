"""What a job runs on and who else runs: versions, Spark's settings, other drivers of this user. Driver; the server's thread."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tidegate.rest import registry
from tidegate.rest.numbers import ms
from tidegate.rest.served import ServedJob

_PACKAGES = (
    "tidegate",
    "pyspark",
    "pyarrow",
    "msgspec",
    "cloudpickle",
    "rocksdict",
    "confluent-kafka",
    "starlette",
    "uvicorn",
)


def runtime_environment(job: ServedJob) -> dict[str, Any]:
    return {
        "versions": _versions(),
        "spark": job.runtime_environment.spark,
        "sparkUi": job.runtime_environment.spark_pages,
    }


def _versions() -> dict[str, str]:
    """Of Python and of those packages that are installed."""
    found = {"Python": f"{platform.python_implementation()} {platform.python_version()}", "system": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def drivers() -> dict[str, Any]:
    """Running jobs of this user, as the registry folder knows them. Their tokens stay there."""
    return {
        "drivers": [
            {"id": entry.id, "name": entry.name, "url": entry.url, "started": ms(entry.started_at)}
            for entry in registry.entries()
        ]
    }
