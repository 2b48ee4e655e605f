"""Which topics of Kafka, and which places in them: names or a pattern, partitions, offsets. Driver and executors."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Union

from tidegate.connectors.kafka_client import METADATA_S, Trouble, kafka
from tidegate.errors import ConfigurationError

#: "earliest", "latest", a moment, or offsets: {partition: offset} for one topic, {topic: {partition: offset}} for several.
Place = Union[str, datetime, Mapping[Any, Any]]

_LOOK_S = 0.5  #: how long one question may take before the client is asked whether it has been refused


class Topics:
    """Which topics a source reads: names, or a pattern that finds them."""

    def __init__(self, topics: str | Sequence[str] | re.Pattern[str]) -> None:
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self.names = [topics] if isinstance(topics, str) else [] if isinstance(topics, re.Pattern) else list(topics)
        if self._pattern is None and (not self.names or len(set(self.names)) != len(self.names)):
            raise ConfigurationError(f"A Kafka source reads at least one topic, and each once; got {self.names}.")

    def __str__(self) -> str:
        return ", ".join(self.names) if self._pattern is None else f"topics like {self._pattern.pattern!r}"

    def fits(self, name: str) -> bool:
        return name in self.names if self._pattern is None else self._pattern.fullmatch(name) is not None

    def partitions(self, client: Any, trouble: Trouble, known: Iterable[str] = ()) -> dict[str, list[int]]:
        """Of each topic that fits. :raises ConfigurationError: when one that is named, or `known`, is not there."""
        if self._pattern is None:
            return partitions_of(client, self.names, trouble)
        found = topics_like(client, self._pattern, trouble)
        return found | partitions_of(client, set(known).difference(found), trouble)


def parted(split_id: str) -> tuple[str, int]:
    topic, _, partition = split_id.rpartition("/")
    return topic, int(partition)


def checked_place(name: str, place: Place, topics: Topics) -> Place:
    """Offsets as {topic: {partition: offset}}."""
    if isinstance(place, Mapping):
        if len(topics.names) == 1 and not all(isinstance(key, str) for key in place):
            place = {topics.names[0]: place}
        if not all(isinstance(topic, str) and topics.fits(topic) for topic in place):
            raise ConfigurationError(
                f"{name} must be {{partition: offset}} for one topic or {{topic: {{partition: offset}}}} for several; topics "
                f"are {topics}."
            )
        return {topic: dict(offsets) for topic, offsets in place.items()}
    if isinstance(place, datetime) or place in ("earliest", "latest"):
        return place
    raise ConfigurationError(f'{name} must be "earliest", "latest", a datetime or offsets; got {place!r}.')


def bounds(consumer: Any, topic: str, partition: int) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(kafka().TopicPartition(topic, partition), timeout=METADATA_S)
    return low, high


def resolved(consumer: Any, topic: str, partition: int, place: Place, missing: int, high: int) -> int:
    if place == "latest":
        return high
    if isinstance(place, datetime):
        moment_ms = int(place.timestamp() * 1000)
        (found,) = consumer.offsets_for_times([kafka().TopicPartition(topic, partition, moment_ms)], timeout=METADATA_S)
        return high if found.offset < 0 else int(found.offset)
    if isinstance(place, Mapping):
        return int(place.get(topic, {}).get(partition, missing))
    return missing


def topics_like(client: Any, pattern: re.Pattern[str], trouble: Trouble) -> dict[str, list[int]]:
    """The partitions of each topic whose whole name fits; never Kafka's own. :raises ConnectorError: when nobody answers."""
    return {
        name: sorted(topic.partitions)
        for name, topic in sorted(_described(client, None, trouble).items())
        if topic.error is None and pattern.fullmatch(name) and not name.startswith("__")
    }


def partitions_of(client: Any, topics: Iterable[str], trouble: Trouble) -> dict[str, list[int]]:
    """The partitions of each topic.

    :raises ConfigurationError: for a topic that is not there. :raises ConnectorError: when nobody answers.
    """
    found: dict[str, list[int]] = {}
    for topic in topics:
        described = _described(client, topic, trouble)[topic]
        if described.error is not None:
            raise trouble.in_words(f"look at the topic {topic!r}", kafka().KafkaException(described.error))
        found[topic] = sorted(described.partitions)
    return found


def _described(client: Any, topic: str | None, trouble: Trouble) -> Any:
    """Asked again until somebody answers, for a while; a broker that does not let us in is told at once."""
    action = "look at the topics" if topic is None else f"look at the topic {topic!r}"
    deadline = time.monotonic() + METADATA_S
    while True:
        wait_s = min(_LOOK_S, max(0.0, deadline - time.monotonic()))
        try:
            return (client.list_topics(timeout=wait_s) if topic is None else client.list_topics(topic, wait_s)).topics
        except kafka().KafkaException as error:
            client.poll(0)  # lets it tell the reason
            trouble.raise_if_refused(action)
            if time.monotonic() >= deadline:
                raise trouble.in_words(action, error) from None
