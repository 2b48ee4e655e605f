"""From Kafka to Kafka, each record once: orders in, the total of each customer out.

    python examples/kafka_totals.py localhost:9092

Sends a few orders first, into topics that are made for this run. Bounded: it reads what is there when it begins, and ends.
Without `end=` it would run for ever. Needs `pip install 'tidegate[kafka]'`.
"""

import dataclasses
import json
import sys
import tempfile
import uuid

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tidegate as tg

servers = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
run = uuid.uuid4().hex[:8]
orders_topic, totals_topic = f"orders-{run}", f"totals-{run}"


@dataclasses.dataclass(frozen=True)
class Order:
    customer: str
    amount: int


admin = AdminClient({"bootstrap.servers": servers})
made = admin.create_topics([NewTopic(orders_topic, 2, 1), NewTopic(totals_topic, 2, 1)])
for future in made.values():
    future.result()
producer = Producer({"bootstrap.servers": servers})
for n in range(100):
    order = {"customer": f"customer-{n % 4}", "amount": n}
    producer.produce(orders_topic, json.dumps(order).encode(), partition=n % 2)
producer.flush()

env = tg.StreamEnvironment(f"totals-{run}", parallelism=2)
env.checkpointing(every="1s", storage=f"file://{tempfile.mkdtemp(prefix='kafka-totals-')}")
orders = env.from_source(tg.KafkaSource(servers, orders_topic, type=Order, end="latest"), uid="orders")
totals = orders.key_by("customer").sum("amount", uid="totals")
totals.sink_to(tg.KafkaSink(servers, totals_topic, key=0), uid="to-kafka")
totals.collect(uid="here")

client = env.execute()

last: dict[str, int] = {}
for customer, total in client.results("here"):
    last[customer] = max(total, last.get(customer, 0))
for customer in sorted(last):
    print(customer, last[customer])
