"""Configuration files: the part of YAML that Flink's config.yaml uses (a mapping, flat or nested), or key=value lines.

    execution.checkpointing.interval: 10 s        execution:
                                                    checkpointing:
    parallelism.default=4                             dir: file:///data/checkpoints   # comments

Lists, anchors, several documents and multi-line values are refused, with the line. Driver; pure but for `read_config_file`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tidegate.cli.settings import WrittenSetting
from tidegate.errors import ConfigurationError
from tidegate.settings.declaring import Origin, SetBy

_ENTRY = re.compile(r"""(["']?)(?P<key>[A-Za-z0-9_.-]+)\1\s*(?:(?P<colon>:)(?:\s+|$)|=\s*)(?P<value>.*)""")
_QUOTED = re.compile(r"""(["'])(?P<value>.*?)\1\s*(?:#.*)?""")
_REFUSED = {
    "[": "a list", "{": "a mapping in braces", "|": "a value over several lines", ">": "a value over several lines",
    "&": "an anchor", "*": "a reference", "!": "a tag",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A mapping whose entries stand at `indent`."""

    indent: int
    prefix: str


@dataclass(frozen=True, slots=True)
class _Opened:
    """A key without a value: its entries must follow, further in."""

    indent: int
    key: str
    line: int


def read_config_file(path: str) -> list[WrittenSetting]:
    """:raises ConfigurationError: when the file cannot be read, or for the first bad line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {path}: cannot be read: {error}") from error
    return parse_config(text, Path(path).name)


def parse_config(text: str, name: str) -> list[WrittenSetting]:
    """The settings in order. :raises ConfigurationError: naming file and line."""
    settings: dict[str, WrittenSetting] = {}
    mappings = [_Mapping(0, "")]
    opened: _Opened | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or (line == "---" and not settings):
            continue
        where = f"{name}, line {number}"
        indent = _indent_of(raw, where)
        if opened is not None:
            if indent <= opened.indent:
                raise _without_value(opened, name)
            mappings.append(_Mapping(indent, f"{opened.key}."))
        while mappings[-1].indent > indent:
            mappings.pop()
        if mappings[-1].indent != indent:
            raise ConfigurationError(f"{where}: the indentation does not fit the lines before it")
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise ConfigurationError(f'{where}: {line!r} is not a setting. Write "key: value" or "key=value".')
        key, value = mappings[-1].prefix + entry["key"], _value_of(entry["value"], where)
        opened = _Opened(indent, key, number) if entry["colon"] and value is None else None
        if opened is None:
            if key in settings:
                raise ConfigurationError(f"{where}: {key} is set twice (see {settings[key].origin.where})")
            settings[key] = WrittenSetting(key, value or "", Origin(SetBy.FILE, where))
    if opened is not None:
        raise _without_value(opened, name)
    return list(settings.values())


def _indent_of(raw: str, where: str) -> int:
    space = raw[: len(raw) - len(raw.lstrip())]
    if "\t" in space:
        raise ConfigurationError(f"{where}: indented with a tab; use spaces")
    return len(space)


def _value_of(text: str, where: str) -> str | None:
    """None where there is none. A comment begins at a # after a space."""
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        return quoted["value"]
    value = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    if value[:1] in _REFUSED:
        raise ConfigurationError(
            f'{where}: {_REFUSED[value[0]]} is not understood here. Write one "key: value" a line.'
        )
    return value or None


def _without_value(opened: _Opened, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name}, line {opened.line}: {opened.key} has no value, and no entries of its own are indented below it"
    )
