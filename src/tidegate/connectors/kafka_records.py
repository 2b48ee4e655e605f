"""Kafka's messages as records, and records as messages. Executor, the task's thread.

    reading   "json"    the value as JSON, typed when the source has a type
              "text"    the value as UTF-8
              "bytes"   the value as it is
              "record"  a KafkaRecord: key, value, where it stood, when
              a function from a KafkaRecord to the record
    writing   "json", "text", "bytes", or a function from the record to bytes

A message that cannot be read is a BadRecord: the job fails with it, or it goes to a side output, as the source says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Union

from tidegate.connectors.json_records import json_decoder, json_encoder
from tidegate.errors import ConfigurationError
from tidegate.types import RecordType, field_type, record_type


@dataclass(frozen=True)
class KafkaRecord:
    """One message, as Kafka keeps it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Optional[bytes]  # noqa: UP045 - read by the types, which name it so
    value: Optional[bytes]  # noqa: UP045
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True)
class BadRecord:
    """A message that could not be read, and why."""

    topic: str
    partition: int
    offset: int
    key: Optional[bytes]  # noqa: UP045
    value: Optional[bytes]  # noqa: UP045
    problem: str


Decode = Union[str, Callable[[KafkaRecord], Any]]
Encode = Union[str, Callable[[Any], bytes]]
KeyOf = Union[None, str, int, Callable[[Any], Any]]

FORMATS = ("json", "text", "bytes")


def record_of(message: Any) -> KafkaRecord:
    return KafkaRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        [(name, value or b"") for name, value in message.headers() or []],
    )


def bad_record(message: Any, error: Exception) -> BadRecord:
    problem = "it has no value (a tombstone)" if message.value() is None else f"{type(error).__name__}: {error}"
    return BadRecord(message.topic(), message.partition(), message.offset(), message.key(), message.value(), problem)


def decoded_type(decode: Decode, type: Any) -> Any:
    """The type of the source's stream.

    :raises ConfigurationError: when the two contradict each other.
    """
    of_format = {"text": str, "bytes": bytes, "record": KafkaRecord}
    if callable(decode) or decode == "json":
        return type
    if decode not in of_format:
        raise ConfigurationError(f'decode is "json", "text", "bytes", "record" or a function; got {decode!r}.')
    if type not in (None, of_format[decode]):
        raise ConfigurationError(f"decode={decode!r} gives {of_format[decode].__name__}; leave type= out.")
    return of_format[decode]


def decoder(decode: Decode, type: Any) -> Callable[[Any], Any]:
    """From a message to the record; raises for one that does not fit."""
    if callable(decode):
        copy = record_type(type).copier() or _itself  # the function may return one object again and again
        return lambda message: copy(decode(record_of(message)))
    if decode == "json":
        read = json_decoder(type).decode
        return lambda message: read(message.value())
    if decode == "text":
        return lambda message: message.value().decode()
    if decode == "bytes":
        return _value
    return record_of


def _itself(record: Any) -> Any:
    return record


def _value(message: Any) -> bytes:
    value: bytes | None = message.value()
    if value is None:
        raise TypeError("no value")
    return value


def encoder(encode: Encode) -> Callable[[Any], bytes]:
    if callable(encode):
        return encode
    if encode not in FORMATS:
        raise ConfigurationError(f'value is "json", "text", "bytes" or a function; got {encode!r}.')
    return {"json": json_encoder.encode, "text": _text, "bytes": _bytes}[encode]


def _text(record: Any) -> bytes:
    if not isinstance(record, str):
        raise TypeError(f"{type(record).__qualname__} is not a str.")
    return record.encode()


def _bytes(record: Any) -> bytes:
    if not isinstance(record, bytes):
        raise TypeError(f"{type(record).__qualname__} is not bytes.")
    return record


def key_encoder(key: KeyOf, records: RecordType) -> Callable[[Any], bytes | None]:
    """bytes as they are, str as UTF-8, None as none, anything else as JSON."""
    if key is None:
        return lambda record: None
    if callable(key):
        select = key
    else:
        field = key
        if records.typed:
            field_type(records, field)  # refuses a field that is not there
        if isinstance(field, str):
            select = lambda record: record[field] if isinstance(record, dict) else getattr(record, field)  # noqa: E731
        else:
            select = lambda record: record[field]  # noqa: E731

    def encoded(record: Any) -> bytes | None:
        value = select(record)
        if value is None or isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else json_encoder.encode(value)

    return encoded
