"""What all tests share: one Spark, a seed that is shown when a test fails, and the rule that nothing is left behind.

Tests marked `spark` share one JVM with 48 slots: `spark_session` is made before the first of them, and a job that makes
its own session gets this one. A test that needs another session runs it in a process of its own.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import settings

from jvms import start_quickly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["services"]  # Kafka, PostgreSQL, MariaDB

SPARK_SLOTS = 48
SLOTS_OF_A_TEST_JOB = 20
#: Folders whose tests share a broker, a server or a browser, and so a process.
GROUP_OF_FOLDER = {
    "endtoend": "services",
    "kafka": "services",
    "databases": "services",
    "storages": "storages",
    "operating": "operating",
    "hosts": "hosts",
}
ORDER = (
    "endtoend",
    "kafka",
    "databases",
    "operating",
    "faults",
    "hosts",
    "storages",
    "spark",
    "protocol",
    "exploration",
    "docs",
    "unit",
)
#: Folders whose tests compute all the time; those of the others wait for processes that they have started.
COMPUTING = ("protocol", "exploration", "docs", "unit")
PATIENCE_S = 10.0  #: what is on its way out may take this long; on a busy machine it does

# A deadline for each example would measure the machine's load, and pytest's own timeout is there.
settings.register_profile("tidegate", deadline=None, print_blob=True)
settings.load_profile("tidegate")
start_quickly()


def group_of(path: str) -> str:
    """What runs in one process when `make test` uses several: a file, or all that share a broker, a server or a browser."""
    folder, file = path.split("/")[-2:]
    return GROUP_OF_FOLDER.get(folder, f"{folder}/{file}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By path, and not by xdist's marker for groups: with pytest 9.2 xdist 3.8 does not see it, and says nothing.

    One process begins with the tests that compute, so that the cores are not idle while the tests of the others wait.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.split("::")[0])

        def _assign_work_unit(self, node: Any) -> None:
            computes = node is self.nodes[-1]
            wanted = (group for group in self.workqueue if group.startswith(COMPUTING) == computes)
            group = next(wanted, None)
            if group is not None:
                self.workqueue.move_to_end(group, last=False)
            super()._assign_work_unit(node)

    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups are handed out in this order, so the longest come first and the shortest fill what is left of the time."""
    changing = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if changing:  # xdist compares the names in its processes, and runs nothing where they differ
        raise pytest.UsageError(f"the names of these tests change from run to run; give them ids=: {changing}")
    items.sort(key=lambda item: ORDER.index(item.path.parent.name))


@pytest.fixture
def seed() -> int:
    """For tests with randomness. pytest shows what was printed when a test fails."""
    given = os.environ.get("TIDEGATE_SEED")
    chosen = random.SystemRandom().getrandbits(32) if given is None else int(given)
    print(f"random seed: {chosen} (again: TIDEGATE_SEED={chosen})")
    return chosen


@pytest.fixture
def the_dead_leave_files_open() -> Iterator[None]:
    """A process that dies in one process is an object that is dropped with its files open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def registry_of_running_jobs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tests' jobs, also those of processes that tests start, stay out of the user's own registry folder."""
    os.environ["TIDEGATE_REGISTRY"] = str(tmp_path_factory.mktemp("registry"))


@pytest.fixture(scope="session")
def spark_session(no_process_is_left_behind: None) -> Iterator[SparkSession]:
    from tidegate.spark.session import make_session

    session = make_session("tests", f"local[{SPARK_SLOTS}]", SLOTS_OF_A_TEST_JOB)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def spark_tests_share_one_session(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark") is not None:
        request.getfixturevalue("spark_session")


@pytest.fixture(autouse=True)
def no_thread_is_left_behind(spark_tests_share_one_session: None) -> Iterator[None]:
    """A thread that is not a daemon would keep the user's program from ending."""
    before = set(threading.enumerate())
    yield
    started = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in started:
        thread.join(PATIENCE_S)
    left = [thread.name for thread in started if thread.is_alive()]
    assert not left, f"the test left threads behind: {left}"


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left_behind() -> Iterator[None]:
    """Set up first and torn down last, so after Spark. What is found is ended, or it would disturb the next run."""
    before = set(psutil.Process().children(recursive=True))
    yield
    end_the_jvm()
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
    _, left = psutil.wait_procs([child for child in started if not is_pythons_own(child)], timeout=PATIENCE_S)
    described = [describe(process) for process in left]
    for process in left:
        process.kill()
    assert not left, "the tests left processes behind: " + "; ".join(described)


def end_the_jvm() -> None:
    """PySpark keeps its JVM until the interpreter ends; a stopped session does not end it."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends when its input does
        gateway.proc.wait(PATIENCE_S)
        SparkContext._gateway = SparkContext._jvm = None


def is_pythons_own(process: psutil.Process) -> bool:
    """multiprocessing's tracker of shared memory ends with the interpreter."""
    return "multiprocessing.resource_tracker" in describe(process)


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid} (gone)"
