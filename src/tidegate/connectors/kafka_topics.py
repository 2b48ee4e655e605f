"""Which topics of Kafka, and which places in them: names or a pattern, partitions, offsets. Driver and executors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Union

from tidegate.connectors.kafka_client import Trouble, asked, kafka
from tidegate.errors import ConfigurationError

#: "earliest", "latest", a moment, or offsets: {partition: offset} for one topic, {topic: {partition: offset}} for several.
Place = Union[str, datetime, Mapping[Any, Any]]


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


def bounds(consumer: Any, trouble: Trouble, topic: str, partition: int) -> tuple[int, int]:
    """The first offset, and the one after the last. :raises ConnectorError: when nobody answers."""
    place, action = kafka().TopicPartition(topic, partition), f"look for the ends of {topic}/{partition}"
    low, high = asked(consumer, trouble, action, lambda wait_s: consumer.get_watermark_offsets(place, timeout=wait_s))
    return low, high


def resolved(consumer: Any, trouble: Trouble, topic: str, partition: int, place: Place, missing: int, high: int) -> int:
    if place == "latest":
        return high
    if isinstance(place, datetime):
        moment, action = (
            kafka().TopicPartition(topic, partition, round(place.timestamp() * 1e6) // 1000),
            f"look for {place} in {topic}/{partition}",
        )
        (found,) = asked(consumer, trouble, action, lambda wait_s: consumer.offsets_for_times([moment], timeout=wait_s))
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
    if topic is None:
        return asked(client, trouble, "look at the topics", lambda wait_s: client.list_topics(timeout=wait_s)).topics
    action = f"look at the topic {topic!r}"
    return asked(client, trouble, action, lambda wait_s: client.list_topics(topic, wait_s)).topics
