"""Settings from the command line and from files, turned into one change of a job's JobConfig. Driver; pure.

Later settings win: the file first, then -D, then the options with a name of their own (--parallelism and so on).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.cli.options import FIXED, FLINK_PROCESSES, OPTIONS, UNSUPPORTED, UNSUPPORTED_FAMILIES, FixedOption, Option
from tidegate.config import JobConfig, RestartSettings
from tidegate.errors import ConfigurationError

SPARK_PREFIX = "spark."  #: handed to Spark as they are


@dataclass(frozen=True, slots=True)
class Setting:
    """One `key = value`, as it was written."""

    key: str
    value: str
    origin: str  #: "-D", "--parallelism" or "flink.yaml, line 3"

    @property
    def where(self) -> str:
        return f"{self.key} ({self.origin})"


def setting_of(argument: str) -> Setting:
    """What follows -D. :raises ConfigurationError: without an equals sign."""
    key, equals, value = argument.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"-D {argument}: write -D key=value, like -D execution.checkpointing.interval=10s")
    return Setting(key.strip(), value.strip(), "-D")


@dataclass(frozen=True, slots=True)
class ConfigOverrides:
    """Implements api.overrides.Overrides: what was set, over what the program says."""

    fields: dict[str, Any] = field(default_factory=dict)  #: of JobConfig
    restart: dict[str, Any] = field(default_factory=dict)  #: of RestartSettings
    strategies: dict[str, Setting] = field(default_factory=dict)  #: for which strategies something was set, and what
    spark: dict[str, str] = field(default_factory=dict)  #: Spark's own settings

    def __call__(self, config: JobConfig) -> JobConfig:
        """:raises ConfigurationError: for a setting of a restart strategy that the job does not use."""
        return replace(config, **self.fields, restart=self._restart_over(config))

    def _restart_over(self, config: JobConfig) -> RestartSettings:
        base = config.restart
        kind = self.restart.get("kind", base.kind)
        for strategy, setting in self.strategies.items():
            if strategy != (kind or "exponential-delay"):
                raise ConfigurationError(
                    f"{setting.where} is a setting of another restart strategy than the job's, which is "
                    f"{kind or 'exponential-delay'}: set restart-strategy.type={strategy} too, or leave it out"
                )
        if kind != base.kind and "kind" in self.restart:
            base = RestartSettings()  # the numbers of another strategy mean nothing to this one
        return replace(base, **self.restart)


def overrides_of(settings: Iterable[Setting]) -> ConfigOverrides:
    """:raises ConfigurationError: for the first setting that is unknown, unsupported or unreadable."""
    result = ConfigOverrides()
    for setting in settings:
        if setting.key.startswith(SPARK_PREFIX):
            result.spark[setting.key] = setting.value
            continue
        match _BY_KEY.get(setting.key):
            case Option() as option:
                value = option.read(setting.value, setting.where)
                part, _, name = option.field.rpartition(".")
                (result.restart if part else result.fields)[name] = value
                if option.strategy:
                    result.strategies[option.strategy] = setting
            case FixedOption() as fixed:
                if setting.value.strip().lower() != fixed.only.lower():
                    raise ConfigurationError(
                        f"{setting.where}: {setting.value} is not supported yet, only {fixed.only}: {fixed.reason}"
                    )
            case None:
                raise ConfigurationError(_refusal(setting))
    return result


def _refusal(setting: Setting) -> str:
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
    name: entry for entry in (*OPTIONS, *FIXED) for name in (entry.key, *entry.aliases)
}
