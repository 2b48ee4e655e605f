"""Into a database, exactly once: the newest total of each customer is a row that is kept up to date.

    python examples/database_totals.py postgresql://me@localhost/shop

Works with PostgreSQL, MySQL and MariaDB. `DatabaseSink(..., key=...)` writes a row anew when its key comes again; rows and the
evidence of their commit change in one transaction, so no failure counts twice. Makes a table of its own for each run.
Needs `pip install 'tidegate[postgres]'` or `'tidegate[mysql]'`.
"""

import dataclasses
import sys
import tempfile
import uuid
from typing import Any
from urllib.parse import unquote, urlsplit

import tidegate as tg

url = sys.argv[1] if len(sys.argv) > 1 else "postgresql://localhost/shop"
run = uuid.uuid4().hex[:8]
table = f"totals_{run}"


@dataclasses.dataclass(frozen=True)
class Total:
    customer: str
    total: int


def ask(statement: Any) -> list[Any]:
    """With the plain client, as anybody else would."""
    if url.startswith("postgresql"):
        import psycopg

        with psycopg.connect(url) as connection:
            cursor = connection.execute(statement)
            return [] if cursor.description is None else cursor.fetchall()
    import pymysql

    place: Any = urlsplit(url)
    with pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=unquote(place.password or ""),
        database=place.path[1:],
        autocommit=True,
    ) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall())


ask(f"CREATE TABLE {table} (customer varchar(40) PRIMARY KEY, total bigint)")

env = tg.StreamEnvironment(f"totals-{run}")
env.checkpointing(every="1s", storage=f"file://{tempfile.mkdtemp(prefix='database-totals-')}")
orders = env.from_collection([(f"customer-{n % 3}", n) for n in range(30)], type=tuple[str, int], uid="orders")
totals = orders.key_by(0).sum(1, uid="totals").map(lambda row: Total(*row), returns=Total)
totals.sink_to(tg.DatabaseSink(url, table, key="customer"), uid="to-database")

env.execute()

for customer, total in sorted(ask(f"SELECT customer, total FROM {table}")):
    print(customer, total)
ask(f"DROP TABLE {table}")
