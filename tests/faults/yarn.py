"""A real YARN on loopback: a resource manager and node managers of Hadoop's own, each a process that can be killed.

Every node has an address of its own (127.0.0.2 and so on), as machines have: YARN and Spark tell nodes apart by it. Containers
are children of their node manager, so a lost machine is `kill`: the node manager and all that it has started, at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import psutil
import pyspark

from faults.kit import await_that
from free_ports import free_ports
from jvms import QUICK_START, of_spark

HOST = "127.0.0.1"
NODES = 2
NODE_MB = 8192  #: what a node manager says that it has; nobody holds containers to it
LOST_AFTER_S = 600.0  #: YARN's own default
APPLICATION_MASTER = "ExecutorLauncher"
EXECUTOR = "YarnCoarseGrainedExecutorBackend"
#: Hadoop reads the fields of Java's own classes.
OPENED = "--add-opens=java.base/java.lang=ALL-UNNAMED"
#: With which its processes tell what they do; the mini cluster comes without.
LOGGING = [
    str(jar)
    for name in ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core", "log4j-1.2-api")
    for jar in (Path(pyspark.__file__).parent / "jars").glob(f"{name}-[0-9]*.jar")
]


class Node:
    """One machine: a node manager, and what it has started."""

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self._process = process

    @property
    def is_there(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """Of all containers."""
        try:
            return list(psutil.Process(self._process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def runs(self, what: str) -> list[psutil.Process]:
        """Java processes with this main class."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.name() == "java" and what in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self) -> None:
        """The machine is lost: nobody is told."""
        if self.is_there:
            node_manager = psutil.Process(self._process.pid)
            node_manager.suspend()  # it starts nothing more
            for process in [*node_manager.children(recursive=True), node_manager]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()


class YarnCluster:
    """Started by `yarn_cluster`."""

    def __init__(self, jars: Sequence[Path], folder: Path, lost_after_s: float) -> None:
        """`jars`: folders."""
        self._jars, self._folder = [*LOGGING, *(f"{each}/*" for each in jars)], folder
        self._started: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        ports = dict(zip(("address", "scheduler", "tracker", "admin", "web"), free_ports(5), strict=True))
        self._web = f"http://{HOST}:{ports['web']}/ws/v1/cluster"
        self._excluded = folder / "excluded"
        self._excluded.touch()
        self._site = {
            "hadoop.tmp.dir": str(folder / "tmp"),
            "yarn.resourcemanager.hostname": HOST,
            "yarn.resourcemanager.address": f"{HOST}:{ports['address']}",
            "yarn.resourcemanager.scheduler.address": f"{HOST}:{ports['scheduler']}",
            "yarn.resourcemanager.resource-tracker.address": f"{HOST}:{ports['tracker']}",
            "yarn.resourcemanager.admin.address": f"{HOST}:{ports['admin']}",
            "yarn.resourcemanager.webapp.address": f"{HOST}:{ports['web']}",
            "yarn.resourcemanager.nodes.exclude-path": str(self._excluded),
            "yarn.nm.liveness-monitor.expiry-interval-ms": str(int(lost_after_s * 1000)),
            "yarn.am.liveness-monitor.expiry-interval-ms": str(int(lost_after_s * 1000)),
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.scheduler.maximum-allocation-mb": str(NODE_MB),
            "yarn.nodemanager.resource.memory-mb": str(NODE_MB),
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
        }
        self.nodes: list[Node] = []

    def start(self) -> None:
        self._write_conf(self._conf("client"), {})
        manager = self._start("resource-manager", "resourcemanager.ResourceManager", {})
        await_that("the resource manager answers", lambda: manager.poll() is not None or self._ask("/info") is not None)
        assert manager.poll() is None, (self._folder / "resource-manager.log").read_text()[-4000:]
        for number in range(NODES):
            self.add_node(f"127.0.0.{number + 2}")
        self.await_nodes(NODES)

    def add_node(self, address: str) -> Node:
        """A new one, or one that comes back."""
        name = f"node-{address}"
        process = self._start(
            name,
            "nodemanager.NodeManager",
            {
                "yarn.nodemanager.hostname": address,
                "yarn.nodemanager.address": f"{address}:0",
                "yarn.nodemanager.localizer.address": f"{address}:0",
                "yarn.nodemanager.webapp.address": f"{address}:0",
                "yarn.nodemanager.local-dirs": str(self._folder / name / "local"),
                "yarn.nodemanager.log-dirs": str(self._folder / name / "log"),
            },
        )
        node = Node(address, process)
        self.nodes = [*(other for other in self.nodes if other.address != address), node]
        return node

    @property
    def environment(self) -> dict[str, str]:
        """In which a driver finds it."""
        return {"HADOOP_CONF_DIR": str(self._conf("client"))}

    @property
    def settings(self) -> dict[str, str]:
        """For the driver's session. Spark is on every node; without `spark.yarn.jars` it would be copied there."""
        jars = Path(pyspark.__file__).parent / "jars"
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.yarn.jars": f"local:{jars}/*",
            "spark.yarn.stagingDir": f"file://{self._folder}/staging",
            "spark.yarn.am.memory": "256m",
            "spark.yarn.am.extraJavaOptions": of_spark(),
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": of_spark(),
        }

    # -- what it knows -------------------------------------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """What the resource manager takes each node for: RUNNING, LOST, DECOMMISSIONING..."""
        answer = self._ask("/nodes") or {}
        nodes = (answer.get("nodes") or {}).get("node") or []
        return {node["nodeHostName"]: node["state"] for node in nodes}

    def await_nodes(self, running: int) -> None:
        await_that(
            f"{running} node managers are RUNNING", lambda: list(self.states().values()).count("RUNNING") == running
        )

    def applications(self) -> list[dict[str, Any]]:
        """That have not ended."""
        answer = self._ask("/apps?states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING") or {}
        return list((answer.get("apps") or {}).get("app") or [])

    def await_idle(self) -> None:
        await_that("no application runs", lambda: not self.applications())
        await_that("no container runs", lambda: not any(node.processes() for node in self.nodes))

    # -- what is done to it --------------------------------------------------------------------------------------------

    def kill_applications(self) -> None:
        """As `yarn application -kill` does."""
        for application in self.applications():
            self._ask(f"/apps/{application['id']}/state?user.name=root", {"state": "KILLED"})

    def decommission(self, node: Node, within_s: int) -> None:
        """Gracefully: its containers have so long to end by themselves."""
        self._excluded.write_text(f"{node.address}\n")
        self._admin("-refreshNodes", "-g", str(within_s), "-server")

    def make_ready(self) -> None:
        """For the next job, whatever the last one has left."""
        self.kill_applications()
        self.await_idle()
        if self._excluded.read_text():
            self._excluded.write_text("")
            self._admin("-refreshNodes")
        states = self.states()
        for node in self.nodes:
            if not node.is_there or states[node.address] != "RUNNING":
                node.kill()
                self.add_node(node.address)
        self.await_nodes(NODES)

    def end(self) -> None:
        for node in self.nodes:
            node.kill()
        for process in self._started:
            process.kill()
            process.wait()

    # -- processes -----------------------------------------------------------------------------------------------------

    def _conf(self, name: str) -> Path:
        return self._folder / "conf" / name

    def _write_conf(self, folder: Path, more: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        queue = "yarn.scheduler.capacity.root"
        files: dict[str, Mapping[str, str]] = {
            "core-site.xml": {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self._site["hadoop.tmp.dir"]},
            "yarn-site.xml": {**self._site, **more},
            "capacity-scheduler.xml": {
                f"{queue}.queues": "default",
                f"{queue}.default.capacity": "100",
                "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
                # One container at a time, so that they are on all nodes and not on the one that asks first.
                "yarn.scheduler.capacity.per-node-heartbeat.multiple-assignments-enabled": "false",
            },
        }
        for name, properties in files.items():
            lines = [
                f"<property><name>{key}</name><value>{escape(value)}</value></property>"
                for key, value in properties.items()
            ]
            (folder / name).write_text("\n".join(["<configuration>", *lines, "</configuration>"]))

    def _start(self, name: str, main: str, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self._write_conf(self._conf(name), more)
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self._java(self._conf(name), f"org.apache.hadoop.yarn.server.{main}"),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _java(self, conf: Path, main: str, *arguments: str) -> list[str]:
        java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
        options = ["-Xmx256m", "-Dlog4j2.level=INFO", *QUICK_START.split(), "-Djava.net.preferIPv4Stack=true", OPENED]
        return [str(java), *options, "-cp", ":".join([str(conf), *self._jars]), main, *arguments]

    def _admin(self, *arguments: str) -> None:
        command = self._java(self._conf("client"), "org.apache.hadoop.yarn.client.cli.RMAdminCLI", *arguments)
        done = subprocess.run(
            command,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    def _ask(self, path: str, put: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        request = urllib.request.Request(
            self._web + path,
            data=None if put is None else json.dumps(put).encode(),
            headers={"Accept": "application/json", "Content-Type": "application/json"},
            method="GET" if put is None else "PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):  # it starts
            return None


@contextlib.contextmanager
def yarn_cluster(jars: Sequence[Path], folder: Path, lost_after_s: float = LOST_AFTER_S) -> Iterator[YarnCluster]:
    cluster = YarnCluster(jars, folder, lost_after_s)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
