"""What sessions on YARN and Kubernetes get beside the rest. Pure; real runs are in tests/faults/test_yarn.py."""

from __future__ import annotations

import pytest

from tidegate.spark.session import session_settings

SIGNAL, SOCKETS = "spark.executor.decommission.signal", "spark.python.unix.domain.socket.dir"
FORGIVEN = "spark.executor.failuresValidityInterval"


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local[4]", {SIGNAL: "TERM"}),
        ("spark://host:7077", {SIGNAL: "TERM"}),
        ("yarn", {SIGNAL: "TERM", SOCKETS: "/tmp", FORGIVEN: "1h"}),
        ("k8s://https://host", {SIGNAL: "PWR", FORGIVEN: "1h"}),
    ],
)
def test_each_manager_has_its_own(master: str, expected: dict[str, str]) -> None:
    made = session_settings(master, {})
    assert {key: made[key] for key in (SIGNAL, SOCKETS, FORGIVEN) if key in made} == expected


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host"])
def test_what_the_user_says_holds(master: str) -> None:
    given = {SIGNAL: "USR2", SOCKETS: "/var/run", FORGIVEN: "1d"}
    assert given.items() <= session_settings(master, given).items()
