"""A real standalone cluster on loopback: a master and two workers from the installed PySpark, each with its own work folder.

It has exactly the slots that the job needs, so whatever holds a slot longer than it should keeps the job from starting.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pyspark

from faults.kit import await_that
from free_ports import free_port
from jvms import of_spark

HOST = "127.0.0.1"
WORKERS = 2


class StandaloneCluster:
    """Started by `standalone_cluster`."""

    def __init__(self, folder: Path, slots: int, conf: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._conf = folder / "spark.conf"  #: of master and workers
        self._conf.touch(0o600)
        self._conf.write_text("".join(f"{key} {value}\n" for key, value in (conf or {}).items()))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._slots = slots
        self._port, self._web_port = free_port(), free_port()
        self.master = f"spark://{HOST}:{self._port}"

    def start(self) -> None:
        self._start(
            "master", "master.Master", "--host", HOST, "--port", str(self._port), "--webui-port", str(self._web_port)
        )
        await_that("the master answers", lambda: self._state() is not None)
        for number in range(WORKERS):
            self._workers.append(
                self._start(
                    f"worker-{number}", "worker.Worker", "--host", HOST, "--port", "0", "--webui-port", "0",
                    "--cores", str(self._slots // WORKERS), "--memory", "1g",
                    "--work-dir", str(self._folder / f"worker-{number}"), self.master,
                )
            )  # fmt: skip
        await_that("the workers registered", lambda: (self._state() or {}).get("aliveworkers") == WORKERS)

    @property
    def settings(self) -> dict[str, str]:
        """For the driver's session."""
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": of_spark(),
        }

    def executors(self) -> list[psutil.Process]:
        """Executor JVMs that are there now, one for each worker."""
        found = []
        for worker in self._workers:
            for child in psutil.Process(worker.pid).children():
                with contextlib.suppress(psutil.Error):
                    if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                        found.append(child)
        return found

    def await_idle(self) -> None:
        """Until no application holds an executor."""
        await_that("the cluster is idle", lambda: not (self._state() or {"activeapps": 1})["activeapps"])
        await_that("the executors have ended", lambda: not self.executors())

    def end(self) -> None:
        started = [psutil.Process(process.pid) for process in self._processes if process.poll() is None]
        started += [child for process in started for child in process.children(recursive=True)]
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
                process.kill()
        psutil.wait_procs(started, timeout=10)
        for child in self._processes:
            child.wait()

    def _start(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = os.path.dirname(pyspark.__file__)
        with open(self._folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [
                    os.path.join(home, "bin", "spark-class"),
                    f"org.apache.spark.deploy.{main}",
                    "--properties-file",
                    str(self._conf),
                    *arguments,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={
                    **os.environ,
                    "SPARK_HOME": home,
                    "SPARK_LOCAL_IP": HOST,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "PYSPARK_PYTHON": sys.executable,
                },
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _state(self) -> dict[str, object] | None:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=5) as answer:
                state = json.load(answer)
        except (OSError, ValueError):  # its server first answers with a page: what speaks JSON is attached after that
            return None
        return {"aliveworkers": state["aliveworkers"], "activeapps": len(state["activeapps"])}


@contextlib.contextmanager
def standalone_cluster(folder: Path, slots: int, conf: Mapping[str, str] | None = None) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(folder, slots, conf)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
