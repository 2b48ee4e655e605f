"""From Kafka to PostgreSQL, each record once: payments in, a row for each in a table.

    python examples/kafka_to_postgres.py localhost:9092 postgresql://me@localhost/shop

Sends a few payments first, into a topic that is made for this run; the table is its own, too. The positions in Kafka are part
of each checkpoint, and rows are committed with it: by a prepared transaction where the server allows them, else with a ledger
in the same transaction. Bounded: without `end=` it would run for ever. Needs `pip install 'tidegate[kafka,postgres]'`.
"""

import dataclasses
import json
import sys
import tempfile
import uuid

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tidegate as tg

servers = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"
url = sys.argv[2] if len(sys.argv) > 2 else "postgresql://localhost/shop"
run = uuid.uuid4().hex[:8]
topic, table = f"payments-{run}", f"payments_{run}"


@dataclasses.dataclass(frozen=True)
class Payment:
    id: int
    customer: str
    cents: int


admin = AdminClient({"bootstrap.servers": servers})
admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
producer = Producer({"bootstrap.servers": servers})
for n in range(100):
    payment = {"id": n, "customer": f"customer-{n % 4}", "cents": n * 100}
    producer.produce(topic, json.dumps(payment).encode(), partition=n % 2)
producer.flush()
with psycopg.connect(url) as connection:
    connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, customer text, cents bigint)")  # type: ignore[call-overload]

env = tg.StreamEnvironment(f"payments-{run}", parallelism=2)
env.checkpointing(every="1s", storage=f"file://{tempfile.mkdtemp(prefix='kafka-to-postgres-')}")
payments = env.from_source(tg.KafkaSource(servers, topic, type=Payment, end="latest"), uid="payments")
large = payments.filter(lambda payment: payment.cents >= 5_000)
large.sink_to(tg.DatabaseSink(url, table), uid="to-postgres")

env.execute()

with psycopg.connect(url) as connection:
    query = f"SELECT customer, count(*), sum(cents) FROM {table} GROUP BY customer ORDER BY customer"
    for customer, count, cents in connection.execute(query):  # type: ignore[call-overload]
        print(customer, count, cents)
    connection.execute(f"DROP TABLE {table}")  # type: ignore[call-overload]
