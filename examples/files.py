"""From JSON lines to Parquet, exactly once: files in, a folder for each country out.

    python examples/files.py [folder]

Each run has a folder of its own, in the one that is named or in the system's for temporary files. Part files appear when their
checkpoint is complete, and a crash leaves no half of one.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import pyarrow.dataset as ds

import tidegate as tg


@dataclasses.dataclass(frozen=True)
class Sale:
    country: str
    item: str
    cents: int


folder = Path(tempfile.mkdtemp(prefix="files-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
(folder / "in").mkdir()
for part in range(3):
    sales = [
        {"country": ["de", "fr"][n % 2], "item": f"item-{n}", "cents": n} for n in range(part * 10, part * 10 + 10)
    ]
    (folder / "in" / f"sales-{part}.jsonl").write_text("".join(json.dumps(sale) + "\n" for sale in sales))

env = tg.StreamEnvironment("files", parallelism=2)
env.checkpointing(every="1s", storage=f"file://{folder}/checkpoints")
sales = env.from_source(tg.Files(str(folder / "in"), format="jsonl", type=Sale), uid="sales")
large = sales.filter(lambda sale: sale.cents >= 10)
large.sink_to(tg.FileSink(str(folder / "out"), "parquet", partition_by=["country"]), uid="written")
env.execute()

written = ds.dataset(folder / "out", format="parquet", partitioning="hive").to_table()
for country in sorted(set(written["country"].to_pylist())):
    rows = [row for row in written.to_pylist() if row["country"] == country]
    print(country, len(rows), "sales", sum(row["cents"] for row in rows), "cents")
