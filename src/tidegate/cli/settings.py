"""Settings from the command line and from files, turned into one change of a job's JobConfig. Driver; pure.

Later settings win: the file first, then -D, then the options with a name of their own (--parallelism and so on).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.cli.options import FIXED, FLINK_PROCESSES, OPTIONS, UNSUPPORTED, UNSUPPORTED_FAMILIES, FixedOption, Option
from tidegate.config import JobConfig
from tidegate.errors import ConfigurationError
from tidegate.settings.choices import RestartKind
from tidegate.settings.declaring import Origin, SetBy, Told

SPARK_PREFIX = "spark."  #: handed to Spark as they are


@dataclass(frozen=True, slots=True)
class WrittenSetting:
    """One `key = value`, as it was written."""

    key: str
    value: str
    origin: Origin

    @property
    def where(self) -> str:
        return f"{self.key} ({self.origin.where})"


def setting_of(argument: str) -> WrittenSetting:
    """What follows -D. :raises ConfigurationError: without an equals sign."""
    key, equals, value = argument.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"-D {argument}: write -D key=value, like -D execution.checkpointing.interval=10s")
    return WrittenSetting(key.strip(), value.strip(), by_option("-D"))


def by_option(name: str) -> Origin:
    return Origin(SetBy.COMMAND_LINE, name)


@dataclass(frozen=True, slots=True)
class ConfigOverrides:
    """Implements overrides.Overrides: what was set, over what the program says."""

    values: dict[str, Told] = field(default_factory=dict)  #: by the settings' names
    strategies: dict[str, WrittenSetting] = field(
        default_factory=dict
    )  #: restart strategies, and what was set for each
    spark: dict[str, str] = field(default_factory=dict)  #: Spark's own settings

    def __call__(self, config: JobConfig) -> JobConfig:
        """:raises ConfigurationError: for a setting of a restart strategy that the job does not use."""
        result = config.told(self.values)
        used = result.restart.kind or RestartKind.EXPONENTIAL_DELAY
        for strategy, setting in self.strategies.items():
            if strategy != used:
                raise ConfigurationError(
                    f"{setting.where} is a setting of another restart strategy than the job's, which is {used}: set "
                    f"restart-strategy.type={strategy} too, or leave it out"
                )
        return result


def overrides_of(settings: Iterable[WrittenSetting]) -> ConfigOverrides:
    """:raises ConfigurationError: for the first setting that is unknown, unsupported or unreadable."""
    result = ConfigOverrides()
    for setting in settings:
        if setting.key.startswith(SPARK_PREFIX):
            result.spark[setting.key] = setting.value
            continue
        match _BY_KEY.get(setting.key):
            case Option(key, declared):
                value = declared.kind.from_text(setting.value, setting.where)
                result.values[declared.name] = Told(value, setting.origin)
                if key.strategy:
                    result.strategies[key.strategy] = setting
            case FixedOption() as fixed:
                if setting.value.strip().lower() != fixed.only.lower():
                    raise ConfigurationError(
                        f"{setting.where}: {setting.value} is not supported yet, only {fixed.only}: {fixed.reason}"
                    )
            case None:
                raise ConfigurationError(_refusal(setting))
    return result


def _refusal(setting: WrittenSetting) -> str:
    key = setting.key
    if key in UNSUPPORTED or key.startswith(UNSUPPORTED_FAMILIES):
        return f"{setting.where} is a key of Flink's that Tidegate does not support yet"
    if key.startswith(FLINK_PROCESSES):
        return (
            f"{setting.where} configures Flink's own processes. Spark runs this job: leave it out, and give Spark's settings "
            "with -D spark.KEY=VALUE"
        )
    near = difflib.get_close_matches(key, _BY_KEY, n=2, cutoff=0.6)
    near += [known for known in _BY_KEY if known.rpartition(".")[2] == key and known not in near]
    hint = f"Did you mean {' or '.join(near)}?" if near else "docs/configuration.md lists all keys."
    return f"{setting.where} is not a key that Tidegate knows. {hint}"


_BY_KEY: dict[str, Option | FixedOption] = {
    **{name: option for option in OPTIONS for name in (option.key.name, *option.key.aliases)},
    **{name: fixed for fixed in FIXED for name in (fixed.key, *fixed.aliases)},
}
