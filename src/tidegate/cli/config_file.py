"""Configuration files: YAML as in Flink's config.yaml (a mapping, flat or nested), or key=value lines.

    execution.checkpointing.interval: 10 s        execution:
    python.files: [rules.py, prices.py]             checkpointing:
                                                      dir: file:///data/checkpoints   # comments

A value is the text that stands there, and what it means is for its setting to say: YAML makes nothing of `yes` or `1e3`
before. The parts of a list are put together with commas. Driver; pure but for `read_config_file`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tidegate.cli.settings import WrittenSetting
from tidegate.errors import ConfigurationError
from tidegate.settings.declaring import Origin, SetBy

_PROPERTY = re.compile(r"""(?P<key>[\w.-]+)\s*=\s*(["']?)(?P<value>.*?)\2\s*(?:(?<=\s)#.*)?""")
_NULL = "tag:yaml.org,2002:null"

Entry = tuple[str, str, int]  #: key, value, the line's number from 0


class _Bad(Exception):
    """(line, what)"""


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
    try:
        for key, value, line in _entries(text):
            where = f"{name}, line {line + 1}"
            if key in settings:
                raise _Bad(line, f"{key} is set twice (see {settings[key].origin.where})")
            settings[key] = WrittenSetting(key, value, Origin(SetBy.FILE, where))
    except _Bad as error:
        line, what = error.args
        raise ConfigurationError(f"{name}, line {line + 1}: {what}") from error.__cause__
    return list(settings.values())


def _entries(text: str) -> Iterator[Entry]:
    """By the first line that is not a comment: properties, or YAML."""
    lines = [(n, line) for n, raw in enumerate(text.splitlines()) if (line := raw.strip()) and line[0] != "#"]
    if lines and _PROPERTY.fullmatch(lines[0][1]):
        yield from _properties(lines)
        return
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        begun = f" ({error.context}, since line {error.context_mark.line + 1})" if error.context_mark else ""
        raise _Bad(error.problem_mark.line, f"{error.problem}{begun}") from error
    except yaml.reader.ReaderError as error:
        raise _Bad(text.count("\n", 0, error.position), error.reason) from error
    if root is not None:
        yield from _below(root, "", set())


def _properties(lines: list[tuple[int, str]]) -> Iterator[Entry]:
    for number, line in lines:
        entry = _PROPERTY.fullmatch(line)
        if entry is None:
            raise _Bad(number, f'{line!r} is not a setting. Write "key=value", as in the first line')
        yield entry["key"], entry["value"], number


def _below(node: yaml.Node, key: str, passed: set[yaml.Node]) -> Iterator[Entry]:
    """The setting `key`, or all that are below it. `passed`: mappings; one that refers to itself would have no end."""
    line = node.start_mark.line
    if isinstance(node, yaml.MappingNode):
        if node in passed:
            raise _Bad(line, "a mapping is used twice (&, *): write it out")
        passed.add(node)
        for name, value in node.value:
            yield from _below(value, f"{key}.{_text(name)}" if key else _text(name), passed)
    elif not key:
        raise _Bad(line, 'these are not settings. Write "key: value", a line each')
    elif node.tag == _NULL:
        raise _Bad(line, f"{key} has no value, and no entries of its own are indented below it")
    else:
        yield key, ",".join(map(_text, node.value)) if isinstance(node, yaml.SequenceNode) else _text(node), line


def _text(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value).strip()
    raise _Bad(node.start_mark.line, "a list or a mapping inside a list, or as a key, is not understood here")
