"""Flink's keys and values, and what is said about those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli.options import FIXED, OPTIONS, UNSUPPORTED, configuration_table
from tidegate.cli.settings import WrittenSetting, overrides_of, setting_of
from tidegate.config import JobConfig, RestartSettings
from tidegate.errors import ConfigurationError
from tidegate.settings.declaring import Origin, SetBy

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def configured(*settings: str, config: JobConfig | None = None) -> JobConfig:
    return overrides_of([setting_of(text) for text in settings])(config or JobConfig())


def refusal(*settings: str, config: JobConfig | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        configured(*settings, config=config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("execution.checkpointing.interval=10 s", "interval_s", 10.0),
        ("execution.checkpointing.interval=500ms", "interval_s", 0.5),
        ("execution.checkpointing.interval=1 min", "interval_s", 60.0),
        ("execution.checkpointing.interval=1500", "interval_s", 1.5),
        ("execution.checkpointing.timeout=2 h", "timeout_s", 7200.0),
        ("execution.checkpointing.dir=s3://bucket/x=y", "storage", "s3://bucket/x=y"),
        ("state.checkpoints.dir=file:///data", "storage", "file:///data"),
        ("execution.checkpointing.max-concurrent-checkpoints=3", "max_concurrent", 3),
        ("execution.checkpointing.tolerable-failed-checkpoints=0", "tolerable_failures", 0),
        ("state.checkpoints.num-retained=5", "retained", 5),
        ("execution.checkpointing.data-inline-threshold=20 kb", "inline_limit_bytes", 20480),
        ("tidegate.inbox-bytes=2mb", "inbox_bytes", 2 << 20),
        ("tidegate.inbox-bytes=4096", "inbox_bytes", 4096),
        ("execution.savepoint.path=chk-7", "resume", "chk-7"),
        ("execution.state-recovery.ignore-unclaimed-state=TRUE", "allow_dropped_state", True),
        ("parallelism.default=8", "parallelism", 8),
        ("execution.buffer-timeout=0 ms", "buffer_timeout_s", 0.0),
        ("heartbeat.timeout=50 s", "heartbeat_timeout_s", 50.0),
        ("tidegate.master=spark://host:7077", "master", "spark://host:7077"),
    ],
)
def test_a_key_sets_its_field(setting: str, field: str, value: object) -> None:
    assert getattr(configured(setting), field) == value


def test_what_is_not_set_stays_as_the_program_has_it() -> None:
    program = JobConfig(interval_s=5.0, storage="file:///own", retained=3)

    assert configured("execution.checkpointing.interval=1s", config=program) == JobConfig(
        interval_s=1.0, storage="file:///own", retained=3
    )


def test_a_later_setting_wins_over_an_earlier_one() -> None:
    assert configured("state.checkpoints.num-retained=2", "execution.checkpointing.num-retained=4").retained == 4


def test_no_key_stands_in_the_table_twice() -> None:
    keys = [key for option in OPTIONS for key in (option.key.name, *option.key.aliases)]
    keys += [key for fixed in FIXED for key in (fixed.key, *fixed.aliases)]
    keys += UNSUPPORTED

    assert sorted(keys) == sorted(set(keys))


# -- restart strategies ------------------------------------------------------------------------------------------------


def test_a_strategy_takes_its_own_numbers() -> None:
    restart = configured(
        "restart-strategy.type=fixed-delay",
        "restart-strategy.fixed-delay.attempts=3",
        "restart-strategy.fixed-delay.delay=2 s",
    ).restart

    assert (restart.kind, restart.attempts, restart.delay_s) == ("fixed-delay", 3, 2.0)


def test_another_strategy_does_not_inherit_the_numbers_of_the_program_s() -> None:
    program = JobConfig(restart=RestartSettings(kind="fixed-delay", attempts=99, delay_s=7.0))

    assert configured("restart-strategy=failure-rate", config=program).restart == RestartSettings(kind="failure-rate")


def test_numbers_alone_change_the_strategy_of_the_program() -> None:
    program = JobConfig(restart=RestartSettings(kind="fixed-delay", attempts=99, delay_s=7.0))

    restart = configured("restart-strategy.fixed-delay.delay=1 s", config=program).restart
    assert restart == RestartSettings(kind="fixed-delay", attempts=99, delay_s=1.0)


def test_numbers_of_a_strategy_that_is_not_used_are_refused() -> None:
    message = refusal("restart-strategy.fixed-delay.attempts=3")

    assert "restart-strategy.fixed-delay.attempts (-D)" in message
    assert "set restart-strategy.type=fixed-delay too" in message


@pytest.mark.parametrize("value", ["infinite", "2147483647"])
def test_flink_s_words_for_no_limit_mean_no_limit(value: str) -> None:
    key = "restart-strategy.exponential-delay.attempts-before-reset-backoff"

    assert configured(f"{key}={value}").restart.attempts is None
    assert configured(f"{key}=5").restart.attempts == 5


def test_off_and_disable_mean_no_restart() -> None:
    assert configured("restart-strategy.type=disable").restart.kind == "none"
    assert configured("restart-strategy.type=off").restart.kind == "none"


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_an_unknown_key_gives_the_nearest_names() -> None:
    assert "Did you mean execution.checkpointing.interval" in refusal("execution.checkpoint.interval=1s")


def test_the_last_word_of_a_key_is_enough_to_be_told_the_whole() -> None:
    assert "execution.checkpointing.min-pause" in refusal("min-pause=1s")


def test_a_key_that_is_near_nothing_points_to_the_list() -> None:
    assert refusal("qqq=1") == "qqq (-D) is not a key that Tidegate knows. docs/configuration.md lists all keys."


@pytest.mark.parametrize("key", ["execution.checkpointing.unaligned.forced", "state.backend.rocksdb.memory.managed"])
def test_a_key_of_flink_s_that_is_not_supported_is_refused_as_such(key: str) -> None:
    assert refusal(f"{key}=1") == f"{key} (-D) is a key of Flink's that Tidegate does not support yet"


def test_a_key_for_flink_s_own_processes_is_told_apart() -> None:
    assert "Flink's own processes" in refusal("taskmanager.numberOfTaskSlots=4")


def test_a_fixed_key_is_accepted_with_its_one_value_and_refused_with_others() -> None:
    assert configured("state.changelog.enabled=false") == JobConfig()

    message = refusal("state.changelog.enabled=true")
    assert "true is not supported yet, only false" in message


def test_the_state_backend_is_chosen_with_flinks_words() -> None:
    config = configured(
        "state.backend.type=rocksdb",
        "state.backend.rocksdb.memory.fixed-per-slot=64mb",
        "state.backend.rocksdb.localdir=/d",
    )
    assert (config.state_backend, config.rocksdb_memory_bytes, config.state_folder) == ("rocksdb", 64 << 20, "/d")
    assert config.increments, "RocksDB's checkpoints are incremental unless said otherwise"
    assert not configured("state.backend=rocksdb", "state.backend.incremental=false").increments
    assert not configured("state.backend=hashmap").increments
    assert configured("state.backend=hashmap", "execution.checkpointing.incremental=true").increments
    with pytest.raises(ConfigurationError, match="state backend 'disk' is unknown"):
        configured("state.backend.type=disk").validate()


def test_the_guarantee_is_one_setting_with_flinks_words() -> None:
    assert configured("execution.checkpointing.mode=AT_LEAST_ONCE").mode == "at-least-once"
    assert configured("execution.checkpointing.mode=exactly_once") == JobConfig()
    assert "checkpoint mode 'once' is unknown: use EXACTLY_ONCE or AT_LEAST_ONCE" in refusal(
        "execution.checkpointing.mode=once"
    )


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("execution.checkpointing.interval=soon", "'soon' is not a duration"),
        ("execution.checkpointing.interval=-1 s", "'-1 s' is not a duration"),
        ("tidegate.inbox-bytes=2 pigs", "'2 pigs' is not a memory size"),
        ("parallelism.default=two", "'two' is not a whole number"),
        ("parallelism.default=0", "must be at least 1"),
        ("execution.state-recovery.ignore-unclaimed-state=1", "neither true nor false"),
        (
            "restart-strategy.type=sometimes",
            "restart strategy 'sometimes' is unknown: use exponential-delay, fixed-delay,",
        ),
        ("execution.checkpointing.dir=", "is empty"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_origin(setting: str, complaint: str) -> None:
    message = refusal(setting)

    assert message.startswith(f"{setting.partition('=')[0]} (-D)")
    assert complaint in message


def test_a_setting_without_an_equals_sign_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write -D key=value"):
        setting_of("execution.checkpointing.interval")


def test_the_origin_of_a_setting_stands_in_the_message() -> None:
    with pytest.raises(ConfigurationError, match=r"flink\.yaml, line 3"):
        overrides_of([WrittenSetting("nonsense", "1", Origin(SetBy.FILE, "flink.yaml, line 3"))])


def test_spark_s_keys_are_handed_on_as_they_are() -> None:
    overrides = overrides_of([setting_of("spark.executor.memory=4g")])

    assert overrides.spark == {"spark.executor.memory": "4g"}
    assert overrides(JobConfig()) == JobConfig()


def test_the_documentation_lists_the_keys_of_the_table() -> None:
    assert DOCS.read_text(encoding="utf-8").endswith(configuration_table()), (
        "docs/configuration.md is out of date: end it with tidegate.cli.options.configuration_table()"
    )
