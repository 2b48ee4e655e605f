"""A real standalone cluster: a master and two workers from the installed PySpark, each with its own work folder, on loopback
unless they are given places of their own.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
import pyspark

from faults.kit import await_that
from free_ports import free_port
from jvms import of_spark

HOST = "127.0.0.1"
WORKERS = 2


class Place(Protocol):
    """Where a process runs."""

    address: str

    def inside(self) -> AbstractContextManager[None]:
        """What this thread starts within is there."""


class Loopback:
    address = HOST

    def inside(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Places:
    master: Place = field(default_factory=Loopback)
    workers: Sequence[Place] = field(default_factory=lambda: [Loopback()] * WORKERS)
    driver: Place = field(default_factory=Loopback)


class StandaloneCluster:
    """Started by `standalone_cluster`."""

    def __init__(
        self, folder: Path, slots: int, conf: Mapping[str, str] | None = None, places: Places | None = None
    ) -> None:
        self._places = places or Places()
        self._folder = folder
        self._conf = folder / "spark.conf"  #: of master and workers
        self._conf.touch(0o600)
        self._conf.write_text("".join(f"{key} {value}\n" for key, value in (conf or {}).items()))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._slots = slots
        self._port, self._web_port = free_port(), free_port()
        self.master = f"spark://{self._places.master.address}:{self._port}"

    def start(self) -> None:
        master = self._places.master
        self._start(
            master, "master", "master.Master", "--host", master.address, "--port", str(self._port),
            "--webui-port", str(self._web_port),
        )  # fmt: skip
        await_that("the master answers", lambda: self._state() is not None)
        for number, place in enumerate(self._places.workers):
            self._workers.append(
                self._start(
                    place, f"worker-{number}", "worker.Worker", "--host", place.address, "--port", "0",
                    "--webui-port", "0", "--cores", str(self._slots // len(self._places.workers)), "--memory", "1g",
                    "--work-dir", str(self._folder / f"worker-{number}"), self.master,
                )
            )  # fmt: skip
        await_that("the workers registered", lambda: (self._state() or {}).get("aliveworkers") == len(self._workers))

    @property
    def settings(self) -> dict[str, str]:
        """For the driver's session."""
        return {
            "spark.driver.host": self._places.driver.address,
            "spark.driver.bindAddress": self._places.driver.address,
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

    def _start(self, place: Place, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = os.path.dirname(pyspark.__file__)
        with place.inside(), open(self._folder / f"{name}.log", "wb") as log:
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
                    "SPARK_LOCAL_IP": place.address,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "PYSPARK_PYTHON": sys.executable,
                },
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _state(self) -> dict[str, object] | None:
        master = self._places.master
        try:
            with (
                master.inside(),
                urllib.request.urlopen(f"http://{master.address}:{self._web_port}/json/", timeout=5) as answer,
            ):
                state = json.load(answer)
        except (OSError, ValueError):  # its server first answers with a page: what speaks JSON is attached after that
            return None
        return {"aliveworkers": state["aliveworkers"], "activeapps": len(state["activeapps"])}


@contextlib.contextmanager
def standalone_cluster(
    folder: Path, slots: int, conf: Mapping[str, str] | None = None, places: Places | None = None
) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(folder, slots, conf, places)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
