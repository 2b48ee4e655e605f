"""A job's settings by the keys that one sets, each with where it came from. Driver; pure. Secrets stay hidden."""

from __future__ import annotations

from typing import Any

from tidegate.config import SETTINGS, JobConfig
from tidegate.settings.declaring import Key, Setting
from tidegate.storage.store import without_credentials

SECRET = "******"


def settings_of(config: JobConfig) -> list[dict[str, str]]:
    """Those that have a key, in the order of their declaration; of restart strategies only that of the job."""
    found = []
    for setting in SETTINGS.values():
        key = _key_of(setting, strategy_of(config))
        if key is not None:
            origin = config.origin(setting.name)
            found.append(
                {
                    "key": key.name,
                    "value": _shown(setting, config.value(setting.name), key),
                    "origin": str(origin),
                    "source": origin.source.value,
                    "says": key.says,
                }
            )
    return found


def by_key(config: JobConfig) -> dict[str, str]:
    return {setting["key"]: setting["value"] for setting in settings_of(config)}


def strategy_of(config: JobConfig) -> str:
    """The restart strategy that the job has, also where nobody chose one."""
    return str(config.restart.kind or ("exponential-delay" if config.interval_s else "none"))


def _key_of(setting: Setting, strategy: str) -> Key | None:
    return next((key for key in setting.keys if key.name and key.strategy in ("", strategy)), None)


def _shown(setting: Setting, value: Any, key: Key) -> str:
    if setting.is_secret and value:
        return SECRET
    if value == setting.default:
        return setting.default_of(key)
    return without_credentials(setting.to_text(value))
