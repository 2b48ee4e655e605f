"""Latency of a record through two shuffles with exactly-once checkpoints, and what the waiting costs.

    python benchmarks/latency.py [seconds] [--rates 10,1000,10000] [--kafka-s 0] [--kafka-rate 1000] [--save NAME]

1,000 records a second for 60 s with checkpoints each second (`p50_ms`, `p99_ms`), then with checkpoints every 100 ms
(`p50_100ms_ms`, `p99_100ms_ms`); one record and 5 s of silence, 20 times (`lone_max_ms`). The stamp is taken when the source
makes the record, and read where the last operator gets it; both on one machine's clock.

CPU at each rate is that of the driver, the JVM and all workers, six slots, over the time after the warm-up: `cores`, and
`cpu_ms_per_record`.

`--kafka-s`: also Kafka to Kafka, exactly-once, checkpoints every 100 ms: from before a record is handed to a producer until a
consumer of another program that reads only what is committed has it (`kafka_p50_ms`, `kafka_p99_ms`). A third is warm-up.
Spark's own benchmark of Real-time Mode does it for 30 minutes. A broker of its own is started on loopback. Last line: JSON.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time as clock
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

import harness
import psutil

import tidegate as tg

WARM_UP_S = 10
RATE = 1000
Stamped = tuple[int, float]


class Count(tg.KeyedProcessFunction):
    seen = tg.ValueState(int, default=0)

    def process_element(self, record: Stamped, ctx: tg.Context) -> list[Stamped]:
        self.seen.set(self.seen.get() + 1)
        return [record]


class Measure(tg.KeyedProcessFunction):
    """Emits (number, latency in ms)."""

    def process_element(self, record: Stamped, ctx: tg.Context) -> list[tuple[int, float]]:
        return [(record[0], (time() - record[1]) * 1e3)]


def job(spark: Any, rate: float, count: int, every: str) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("latency", parallelism=2, spark=spark)
    env.checkpointing(every=every, storage=harness.fresh_folder("latency").as_uri())
    source = tg.DataGenerator(lambda i: (i, time()), count=count, rate=rate, type=Stamped, splits=2)
    (
        env.from_source(source, uid="source")
        .key_by(0)
        .process(Count(), uid="count", returns=Stamped)
        .key_by(lambda record: record[0] % 97, key_type=int)
        .process(Measure(), uid="measure", returns=Stamped)
        .collect(uid="latencies")
    )
    return env


def run(spark: Any, rate: float, count: int, every: str = "1s") -> list[tuple[int, float]]:
    return job(spark, rate, count, every).execute().results("latencies")


def steady(spark: Any, rate: float, seconds: int, every: str) -> list[float]:
    harness.say(f"{rate:,} records/s for {seconds + WARM_UP_S} s, checkpoints each {every}")
    return [
        ms for number, ms in run(spark, rate, int(rate * (seconds + WARM_UP_S)), every) if number >= rate * WARM_UP_S
    ]


# -- CPU ----------------------------------------------------------------------------------------------------------------------


def cpu_s() -> float:
    """Of this process and all that it started, and that still run."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def cost(spark: Any, rate: float, seconds: int) -> dict[str, float]:
    """While a job runs at a rate, after its warm-up."""
    client = job(spark, rate, int(rate * (seconds + 2 * WARM_UP_S)), "1s").execute_async()
    client.wait_until_running()
    clock.sleep(WARM_UP_S)
    began, before = clock.monotonic(), cpu_s()
    clock.sleep(seconds)
    took, used = clock.monotonic() - began, cpu_s() - before
    client.wait()
    harness.say(f"{rate:,} records/s: {used / took:.2f} cores")
    return {"cores": round(used / took, 3), "cpu_ms_per_record": round(used / (rate * took) * 1e3, 4)}


# -- Kafka to Kafka -----------------------------------------------------------------------------------------------------------


def kafka(spark: Any, seconds: int, rate: int) -> dict[str, float]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
    from confluent_kafka.admin import AdminClient, NewTopic

    from kafka_broker import Broker

    folder = harness.fresh_folder("latency-kafka")
    broker = Broker(folder).start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for made in admin.create_topics([NewTopic(name, 2, 1) for name in ("in", "out")]).values():
            made.result(30)
        return _kafka_to_kafka(spark, broker.address, seconds, rate)
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _kafka_to_kafka(spark: Any, servers: str, seconds: int, rate: int) -> dict[str, float]:
    from confluent_kafka import Producer

    env = tg.StreamEnvironment("latency-kafka", parallelism=2, spark=spark)
    env.checkpointing(every="100ms", storage=harness.fresh_folder("latency").as_uri())
    records = env.from_source(tg.KafkaSource(servers, "in", type=Stamped), uid="in")
    counted = records.key_by(lambda record: record[0] % 1000, key_type=int).process(
        Count(), uid="count", returns=Stamped
    )
    counted.sink_to(tg.KafkaSink(servers, "out"), uid="out")
    client = env.execute_async()
    client.wait_until_running()
    seen: list[Stamped] = []
    ended = threading.Event()
    reader = threading.Thread(target=_read, args=(servers, lambda number, ms: seen.append((number, ms)), ended))
    reader.start()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    began, count = clock.monotonic(), seconds * rate
    for number in range(count):
        clock.sleep(max(began + number / rate - clock.monotonic(), 0))
        producer.produce("in", f"[{number},{time()!r}]".encode(), partition=number % 2)
        producer.poll(0)
    producer.flush(30)
    deadline = clock.monotonic() + 60
    while len(seen) < count and clock.monotonic() < deadline:
        clock.sleep(0.1)
    ended.set()
    reader.join()
    client.cancel()
    client.wait()
    assert sorted(number for number, _ in seen) == list(range(count)), "each record once"
    late = [ms for number, ms in seen if number >= count // 3]
    harness.say(f"Kafka to Kafka: {len(late):,} records after the warm-up")
    return {
        "kafka_p50_ms": round(harness.percentile(late, 0.5), 1),
        "kafka_p99_ms": round(harness.percentile(late, 0.99), 1),
        "kafka_max_ms": round(max(late), 1),
        "kafka_s": seconds,
        "kafka_rate": rate,
    }


def _read(servers: str, see: Callable[[int, float], None], ended: threading.Event) -> None:
    """What somebody else's program sees."""
    import msgspec
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "measure",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition("out", partition, OFFSET_BEGINNING) for partition in range(2)])
    while not ended.is_set():
        for message in consumer.consume(500, 0.01):
            if message.error() is None:
                number, stamp = msgspec.json.decode(message.value())
                see(number, (time() - stamp) * 1e3)
    consumer.close()


def main(arguments: list[str] | None = None, spark: Any = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=int, nargs="?", default=60)
    parser.add_argument("--rates", default="10,1000,10000", help="whose CPU is measured")
    parser.add_argument("--kafka-s", type=int, default=0, help="0: without Kafka")
    parser.add_argument("--kafka-rate", type=int, default=1000)
    parser.add_argument("--lone", type=int, default=20, help="how many lone records")
    parser.add_argument("--save", help="name of a file in benchmarks/results")
    options = parser.parse_args(arguments)
    spark = spark or harness.session()
    run(spark, RATE, 5 * RATE)
    result: dict[str, Any] = {}
    for every, name in (("1s", ""), ("100ms", "100ms_")):
        late = steady(spark, RATE, options.seconds, every)
        for fraction, of in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (1.0, "max")):
            result[f"{of}_{name}ms"] = round(harness.percentile(late, fraction), 2)
        result["records"] = len(late)
    if options.lone:
        harness.say(f"one record each 5 s, {options.lone} times")
        lone = [ms for _, ms in run(spark, 0.2, options.lone + 1)][1:]
        result |= {"lone_max_ms": round(max(lone), 2), "lone_median_ms": round(harness.percentile(lone, 0.5), 2)}
    rates = [int(rate) for rate in options.rates.split(",") if rate]
    result["cpu"] = {rate: cost(spark, rate, options.seconds) for rate in rates}
    if options.kafka_s:
        result |= kafka(spark, options.kafka_s, options.kafka_rate)
    result["machine"] = harness.machine()
    if options.save:
        harness.save(options.save, result)
    harness.finish(result)


if __name__ == "__main__":
    main()
