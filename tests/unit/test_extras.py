"""Packages of the extras: each is one that pyproject.toml names, and a missing one is said where the job is built."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.config import JobConfig
from tidegate.extras import ALL, Extra

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("extra", ALL, ids=lambda extra: extra.name)
def test_what_is_told_to_be_installed_installs_the_package(extra: Extra) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    assert [re.split(r"[\[<>=]", line)[0] for line in extras[extra.name]] == [extra.package]
    assert extra.load().__name__ == extra.module


BUILT: dict[str, Callable[[], Any]] = {
    "kafka": lambda: tg.KafkaSource("localhost:9092", topics="t"),
    "delta": lambda: tg.DeltaSink("/tmp/never"),
    "postgres": lambda: tg.DatabaseUpsertSink("postgresql://localhost/shop", table="t", key=["id"]),
    "mysql": lambda: tg.DatabaseTable("mysql://localhost/shop", "t"),
    "rocksdb": lambda: JobConfig(state_backend="rocksdb").validate(),
}


@pytest.mark.parametrize("name", BUILT)
def test_a_missing_package_is_said_where_the_job_is_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (extra,) = (each for each in ALL if each.name == name)
    monkeypatch.setitem(sys.modules, extra.module, None)

    with pytest.raises(tg.ConfigurationError) as refused:
        BUILT[name]()

    assert str(refused.value) == (
        f"{extra.needed_by} needs the package {extra.package}, here and on every executor: pip install 'tidegate[{name}]'"
    )
