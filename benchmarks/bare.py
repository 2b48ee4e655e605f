"""A bare pipeline: Spark's pipelined shuffle with a hand-written keyed sum, no barriers, no state, no recovery.

What Tidegate is measured against: two source tasks make batches of (key, 1), route them by a hash of the key, and two keyed
tasks add them up with numpy. Run it alone to see its speed: `python benchmarks/bare.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from tidegate.spark.session import own_session

WIDTH = 2
BATCH = 50_000
KEYS = 100_000
PAYLOAD = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS = pa.schema([("dst", pa.int32()), ("frame", pa.binary())])
SUMMARY = "n long, first double, last double, total long"


def keyed_sum(spark: object, records: int) -> float:
    """Records a second, from the first batch at a keyed task to the last."""
    from tidegate.spark.pipelined import _pipelined_copy

    ours = own_session(spark)  # type: ignore[arg-type]

    def source(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        from pyspark import TaskContext

        me = TaskContext.get().partitionId()  # type: ignore[union-attr]
        for start in range(0, records // WIDTH, BATCH):
            numbers = np.arange(start, min(start + BATCH, records // WIDTH), dtype=np.int64) * WIDTH + me
            keys, ones = numbers % KEYS, np.ones(len(numbers), np.int64)
            group = (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(57)
            owner = (group * np.uint64(WIDTH) >> np.uint64(7)).astype(np.int64)
            frames = []
            for target in range(WIDTH):
                mine = owner == target
                columns = [pa.array(keys[mine]), pa.array(ones[mine])]
                frames.append(pa.RecordBatch.from_arrays(columns, schema=PAYLOAD).serialize().to_pybytes())
            yield pa.RecordBatch.from_arrays(
                [pa.array(range(WIDTH), pa.int32()), pa.array(frames, pa.binary())], schema=ROWS
            )

    def add_up(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        from pandas._libs.hashtable import Int64Factorizer

        places, totals, n, first = Int64Factorizer(1 << 16), np.zeros(1 << 20, np.int64), 0, 0.0
        for row in rows:
            first = first or time.time()
            batch = pa.ipc.read_record_batch(row.column(1)[0].as_buffer(), PAYLOAD)
            np.add.at(totals, places.factorize(batch.column(0).to_numpy()), batch.column(1).to_numpy())
            n += batch.num_rows
        yield pa.RecordBatch.from_pydict(
            {"n": [n], "first": [first], "last": [time.time()], "total": [int(totals.sum())]}
        )

    frame = ours.range(0, WIDTH, 1, WIDTH).mapInArrow(source, "dst int, frame binary")
    frame = frame.repartitionById(WIDTH, "dst").mapInArrow(add_up, SUMMARY)
    ours._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(ours._jsparkSession)
    from pyspark.sql import DataFrame

    plan = _pipelined_copy(ours, frame._jdf.queryExecution().executedPlan()).execute()
    rows = DataFrame(ours._jsparkSession.internalCreateDataFrame(plan, frame._jdf.schema(), False), ours).collect()
    assert sum(row.n for row in rows) == sum(row.total for row in rows) == records, rows
    return records / (max(row.last for row in rows) - min(row.first for row in rows))


if __name__ == "__main__":
    import harness

    spark = harness.session()
    keyed_sum(spark, 2_000_000)
    speeds = [keyed_sum(spark, 20_000_000) for _ in range(3)]
    harness.finish({"bare_records_per_s": int(harness.median(speeds)), "spread": harness.spread(speeds)})
