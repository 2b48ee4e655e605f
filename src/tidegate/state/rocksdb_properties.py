"""What RocksDB says of itself, for metrics: a few properties, each read in under a microsecond. Executor; any thread.

Names are those of Flink's native metrics, without the state's: an operator's states are added up.
"""

from __future__ import annotations

from tidegate.state.rocksdb_store import RocksStore

SHARED = "rocksdb.block-cache-usage"  #: one cache for all databases of a slot
SUMMED = (
    "rocksdb.cur-size-all-mem-tables",
    "rocksdb.estimate-pending-compaction-bytes",
    "rocksdb.num-files-at-level0",
    "rocksdb.live-sst-files-size",
    "rocksdb.estimate-num-keys",
)


def properties_of(store: RocksStore) -> dict[str, float]:
    """Nothing while a snapshot is written, which holds the store for a while: a heartbeat does not wait for it."""
    if not store.lock.acquire(blocking=False):
        return {}
    try:
        if not store.is_open:
            return {}
        families = [family.rows for family in store.families.values()]
        numbers: dict[str, float] = {
            name: sum(rows.property_int_value(name) or 0 for rows in families) for name in SUMMED
        }
        numbers[SHARED] = store.db.property_int_value(SHARED) or 0
        return numbers
    finally:
        store.lock.release()
