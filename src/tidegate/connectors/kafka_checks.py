"""What users' functions give for a message of Kafka, looked at when it is written. Executor, the task's thread.

In a checkpoint it would be too late: what cannot be read back there, or no broker takes, could never be committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.errors import ConfigurationError, TypeDeclarationError

Headers = list[tuple[str, bytes | None]]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MAX_PARTITION = 2**31 - 1
_RETURNS = "the function of {name}= must give {wanted}; it has given {given}."


def checked_topic(what: str, topic: Any) -> str:
    """:raises TypeDeclarationError: when it cannot be the name of a topic."""
    if type(topic) is str and _TOPIC.fullmatch(topic) is not None and topic not in (".", ".."):
        return topic
    wanted = 'the name of a topic (1 to 249 letters, digits, ".", "_" and "-")'
    raise TypeDeclarationError(f"{what}: " + _RETURNS.format(name="topic", wanted=wanted, given=_shown(topic)))


def checked_partition(what: str, partition: Any) -> int:
    """None is -1: by the key. :raises TypeDeclarationError: when it is not a number of a partition."""
    if partition is None:
        return -1
    is_number = type(partition) is int or (
        hasattr(partition, "__index__") and not isinstance(partition, bool)
    )  # of numpy
    if is_number and -1 <= (number := int(partition)) <= _MAX_PARTITION:
        return number
    wanted = "the number of a partition, or None for one by the key"
    raise TypeDeclarationError(f"{what}: " + _RETURNS.format(name="partition", wanted=wanted, given=_shown(partition)))


def checked_headers(what: str, headers: Any) -> Headers:
    """As [(name, bytes or None)]. A dict becomes its pairs, text its UTF-8, as Kafka's client has them.

    :raises TypeDeclarationError: for anything else.
    """
    if headers is None:
        return []
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return [(_name(name), _value(value)) for name, value in pairs]
    except (TypeError, ValueError):  # no pairs, no such values, or no Unicode
        wanted = "[(name, bytes)]"
        told = _RETURNS.format(name="headers", wanted=wanted, given=_shown(headers))
        raise TypeDeclarationError(f"{what}: {told}") from None


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError
    name.encode()
    return str(name)


def _value(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is not None and not isinstance(value, bytes):
        raise TypeError
    return value


def headers_size(headers: Headers) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


def refuse_partition(what: str, topic: str, partition: int, partitions: int) -> ConfigurationError:
    return ConfigurationError(
        f"{what}: the function of partition= has given {partition}, and the topic {topic!r} has the partitions 0 to "
        f"{partitions - 1}. Correct the function, or add partitions to the topic."
    )


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
