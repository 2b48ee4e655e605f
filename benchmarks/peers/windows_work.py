"""The work of benchmarks/windows.py: a count and a sum for each key and window, of records up to 0.9 s out of order. The
standard library alone, because each peer's own Python imports it; arithmetic that numpy and SQL do alike.

Record i has the key `i * 7919 % KEYS`, the value `1 + i % 9`, and a time that goes on by a second for each PER_S records. A
session ends when its key has been silent for half a second. Each key has a record about every KEYS / PER_S seconds, and now
and then a longer pause, when what is taken off for disorder begins anew.
"""

from __future__ import annotations

KEYS = 100_000
PER_S = 200_000  #: records in a second of event time
DISORDER_MS = 900
KINDS = ("tumble", "hop", "session")
SIZE_MS, HOP_MS, SLIDE_MS, GAP_MS = 1000, 60_000, 1000, 500


def key(i: str, keys: int = KEYS) -> str:
    return f"MOD({i} * 7919, {keys})"


def value(i: str) -> str:
    return f"(1 + MOD({i}, 9))"


def time_ms(i: str, divide: str = "/", per_s: int = PER_S) -> str:
    return f"({i} * 1000 {divide} {per_s} + 1000 - MOD({i} * 610839793, {DISORDER_MS}))"


def window(kind: str, table: str) -> str:
    """Flink's table function."""
    return {
        "tumble": f"TUMBLE(TABLE {table}, DESCRIPTOR(rowtime), INTERVAL '1' SECOND)",
        "hop": f"HOP(TABLE {table}, DESCRIPTOR(rowtime), INTERVAL '1' SECOND, INTERVAL '60' SECOND)",
        "session": f"SESSION(TABLE {table} PARTITION BY k, DESCRIPTOR(rowtime), INTERVAL '0.5' SECOND)",
    }[kind]
