"""One job on a cluster of hosts, which lives through many cuts; each is judged by itself.

While a cell is tried readings keep coming. After it, all that was sent must be committed, once, in Kafka and in the files, with
the right counts: what comes out is compared with what was sent, by plain clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fetch
from faults.cluster import Places, StandaloneCluster, standalone_cluster
from faults.jobs.tally import SOURCES
from faults.kit import Driver, assert_each_once, await_that
from hosts.cuts import CLIENT, DRIVER, HOSTS, KAFKA, MASTER, RESTARTING, S3, SETTINGS, STEPS, WORKERS, Cell, Setting
from hosts.job import Settings
from hosts.network import Network, network
from hosts.outsides import Files, Readings, Sightings, rows_in_kafka
from kafka_broker import Broker, jars
from services import had
from storages.servers import s3_server

CORES = 2  #: a core for each worker, which has a slot of each layer: exactly those that the job needs
PATIENCE_S = 300.0  #: until all that was sent is committed


@dataclass(frozen=True)
class World:
    """Everything but the job."""

    net: Network
    cluster: StandaloneCluster
    servers: str
    environment: dict[str, str]


@contextlib.contextmanager
def world(folder: Path, wired: tuple[str, ...] = (), settings: Setting = SETTINGS[""]) -> Iterator[World]:
    had("Kafka broker", fetch.NotFetched, jars)
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network(HOSTS, wired, settings.sysctl))
        places = Places(net[MASTER], [net[worker] for worker in WORKERS], net[DRIVER])
        with net[KAFKA].inside():
            broker = Broker(folder / "kafka", net[KAFKA].address)
            stack.callback(broker.stop)
            broker.start()
        with net[S3].inside():
            environment = stack.enter_context(s3_server(folder / "s3.log", net[S3].address))
        cluster = stack.enter_context(standalone_cluster(folder, CORES, places=places))
        yield World(net, cluster, broker.address, environment)


class Life:
    """A job that runs, and what is seen of it from outside."""

    def __init__(self, world: World, folder: Path, **config: Any) -> None:
        self.world = world
        name = f"cut-{secrets.token_hex(3)}"
        self.notes = folder / name
        self.notes.mkdir()
        self._armed = 0
        in_workers = {f"spark.executorEnv.{key}": value for key, value in world.environment.items()}
        self.settings = Settings(
            name=name,
            notes=str(self.notes),
            master=world.cluster.master,
            spark_conf={**world.cluster.settings, **in_workers},
            environment=world.environment,
            servers=world.servers,
            readings=f"{name}-readings",
            rows=f"{name}-rows",
            markers=f"{name}-markers",
            config=config,
        )
        client = world.net[CLIENT]
        self.readings = Readings(client, world.servers, self.settings.readings)
        self.readings.make_topic()
        self.sightings = Sightings(client, world.servers, self.settings.rows)
        self.files = Files(client, world.environment, self.settings.files)
        world.cluster.await_idle()
        with world.net[DRIVER].inside():
            self.driver = Driver(
                self.settings, "hosts.job", {"SPARK_LOCAL_IP": world.net[DRIVER].address, **world.environment}
            )
        try:
            self.driver.await_running(PATIENCE_S)
            with self.readings.coming():
                await_that("the first rows", lambda: self.sightings.seen_by(0), PATIENCE_S)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        self.world.net.as_new()
        self.driver.end()
        self.sightings.close()

    def try_out(self, cell: Cell) -> Seen:
        """:raises AssertionError: when something is lost or doubled, or does not come in time."""
        lines = len(self.driver.lines)
        with self.readings.coming():
            began = self._begin(cell)
            healed = time.time()
            after = self.readings.count + 1
            await_that(
                f"rows again after {cell}\n{self.driver.story()}",
                lambda: self.readings.count > after and self.sightings.seen_by(after),
                PATIENCE_S,
            )
        recovered = self.sightings.seen_by(after)
        assert recovered is not None
        self.assert_exact()
        news = self.driver.lines[lines:]
        return Seen(
            cell=cell,
            recovered_s=round(recovered - healed, 2),
            silence_s=round(self.sightings.longest_silence(began, recovered), 2),
            failures=[line["error"].splitlines()[0] for line in news if "failed" in line],
            rows=self.readings.count * SOURCES,
        )

    def _begin(self, cell: Cell) -> float:
        """Carries the cell out, in the step that it names. When its cut was made."""
        began: list[float] = []

        def cut() -> None:
            began.append(time.time())
            if cell.step:
                (self.notes / f"cut-{self._armed}").touch()

        if cell.step:
            self._armed += 1
            order = {"number": self._armed, "point": cell.step, "layer": STEPS[cell.step]}
            draft = self.notes / "draft"
            draft.write_text(json.dumps(order))
            os.replace(draft, self.notes / "armed")
            if cell.step in RESTARTING:
                os.kill(self.driver.workers()[0], signal.SIGKILL)
            await_that(cell.step, lambda: (self.notes / f"reached-{self._armed}").exists(), PATIENCE_S)
        else:
            seen = len(self.sightings.first)
            await_that("the job is at work", lambda: len(self.sightings.first) > seen, PATIENCE_S)
        cell.carry_out(self.world.net, cut)
        return began[0]

    def assert_exact(self) -> None:
        """All that was sent has come out, once, in both outsides."""
        sent = self.readings.count
        await_that(f"all {sent} readings of each source are committed", lambda: self._is_committed(sent), PATIENCE_S)
        client = self.world.net[CLIENT]
        assert_each_once(rows_in_kafka(client, self.world.servers, self.settings.rows), sent)
        await_that("the files are committed", lambda: len(self.files.rows()) >= sent * SOURCES)
        assert_each_once(self.files.rows(), sent)

    def _is_committed(self, sent: int) -> bool:
        return len(self.sightings.first) >= sent * SOURCES


@dataclass(frozen=True)
class Seen:
    """What came of a cell."""

    cell: Cell
    recovered_s: float  #: from the moment at which the network was whole again to a row that was sent after that
    silence_s: float  #: the longest time in which no new row appeared
    failures: list[str]  #: of attempts, as the driver told them
    rows: int  #: of this job so far: all of them compared

    def note(self) -> None:
        """For the page, where the environment names a folder."""
        folder = os.environ.get("TIDEGATE_TRIED")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            told = {"id": self.cell.id, **asdict(self), "on": time.strftime("%Y-%m-%d", time.gmtime())}
            (Path(folder) / f"{self.cell.id}.json").write_text(json.dumps(told, indent=1) + "\n")
        print(f"{self.cell}: recovered {self.recovered_s} s after it, {self.failures or 'no failure'}")


class Lives:
    """The job of now; a new one after a cell that went wrong."""

    def __init__(self, world: World, folder: Path, **config: Any) -> None:
        self._world = world
        self._folder = folder
        self._config = config
        self._now: Life | None = None

    def try_out(self, cell: Cell) -> Seen:
        if self._now is None:
            self._now = Life(self._world, self._folder, **self._config)
        try:
            seen = self._now.try_out(cell)
        except BaseException:
            print(self._now.driver.story())
            self.end()
            raise
        seen.note()
        return seen

    def end(self) -> None:
        if self._now is not None:
            self._now.end()
            self._now = None


@contextlib.contextmanager
def lives_in(folder: Path, wired: tuple[str, ...] = (), settings: str = "") -> Iterator[Lives]:
    with world(folder, wired, SETTINGS[settings]) as made:
        lives = Lives(made, folder, **dict(SETTINGS[settings].config))
        try:
            yield lives
        finally:
            lives.end()
