"""Configuration files: flat, nested, key=value; and what is refused, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli.config_file import parse_config, read_config_file
from tidegate.errors import ConfigurationError


def pairs(text: str) -> dict[str, str]:
    return {setting.key: setting.value for setting in parse_config(text, "f.yaml")}


def complaint(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, "f.yaml")
    return str(caught.value)


def test_flat_and_nested_keys_are_the_same() -> None:
    nested = """
execution:
  checkpointing:
    interval: 10 s
    dir: file:///data
  buffer-timeout.interval: 5 ms
parallelism.default: 4
"""
    flat = """
execution.checkpointing.interval: 10 s
execution.checkpointing.dir: file:///data
execution.buffer-timeout.interval: 5 ms
parallelism.default: 4
"""
    assert pairs(nested) == pairs(flat) == {
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": "file:///data",
        "execution.buffer-timeout.interval": "5 ms",
        "parallelism.default": "4",
    }  # fmt: skip


def test_properties_are_read_too() -> None:
    assert pairs("# mine\nparallelism.default=4\ntidegate.master = spark://h:7077\n") == {
        "parallelism.default": "4",
        "tidegate.master": "spark://h:7077",
    }


def test_comments_and_quotes_are_understood() -> None:
    text = "---\n# first\na: 1 # second\nb: \"x # y\"  # third\nc: 'it # is'\nd: http://x/#frag\n"

    assert pairs(text) == {"a": "1", "b": "x # y", "c": "it # is", "d": "http://x/#frag"}


def test_a_value_is_its_text_and_a_list_has_commas() -> None:
    text = "a: yes\nb: 1e3\nc: 0777\nd: ''\nfiles: [rules.py, prices.py]\nmore:\n  - x\n  - y\nlong: >\n  one\n  two\n"

    assert pairs(text) == {
        "a": "yes", "b": "1e3", "c": "0777", "d": "", "files": "rules.py,prices.py", "more": "x,y", "long": "one two",
    }  # fmt: skip


def test_the_way_back_out_of_a_nested_mapping_ends_it() -> None:
    assert pairs("a:\n    b:\n        c: 1\n    d: 2\ne: 3\n") == {"a.b.c": "1", "a.d": "2", "e": "3"}


def test_each_setting_knows_its_line() -> None:
    (setting,) = parse_config("\n\na:\n  b: 1\n", "f.yaml")

    assert setting.origin.where == "f.yaml, line 4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nnonsense\n", "f.yaml, line 3: could not find expected ':' (while scanning a simple key, since line 2)"),
        ("a=1\nnonsense\n", "f.yaml, line 2: 'nonsense' is not a setting"),
        ("a: [1, [2]]\n", "f.yaml, line 1: a list or a mapping inside a list"),
        ("? [a]\n: 1\n", "f.yaml, line 1: a list or a mapping inside a list, or as a key"),
        ("- a\n", "f.yaml, line 1: these are not settings"),
        ("a: &x {b: *x}\n", "f.yaml, line 1: a mapping is used twice"),
        ("a: 1\n---\nb: 2\n", "f.yaml, line 2: but found another document"),
        ("a: 1\nb: \x00\n", "f.yaml, line 2: special characters are not allowed"),
        ("a: 1\na: 2\n", "f.yaml, line 2: a is set twice (see f.yaml, line 1)"),
        ("a:\n  b: 1\na.b: 2\n", "f.yaml, line 3: a.b is set twice (see f.yaml, line 2)"),
        ("a:\nb: 1\n", "f.yaml, line 1: a has no value"),
        ("b: 1\na:\n", "f.yaml, line 2: a has no value"),
        ("a:\n\tb: 1\n", "f.yaml, line 2: found character '\\t' that cannot start any token"),
        ("a: 1\n  b: 2\n", "f.yaml, line 2: mapping values are not allowed here"),
        ("a:\n    b: 1\n  c: 2\n", "f.yaml, line 3: expected <block end>"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(text: str, expected: str) -> None:
    assert complaint(text).startswith(expected)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.yaml: cannot be read"):
        read_config_file(str(tmp_path / "missing.yaml"))
