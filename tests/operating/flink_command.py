"""Flink's own command, as its package brings it (tools/fetch.py). Nothing of it is imported."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from jvms import QUICK_START


class Flink:
    """`flink ...` against one address."""

    def __init__(self, home: Path, logs: Path, token: str | None = None) -> None:
        self._home = home
        self._environment = os.environ | {
            "FLINK_LOG_DIR": str(logs),
            "FLINK_ENV_JAVA_OPTS_CLI": QUICK_START,
        }
        self._environment.pop("FLINK_HOME", None)
        self._environment.pop("FLINK_CONF_DIR", None)
        if token is not None:
            self._environment["FLINK_REST_CLIENT_HEADERS"] = f"Authorization:Bearer {token}"

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self._home / "bin" / "flink"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=170,
        )

    def ok(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.returncode == 0, f"flink {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout
