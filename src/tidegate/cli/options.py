"""The keys that -D and files take: those of the settings, and Flink's that Tidegate knows but does not support. Driver; pure.

The table drives the messages and docs/configuration.md (`configuration_table`). To support another key: take it from
UNSUPPORTED and declare the setting that it sets, in config.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.config import SETTINGS
from tidegate.settings.choices import RestartKind
from tidegate.settings.declaring import Key, Setting


@dataclass(frozen=True, slots=True)
class Option:
    """A key, and the setting that it sets."""

    key: Key
    setting: Setting


@dataclass(frozen=True, slots=True)
class FixedOption:
    """A key of Flink's for which Tidegate knows one way only; that value is accepted, others are refused."""

    key: str
    only: str
    reason: str
    aliases: tuple[str, ...] = ()


_STRATEGIES = ["", *RestartKind]

#: In the order of the documentation: the keys of a restart strategy stand together, at the end.
OPTIONS = sorted(
    (Option(key, setting) for setting in SETTINGS.values() for key in setting.keys),
    key=lambda option: _STRATEGIES.index(option.key.strategy),
)

FIXED = (
    FixedOption("execution.checkpointing.storage", "filesystem",
                "set execution.checkpointing.dir; memory there is Flink's jobmanager",
                ("state.checkpoint-storage",)),
    FixedOption("execution.checkpointing.checkpoints-after-tasks-finish", "true",
                "checkpoints continue when a part of the job has finished",
                ("execution.checkpointing.checkpoints-after-tasks-finish.enabled",)),
    FixedOption("execution.checkpointing.create-subdir", "true", "each job has a folder of its own, by its name"),
    FixedOption("execution.checkpointing.snapshot-compression", "false", "snapshots are not compressed",
                ("execution.checkpointing.snapshot-compression.enabled",)),
    FixedOption("execution.buffer-timeout.enabled", "true", "set execution.buffer-timeout.interval"),
    FixedOption("execution.runtime-mode", "STREAMING", "jobs are streams; bounded ones end by themselves"),
    FixedOption("state.changelog.enabled", "false", "there is no changelog"),
)  # fmt: skip

#: Flink's keys that a user may well try, by name; all are refused with "not supported yet".
UNSUPPORTED = (
    "execution.checkpointing.cleaner.parallel-mode",
    "execution.checkpointing.during-recovery.enabled",
    "execution.checkpointing.file-merging.across-checkpoint-boundary",
    "execution.checkpointing.file-merging.enabled",
    "execution.checkpointing.file-merging.max-file-size",
    "execution.checkpointing.file-merging.max-space-amplification",
    "execution.checkpointing.file-merging.pool-blocking",
    "execution.checkpointing.interval-during-backlog",
    "execution.checkpointing.sync-phase-timeout",
    "execution.checkpointing.unaligned.forced",
    "execution.checkpointing.unaligned.interruptible-timers.emit-intermediate-watermarks",
    "execution.checkpointing.unaligned.interruptible-timers.enabled",
    "execution.checkpointing.unaligned.max-subtasks-per-channel-state-file",
    "execution.checkpointing.unaligned.recover-output-on-downstream.enabled",
    "execution.checkpointing.write-buffer-size",
    "execution.state-recovery.without-channel-state.checkpoint-id",
    "pipeline.auto-watermark-interval",
    "pipeline.max-parallelism",
    "pipeline.name",
    "pipeline.operator-chaining.enabled",
    "pipeline.sources.pause-until-first-checkpoint",
)

#: Whole families that are not supported yet.
UNSUPPORTED_FAMILIES = (
    "state.backend.rocksdb.",
    "state.backend.forst.",
    "state.changelog.",
    "table.",
    "python.",
    "metrics.",
)

#: Families that configure Flink's own processes; Spark's take their place.
FLINK_PROCESSES = (
    "akka.", "blob.", "classloader.", "cluster.", "env.", "high-availability", "io.", "jobmanager.", "jobstore.",
    "kubernetes.", "pekko.", "queryable-state.", "resourcemanager.", "rest.", "security.", "slot.", "slotmanager.",
    "taskmanager.", "web.", "yarn.", "zookeeper.",
)  # fmt: skip


def configuration_table() -> str:
    """The tables of docs/configuration.md, in Markdown."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    for option in OPTIONS:
        key, setting = option.key, option.setting
        lines.append(
            f"| `{key.name}` | {setting.default_of(key)} | {key.says}.{_other_ways(setting)}{_older(key.aliases)} |"
        )
    lines += ["", "Keys of Flink's that are accepted with one value only, because Tidegate knows one way:", ""]
    lines += ["| key | value | why |", "| --- | --- | --- |"]
    for fixed in FIXED:
        lines.append(f"| `{fixed.key}` | {fixed.only} | {fixed.reason}.{_older(fixed.aliases)} |")
    lines += ["", "Keys of Flink's that are refused, because Tidegate does not support them yet:", ""]
    lines += [f"- `{key}`" for key in UNSUPPORTED]
    lines += [f"- `{family}*`" for family in UNSUPPORTED_FAMILIES]
    return "\n".join(lines) + "\n"


def _other_ways(setting: Setting) -> str:
    """How a program and the command line say it."""
    ways = [f"`env.{setting.said_by.replace(')', '=...)')}`"] if setting.said_by else []
    ways += [f"`{setting.option}`"] if setting.option else []
    return f" Also {' and '.join(ways)}." if ways else ""


def _older(keys: tuple[str, ...]) -> str:
    names = ", ".join(f"`{key}`" for key in keys)
    return f" Older name: {names}." if keys else ""
