"""Records a second through the Kafka source and sink, beside the plain client doing the same work in a loop.

The connectors' own classes, without the job around them: what they cost over the client. Reading: JSON messages to dicts.
Writing: dicts as JSON into transactions of an epoch each. A broker of its own is started on loopback.
"""

from __future__ import annotations

import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import finish, fresh_folder, interleave, median, ratios, spread

from kafka_broker import Broker
from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Polled, ReaderContext, WriterContext
from tidegate.connectors.kafka_sink import KafkaSink
from tidegate.connectors.kafka_source import KafkaSource
from tidegate.types import record_type

RECORDS = 200_000
encode, decode = msgspec.json.encode, msgspec.json.decode  # the same JSON in both loops
EPOCH = 50_000
ROUNDS = 5
ROWS = [{"number": number, "customer": f"customer-{number % 100}", "amount": number % 37} for number in range(EPOCH)]


class Bench:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.input = self.topic()
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
        for _ in range(0, RECORDS, EPOCH):
            for row in ROWS:
                produce(producer, self.input, encode(row))
            producer.flush()
        self.output = self.topic()

    def topic(self) -> str:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
        return name

    def read_plain(self) -> float:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "b", "isolation.level": "read_committed"})
        consumer.list_topics(self.input, timeout=10)
        began = time.perf_counter()
        consumer.assign([TopicPartition(self.input, 0, OFFSET_BEGINNING)])
        rows = 0
        while rows < RECORDS:
            rows += len([decode(message.value()) for message in consumer.consume(2000, 0.1)])
        elapsed = time.perf_counter() - began
        consumer.close()
        return RECORDS / elapsed

    def read_source(self) -> float:
        source = KafkaSource(self.servers, self.input, end="latest")
        splits = source.discover_splits(1)
        reader = source.reader(ReaderContext(0, 1, time.monotonic, time.sleep))
        began = time.perf_counter()
        reader.add_splits(splits)
        rows = 0
        while rows < RECORDS:
            polled = reader.poll(time.monotonic() + 0.1)
            rows += len(polled.records if isinstance(polled, Polled) else polled or ())
        elapsed = time.perf_counter() - began
        reader.close()
        return RECORDS / elapsed

    def write_plain(self) -> float:
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": uuid.uuid4().hex, "linger.ms": 5})
        producer.init_transactions()
        began = time.perf_counter()
        for _ in range(0, RECORDS, EPOCH):
            producer.begin_transaction()
            for row in ROWS:
                produce(producer, self.output, encode(row))
            producer.commit_transaction()
        return RECORDS / (time.perf_counter() - began)

    def write_sink(self) -> float:
        sink = KafkaSink(self.servers, self.output)
        context = WriterContext(
            job="bench",
            uid="out",
            subtask=0,
            parallelism=1,
            attempt="g1-a1",
            clock=time.monotonic,
            record_type=record_type(None),
            send_to_driver=lambda topic, payload: None,
            incarnation=uuid.uuid4().hex,
        )
        writer, committer = sink.writer(context), sink.committer(context)
        assert committer is not None
        committer.commit(_prepared(writer, ROWS[:1], 1))  # its producer is there, as in a running job
        began = time.perf_counter()
        for number in range(RECORDS // EPOCH):
            assert committer.commit(_prepared(writer, ROWS, number + 2)) == [CommitOutcome.DONE]
        elapsed = time.perf_counter() - began
        committer.close()
        return RECORDS / elapsed


def _prepared(writer: Any, rows: list[Any], checkpoint: int) -> list[bytes]:
    for start in range(0, len(rows), 2000):
        writer.write(Batch(record_type(None), rows=rows[start : start + 2000]))
    prepared: list[bytes] = writer.prepare(checkpoint)
    return prepared


def produce(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            producer.poll(0.1)


def main() -> None:
    folder = fresh_folder("kafka")
    broker = Broker(folder).start()
    try:
        bench = Bench(broker.address)
        runs = {
            "read plain": bench.read_plain,
            "read source": bench.read_source,
            "write plain": bench.write_plain,
            "write sink": bench.write_sink,
        }
        results = interleave(ROUNDS, runs)
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)
    finish(
        {
            "benchmark": "kafka",
            "records": RECORDS,
            "records_per_s": {name: median(values) for name, values in results.items()},
            "read_ratio": median(ratios(results["read source"], results["read plain"])),
            "read_ratio_spread": spread(ratios(results["read source"], results["read plain"])),
            "write_ratio": median(ratios(results["write sink"], results["write plain"])),
            "write_ratio_spread": spread(ratios(results["write sink"], results["write plain"])),
        }
    )


if __name__ == "__main__":
    main()
