"""Settings are declared once: what a program, a file and the command line say, and where each value came from."""

from __future__ import annotations

import inspect
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.cli.config_file import parse_config
from tidegate.cli.settings import overrides_of, setting_of
from tidegate.config import RESTART, SETTINGS, JobConfig, RestartSettings
from tidegate.graph.plan import MAX_LAYER_WIDTH
from tidegate.launch import slot_settings
from tidegate.protocol.autoscaling import ScalingPolicy
from tidegate.protocol.checkpointing import CheckpointPolicy
from tidegate.settings.choices import CheckpointMode, RestartKind
from tidegate.settings.declaring import Origin, SetBy
from tidegate.settings.kinds import BYTES, SECONDS
from tidegate.task.program import SlotSettings

HERE = str(Path(__file__))


def env(**checkpointing: Any) -> tg.StreamEnvironment:
    return tg.StreamEnvironment("job").checkpointing(storage="file:///data", **checkpointing)


def test_every_field_of_the_configuration_is_a_setting_with_a_key() -> None:
    names = {field.name for field in fields(JobConfig)} - {"restart", "origins"}
    names |= {f"{RESTART}{field.name}" for field in fields(RestartSettings)}

    assert set(SETTINGS) == names
    assert [name for name, setting in SETTINGS.items() if not all(key.name and key.says for key in setting.keys)] == []


def test_every_keyword_of_the_environments_methods_says_a_setting_and_the_other_way_round() -> None:
    declared = {setting.said_by for setting in SETTINGS.values() if setting.said_by}
    methods = {said.partition("(")[0] for said in declared}

    keywords = {
        f"{method}({keyword})"
        for method in methods
        for keyword in inspect.signature(getattr(tg.StreamEnvironment, method)).parameters
        if keyword != "self"
    }
    assert keywords == declared


@pytest.mark.parametrize("name", SETTINGS)
def test_a_default_is_read_again_as_it_is_documented(name: str) -> None:
    setting = SETTINGS[name]
    for key in setting.keys:
        if key.default is None and setting.default not in (None, ()):
            assert setting.kind.from_text(setting.default_of(key), key.name) == setting.default


def test_slots_and_the_protocol_have_the_same_defaults() -> None:
    assert JobConfig().policy() == CheckpointPolicy()
    assert slot_settings(JobConfig(storage="file:///data")) == SlotSettings()
    assert JobConfig().scaling_policy() == ScalingPolicy()
    assert ScalingPolicy().most == MAX_LAYER_WIDTH


def test_a_second_call_keeps_what_it_does_not_name() -> None:
    job = env(every="1s", timeout="2min", unaligned=True, retained=3, claim=True, savepoints="file:///backups")

    config = job.checkpointing(every="5s", unaligned=False).config()

    assert config == JobConfig(
        storage="file:///data",
        interval_s=5.0,
        timeout_s=120.0,
        retained=3,
        claim_mode="claim",
        savepoint_dir="file:///backups",
    )
    job.state_backend("rocksdb", memory="64mb").state_backend(local_recovery=True)
    assert job.config().rocksdb_memory_bytes == 64 << 20
    assert job.config().state_backend == "rocksdb"


def test_what_is_refused_changes_nothing() -> None:
    job = env(every="1s")

    with pytest.raises(tg.ConfigurationError, match="below 10 ms"):
        job.checkpointing(every="1ms", retained=5)

    assert job.config() == JobConfig(storage="file:///data", interval_s=1.0)


def test_another_restart_strategy_begins_with_its_own_defaults_and_the_same_one_keeps_them() -> None:
    job = tg.StreamEnvironment("job").restart_strategy("fixed-delay", attempts=9, delay="7s")

    assert job.restart_strategy("fixed-delay", delay="2s").config().restart == RestartSettings(
        kind=RestartKind.FIXED_DELAY, attempts=9, delay_s=2.0
    )
    assert job.restart_strategy("failure-rate").config().restart == RestartSettings(kind=RestartKind.FAILURE_RATE)
    assert job.config().origin("restart.delay_s") == Origin(SetBy.DEFAULT)


def test_each_value_knows_where_it_came_from() -> None:
    job = tg.StreamEnvironment("job").checkpointing(every="1s", timeout="2min", storage="file:///data")
    line = inspect.currentframe().f_lineno - 1
    written = [
        *parse_config("execution.checkpointing.timeout: 3 min\nrestart-strategy: none", "flink.yaml"),
        setting_of("state.checkpoints.num-retained=2"),
    ]

    config = overrides_of(written)(job.config(resume="latest"))

    assert str(config.origin("interval_s")) == f"program: {HERE}:{line}"
    assert str(config.origin("resume")).startswith(f"program: {HERE}:")
    assert config.origin("timeout_s") == Origin(SetBy.FILE, "flink.yaml, line 1")
    assert str(config.origin("restart.kind")) == "file: flink.yaml, line 2"
    assert str(config.origin("retained")) == "command line: -D"
    assert str(config.origin("min_pause_s")) == "default"
    assert JobConfig(min_pause_s=1.0).origin("min_pause_s") == Origin(SetBy.PROGRAM)


def test_words_become_members_of_their_enums_and_unknown_ones_are_refused_at_once() -> None:
    assert JobConfig(mode="at-least-once").mode is CheckpointMode.AT_LEAST_ONCE
    assert JobConfig(state_backend="heap").state_backend == "hashmap"
    with pytest.raises(tg.ConfigurationError, match='retention \'perhaps\' is unknown: use "retain" or "delete"'):
        JobConfig(retention="perhaps")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.01, "10 ms"), (1.5, "1500 ms"), (90.0, "90 s"), (600.0, "10 min"), (86400.0, "1 d")],
)
def test_durations_are_written_in_the_largest_whole_unit(seconds: float, text: str) -> None:
    assert SECONDS.to_text(seconds) == text
    assert SECONDS.from_program(timedelta(seconds=seconds), "x") == seconds


def test_sizes_are_written_in_the_largest_whole_unit() -> None:
    assert [BYTES.to_text(size) for size in (0, 1000, 20 << 10, 1 << 30)] == ["0 bytes", "1000 bytes", "20 kb", "1 gb"]
