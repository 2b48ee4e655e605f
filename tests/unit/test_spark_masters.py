"""A Spark master that is not there is one sentence, before Spark starts: real sockets, no JVM."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.errors import ConfigurationError, SparkUnavailable
from tidegate.spark.masters import addresses, check_master, did_not_start
from tidegate.spark.resource_manager import resource_managers

PROGRAM = """
import sys
import tidegate as tg

env = tg.StreamEnvironment("job", master=sys.argv[1])
env.checkpointing(every="1s", storage="memory")
env.from_sequence(1, 3, uid="numbers").collect(uid="all")
env.execute()
"""


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> Iterator[int]:
    """A port that is ours, and at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_all_addresses_of_a_list_are_tried_and_told(closed: int) -> None:
    master = f"spark://127.0.0.1:{closed},nowhere.invalid:7077"
    with pytest.raises(SparkUnavailable) as raised:
        check_master(master)

    message = str(raised.value)
    assert message.startswith(
        f"no Spark master answers at {master} (127.0.0.1:{closed}: Connection refused; nowhere.invalid:"
    )
    assert "--master, tidegate.master or StreamEnvironment(master=...)" in message
    assert raised.value.master == master


def test_one_master_that_answers_is_enough(closed: int, listening: int) -> None:
    check_master(f"spark://127.0.0.1:{closed},127.0.0.1:{listening}")


@pytest.mark.parametrize("master", ["k8s://https://nowhere.invalid:443", "local[4]"])
def test_where_only_spark_knows_the_way_nobody_is_asked(master: str) -> None:
    check_master(master)


def test_yarns_resource_manager_is_asked_where_hadoops_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: int, listening: int
) -> None:
    yarn_site(tmp_path, monkeypatch, {"yarn.resourcemanager.address": f"127.0.0.1:{closed}"})
    with pytest.raises(
        SparkUnavailable, match=f"no resource manager of YARN answers .127.0.0.1:{closed}: Connection refu"
    ):
        check_master("yarn")

    one, two = f"127.0.0.1:{closed}", f"127.0.0.1:{listening}"
    prefix = "yarn.resourcemanager"
    yarn_site(
        tmp_path,
        monkeypatch,
        {f"{prefix}.ha.rm-ids": "a, b", f"{prefix}.address.a": one, f"{prefix}.address.b": two},
    )
    check_master("yarn")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"yarn.resourcemanager.hostname": "one"}, [("one", 8032)]),
        ({"yarn.resourcemanager.hostname": "one", "yarn.resourcemanager.address": "two:1"}, [("two", 1)]),
        ({"yarn.resourcemanager.ha.rm-ids": "a", "yarn.resourcemanager.hostname.a": "one"}, [("one", 8032)]),
        ({"yarn.resourcemanager.address": "${yarn.resourcemanager.hostname}:8032"}, []),
        ({}, []),
    ],
)
def test_what_only_hadoop_can_find_out_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], expected: list[tuple[str, int]]
) -> None:
    yarn_site(tmp_path, monkeypatch, properties)
    assert resource_managers(os.environ) == expected


def test_yarn_without_hadoops_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SparkUnavailable, match="set HADOOP_CONF_DIR to the folder with its yarn-site"):
        check_master("yarn")
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=f"there is no yarn-site.xml in {tmp_path}"):
        check_master("yarn")
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        check_master("yarn")


def yarn_site(folder: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]) -> None:
    lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()]
    (folder / "yarn-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))


@pytest.mark.parametrize("master", ["spark://host", "spark://", "spark://host:port", "spark://one:7077,,two:7077"])
def test_an_address_that_cannot_be_one_is_refused(master: str) -> None:
    with pytest.raises(ConfigurationError, match="write spark://host:7077, or several as"):
        check_master(master)


def test_addresses_may_be_of_version_6() -> None:
    assert addresses("spark://[::1]:7077,two:7078") == [("::1", 7077), ("two", 7078)]


def test_a_program_is_told_in_one_sentence_without_a_jvm(tmp_path: Path, closed: int) -> None:
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    no_java = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, str(program), f"spark://127.0.0.1:{closed}"],
        capture_output=True,
        text=True,
        timeout=120,
        env=no_java,
    )

    assert ran.returncode == 1
    starting, error, *place = ran.stderr.splitlines()
    assert "starting Spark for 1 slot on spark://127.0.0.1" in starting
    assert error.startswith(f"error: no Spark master answers at spark://127.0.0.1:{closed}")
    assert [line.strip() for line in place] == [f"at {program}:8", "env.execute()"]


SAID = [
    "26/11/18 03:32:23 WARN StandaloneAppClient$ClientEndpoint: Failed to connect to master one:8080\n",
    "org.apache.spark.SparkException: Exception thrown in awaitResult: \n",
    *["\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)\n"] * 190,
    "26/11/18 03:32:43 ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters are "
    "unresponsive! Giving up.\n",
]


def test_what_takes_connections_and_is_not_a_master_is_a_sentence_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    error = did_not_start("spark://one:8080", RuntimeError("Cannot call methods on a stopped SparkContext."), SAID)

    message, _, file = str(error).partition(" What it said itself is in ")
    assert message == (
        "Spark did not start on spark://one:8080: All masters are unresponsive! Giving up. Something takes connections there, "
        "but not as a master: is it its port, and not that of its web page?"
    )
    assert Path(file).read_text() == "".join(SAID)


def test_a_spark_that_does_not_start_is_a_sentence_too(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    no_java = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, str(program), "local[2]"], capture_output=True, text=True, timeout=120, env=no_java
    )

    assert ran.returncode == 1
    assert "error: Spark did not start on local[2]: " in ran.stderr
    assert "Traceback" not in ran.stderr
