"""What encryption costs: the jobs of throughput.py, encrypted and signed only, in turn.

    python benchmarks/encryption.py [pairs] [records]

`numbers` are two columns of integers, `lines` are texts of 900 bytes, where bytes are all that a record costs, `python` are
objects that a Python function makes and another takes. Without encryption frames are signed: that is what it is compared with.

Last line, JSON: for each of them `ratio` = encrypted / signed, records a second, the median over the pairs with its spread;
`cost` = 1 - ratio. `certificate_ms`: what the certificate of an attempt takes to be made.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import harness
import throughput

from tidegate.wire.certificates import made_certificate

RECORDS = 20_000_000
PART = {"numbers": 1, "lines": 20, "python": 40}  #: of the records, so that each takes a few seconds


def certificate_ms() -> float:
    began = time.perf_counter()
    made_certificate(["tidegate"]).server_context()
    return (time.perf_counter() - began) * 1000


def main(pairs: int = 5, records: int = RECORDS, spark: Any = None) -> None:
    spark = harness.session() if spark is None else spark
    found: dict[str, Any] = {}
    for shape, part in PART.items():
        count = max(1, records // part)
        throughput.run(spark, max(1, count // 10), True, shape)
        results = harness.interleave(
            pairs,
            {
                "encrypted": lambda count=count, shape=shape: throughput.run(spark, count, True, shape, encrypt=True),
                "signed": lambda count=count, shape=shape: throughput.run(spark, count, True, shape),
            },
        )
        ratios = harness.ratios(results["encrypted"], results["signed"])
        found[shape] = {
            "ratio": harness.median(ratios),
            "spread": harness.spread(ratios),
            "cost": round(1 - harness.median(ratios), 4),
            "encrypted_records_per_s": int(harness.median(results["encrypted"])),
            "signed_records_per_s": int(harness.median(results["signed"])),
        }
    made = [certificate_ms() for _ in range(10)]
    harness.finish({**found, "certificate_ms": harness.median(made), "machine": harness.machine()})


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
