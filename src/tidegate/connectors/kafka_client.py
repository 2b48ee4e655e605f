"""What the Kafka source and sink share: settings, clients, and errors in our words. Driver and executors.

A connection is shipped with the job, so it holds settings only. Secrets are among them: they are shown nowhere. Options may
also be a function that is called where a client is made, on the driver and on each executor: then they do not even travel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

from tidegate import extras
from tidegate.errors import ConfigurationError, ConnectorError, TidegateError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

log = logging.getLogger("tidegate.kafka")

T = TypeVar("T")
Options = Union[Mapping[str, Any], Callable[[], Mapping[str, Any]]]

METADATA_S = 10.0  #: how long a question about topics may take
_LOOK_S = 0.5  #: how long it may take before the client is asked whether it has been refused
_PAUSE_S = 0.05  #: before it is asked again
#: What the connectors decide themselves. Everything else of librdkafka's settings is the user's.
RESERVED = frozenset(
    {
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "enable.partition.eof",
        "enable.idempotence",
        "transactional.id",
        "transaction.timeout.ms",
        "group.id",
        "isolation.level",
    }
)
#: The client's own limit is 10 s: brokers that are back would be found that much later.
_PROMPT = {"reconnect.backoff.max.ms": 1000}
_QUIET = {
    "log_level": 0,
    "logger": log,
}  #: else the client writes to stderr when it is fenced, which is what we want of it


def kafka() -> Any:
    """The client library.

    :raises ConfigurationError: when it is not installed.
    """
    return extras.KAFKA.load()


class KafkaConnection:
    """Where the brokers are and how to talk to them."""

    def __init__(self, servers: str, options: Options | None) -> None:
        extras.KAFKA.check()
        if not isinstance(servers, str) or not servers:
            raise ConfigurationError('servers must be "host:port", or several with commas between them.')
        self.servers = servers
        self._options: Options = {} if options is None else options
        if isinstance(self._options, Mapping):
            _refuse_reserved(self._options)

    def __repr__(self) -> str:
        return f"<Kafka at {self.servers}>"

    def option(self, name: str, default: Any) -> Any:
        return self._given().get(name, default)

    def _given(self) -> Mapping[str, Any]:
        given = self._options() if callable(self._options) else self._options
        _refuse_reserved(given)
        return given

    def _settings(self, trouble: Trouble, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **_QUIET,
            **_PROMPT,
            **self._given(),
            **settings,
            "bootstrap.servers": self.servers,
            "error_cb": trouble.note,
        }

    def consumer(self, trouble: Trouble, **settings: Any) -> Any:
        """Settings with "_" for "."."""
        return self._made("Consumer", trouble, settings)

    def producer(self, trouble: Trouble, **settings: Any) -> Any:
        return self._made("Producer", trouble, settings)

    def admin(self, trouble: Trouble) -> Any:
        from confluent_kafka.admin import AdminClient

        return self._build(AdminClient, trouble, {})

    def _made(self, kind: str, trouble: Trouble, settings: Mapping[str, Any]) -> Any:
        return self._build(getattr(kafka(), kind), trouble, settings)

    def _build(self, kind: Any, trouble: Trouble, settings: Mapping[str, Any]) -> Any:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        try:
            return kind(self._settings(trouble, dotted))
        except kafka().KafkaException as error:  # a setting that there is not, or a value it cannot have
            raise ConfigurationError(f"Kafka's client refuses the options: {error.args[0].str()}") from None


def _refuse_reserved(options: Mapping[str, Any]) -> None:
    taken = sorted(RESERVED.intersection(options))
    if taken:
        raise ConfigurationError(f"The Kafka connectors set {', '.join(taken)} themselves: leave it out of options.")


class Trouble:
    """What a client reports in the background: the reason for a time-out. Thread-safe enough: one reference is set."""

    def __init__(self, connection: KafkaConnection, what: str) -> None:
        self._connection = connection
        self._what = what  #: "the Kafka source of orders"
        self._refused: KafkaError | None = None  #: the broker does not let us in
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        self._last = error
        codes = kafka().KafkaError
        if error.code() in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes._SSL):
            self._refused = error

    def in_words(self, action: str, error: Exception) -> TidegateError:
        """The error to raise in place of the library's: what could not be done, why, and the way out."""
        codes = kafka().KafkaError
        cause: KafkaError | None = error.args[0] if error.args and isinstance(error.args[0], codes) else None
        if self._refused is not None or (cause is not None and cause.code() in _no_entry()):
            return ConfigurationError(
                f"{self._what} at {self._connection.servers} could not {action}: the broker does not let it in "
                f"({_text(self._refused or cause)}). Look at security.protocol, sasl.* and ssl.* in options, and at the rights "
                "of that user."
            )
        if cause is not None and cause.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC):
            return ConfigurationError(
                f"{self._what} at {self._connection.servers} could not {action}: a topic is not there. Create it, or correct "
                "its name."
            )
        reason = _text(cause) if cause is not None else str(error)
        if self._last is not None and _text(self._last) != reason:
            reason = f"{reason}; {_text(self._last)}"
        return ConnectorError(
            f"{self._what} at {self._connection.servers} could not {action}: {reason}. Are the brokers up, and is the address "
            "right from every executor?"
        )

    def raise_if_refused(self, action: str) -> None:
        if self._refused is not None:
            raise self.in_words(action, kafka().KafkaException(self._refused))


def asked(client: Any, trouble: Trouble, action: str, ask: Callable[[float], T]) -> T:
    """The answer to a question, of which the argument says how long it may take. Asked again for a while: a topic that was made
    a moment ago has no leader yet, and one whose broker went away has none until another is chosen. A broker that does not
    let us in is told at once.

    :raises ConnectorError: when nobody answers. :raises ConfigurationError: when the broker does not let us in.
    """
    deadline = time.monotonic() + METADATA_S
    while True:
        try:
            return ask(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
        except kafka().KafkaException as error:
            client.poll(_PAUSE_S)  # lets it tell the reason
            trouble.raise_if_refused(action)
            if time.monotonic() >= deadline or error.args[0].code() in _no_entry():
                raise trouble.in_words(action, error) from None


def _no_entry() -> tuple[int, ...]:
    codes = kafka().KafkaError
    return (
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        codes.SASL_AUTHENTICATION_FAILED,
    )


def _text(error: KafkaError | None) -> str:
    return "" if error is None else f"{error.name()}: {error.str()}"
