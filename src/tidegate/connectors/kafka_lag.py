"""How many records a reader of Kafka has before it, by what its client has heard with the last fetch. Executor; any thread.

No broker is asked. A partition of which nothing was fetched yet is left out, and so is what comes after a bounded source's end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from tidegate.connectors.kafka_client import kafka


class PartitionLag:
    """Asks a consumer until `close`, which must come before the consumer's: that one lets go of the GIL while it ends."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._lock = threading.Lock()
        self._closed = False

    def metrics(self, positions: Iterable[tuple[str, int, int, int | None]]) -> dict[str, float]:
        """From topic, partition, next offset and end of each. Flink's names."""
        lags = []
        with self._lock:
            if self._closed:
                return {}
            for topic, partition, offset, end in positions:
                place = kafka().TopicPartition(topic, partition)
                try:
                    _, high = self._consumer.get_watermark_offsets(place, cached=True)
                except kafka().KafkaException:
                    continue  # it does not know the partition yet
                if high >= 0:  # else it has not heard of one yet
                    lags.append(max(0, (high if end is None else min(high, end)) - offset))
        if not lags:
            return {}
        return {"pendingRecords": sum(lags), "KafkaSourceReader.KafkaConsumer.records-lag-max": max(lags)}

    def close(self) -> None:
        with self._lock:
            self._closed = True
