"""A slot whose driver has gone without a word ends by itself: it must not be at work for an attempt that was given up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from faults.kit import TESTS
from hosts.lonely_slot import TOKEN
from hosts.network import Network, network, ways
from tidegate.coordinator.server import ControlServer
from tidegate.ids import AttemptId, AttemptNumber, Generation
from unit.control_kit import DEADLINE_S, Driver

PATIENCE_S = 1.5


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(["driver", "worker"]) as made:
        yield made


@contextmanager
def lonely_slot(net: Network) -> Iterator[tuple[Driver, subprocess.Popen[bytes]]]:
    """The driver hears its heartbeats."""
    driver = Driver()
    with net["driver"].inside():
        server = ControlServer(net["driver"].address, AttemptId(Generation(1), AttemptNumber(1)), TOKEN, driver)
    with net["worker"].inside():
        slot = subprocess.Popen(
            [sys.executable, "-m", "hosts.lonely_slot", net["driver"].address, str(server.port), str(PATIENCE_S)],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        )
    try:
        driver.wait_for(lambda: bool(driver.heartbeats()))
        yield driver, slot
    finally:
        net.heal()
        server.close()
        slot.kill()
        slot.communicate()


@pytest.mark.parametrize("direction", ["both", "there", "back"])
def test_a_slot_that_hears_nothing_of_its_driver_ends(net: Network, direction: str) -> None:
    with lonely_slot(net) as (_, slot):
        net.cut(ways(["driver"], ["worker"], direction))

        assert slot.wait(DEADLINE_S) == 70


def test_a_slot_whose_driver_is_back_in_time_stays(net: Network) -> None:
    with lonely_slot(net) as (driver, slot):
        net.cut(ways(["driver"], ["worker"]))
        heard = len(driver.heartbeats())
        net.heal()

        driver.wait_for(lambda: len(driver.heartbeats()) > heard + 2)
        assert slot.poll() is None
