"""Minutes of faults at random moments: workers, executors and drivers of a standalone cluster with exactly the slots needed,
killed and frozen. Real Spark. `TIDEGATE_SOAK_S` sets how long; 600 by default."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from faults.cluster import StandaloneCluster, standalone_cluster
from faults.jobs.tally import SLOTS, SOURCES, Settings
from faults.kit import Driver, assert_exact, driver

SOAK_S = float(os.environ.get("TIDEGATE_SOAK_S", "600"))

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(SOAK_S * 4 + 600)]

RATE = 800.0
FAULTS = ["kill worker", "kill worker", "kill executor", "freeze worker", "freeze executor", "kill driver"]


def test_minutes_of_random_faults_change_nothing(tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    until = time.monotonic() + SOAK_S
    with standalone_cluster(tmp_path, SLOTS) as cluster:
        settings = Settings(
            name="soak",
            folder=str(tmp_path / "job"),
            readings=int(SOAK_S * RATE / SOURCES / 4),  # much of the time goes into recovering
            rate=RATE,
            every="500ms",
            heartbeat_s=5.0,
            master=cluster.master,
            spark_conf=cluster.settings,
            resume="latest",
        )
        drivers, faults = 0, 0
        ended = None
        while ended is None:
            drivers += 1
            with driver(settings) as running:
                ended, done = torment(cluster, running, moments, until)
                faults += done
                print(f"driver {drivers}: {done} faults, recovered in {[round(s, 1) for s in running.recoveries()]}")
    print(f"{faults} faults, {drivers} drivers, {SOAK_S:g} s")
    assert ended == "FINISHED"
    assert_exact(settings)


def torment(
    cluster: StandaloneCluster, running: Driver, moments: random.Random, until: float
) -> tuple[str | None, int]:
    """Fault after fault. How the job ended, or None when the driver was killed; and how many there were."""
    frozen: list[psutil.Process] = []
    faults = 0
    while time.monotonic() < until:
        if not await_progress(running, moments.randrange(1, 12)):
            break
        for process in frozen:  # woken long after others have taken over
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        frozen.clear()
        fault = moments.choice(FAULTS)
        workers = running.workers()
        executors = cluster.executors()
        if not executors or not workers:
            continue
        faults += 1
        with contextlib.suppress(psutil.NoSuchProcess):
            match fault:
                case "kill worker":
                    psutil.Process(moments.choice(workers)).kill()
                case "kill executor":
                    moments.choice(executors).kill()
                case "freeze worker":
                    frozen = [psutil.Process(moments.choice(workers))]
                case "freeze executor":
                    executor = moments.choice(executors)
                    frozen = [executor, *executor.children(recursive=True)]
                case "kill driver":
                    running.send_signal(signal.SIGKILL)
                    running.await_death()
                    return None, faults
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
    return running.await_end(patience_s=SOAK_S * 3), faults


def await_progress(running: Driver, checkpoints: int) -> bool:
    """So many more checkpoints. False when the job ends before."""
    seen = len(running.lines)
    running.await_line(
        f"{checkpoints} more checkpoints, or the end",
        lambda _: sum("completed" in line for line in running.lines[seen:]) >= checkpoints or running.count("ended"),
        patience_s=180.0,
    )
    return not running.count("ended")
