"""A slot's part of a savepoint. Executor; a background thread.

canonical   a Parquet table for each state, the same for every backend
native      what a checkpoint would store: RocksDB's tables as they are, all else in the slot's snapshot file. Nothing of
            it is shared with checkpoints: a savepoint owns its files
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from tidegate.graph.plan import JobPlan
from tidegate.graph.specs import keys_of
from tidegate.ids import CheckpointId, SlotId
from tidegate.ports import SnapshotStorage
from tidegate.savepoints.canonical_rows import canonical_rows
from tidegate.state.backend import LocalFile, Section
from tidegate.state.key_groups import key_group_range
from tidegate.state.keys import KeyType
from tidegate.storage.metadata import NOT_KEYED, FileRef
from tidegate.storage.savepoint_format import native_file_path, state_file_path, table_path
from tidegate.storage.state_files import StateFiles
from tidegate.storage.state_tables import store_table
from tidegate.task.incremental import Lineage, store_increment
from tidegate.task.operators.base import OperatorSnapshot
from tidegate.wire.control import SavepointOrder


def native_path(order: SavepointOrder, slot: SlotId) -> str:
    return f"{order.folder}/{native_file_path(slot.layer, slot.index)}"


def store_files(
    storage: SnapshotStorage,
    order: SavepointOrder,
    slot: SlotId,
    plan: JobPlan,
    checkpoint: CheckpointId,
    operators: Iterable[OperatorSnapshot],
) -> list[StateFiles]:
    """The native format of a backend whose state is files: they are uploaded as they are. Durable when it returns."""
    planned = {str(operator.uid): operator for operator in plan.operators}

    def store(operator: OperatorSnapshot, files: Sequence[LocalFile]) -> StateFiles:
        of = planned[operator.uid]
        return store_increment(
            Lineage(),
            files,
            storage,
            checkpoint,
            lambda name: f"{order.folder}/{state_file_path(operator.uid, slot.layer, slot.index, name)}",
            uid=operator.uid,
            subtask=operator.subtask,
            key_groups=key_group_range(operator.subtask, of.parallelism, of.max_parallelism),
            share=False,
        )

    stored: list[StateFiles] = []
    for operator in operators:
        files = None if operator.keyed is None else operator.keyed.files()
        if files is not None:
            stored.append(store(operator, files))
    return stored


def store_tables(
    storage: SnapshotStorage,
    order: SavepointOrder,
    slot: SlotId,
    plan: JobPlan,
    states: Iterable[tuple[str, Section]],
    on_table: Callable[[], None] = lambda: None,
) -> list[FileRef]:
    """The canonical format: a Parquet table for each state. Durable when it returns.

    `states` gives (uid, section), the sections of one state one after another, key groups ascending.
    """
    keys = {str(operator.uid): keys_of(operator.operator.spec) for operator in plan.operators}
    tables = []
    for (uid, state, kind), sections in groupby(states, lambda entry: (entry[0], entry[1].state, entry[1].kind)):
        selectors = keys.get(uid)
        key_type = selectors[0].key_type() if selectors else None
        path = f"{order.folder}/{table_path(uid, state, kind, slot.layer, slot.index)}"
        rows = _rows((section for _, section in sections), key_type)
        table = store_table(storage, path, uid, state, kind, rows)
        if table is not None:
            tables.append(table)
            on_table()
    return tables


def _rows(sections: Iterable[Section], key_type: KeyType | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    for section in sections:
        if section.key_group == NOT_KEYED or "key" not in section.rows.schema.names:
            yield section.key_group, section.rows
        else:
            assert key_type is not None
            yield section.key_group, canonical_rows(section.rows, section.kind, section.key_group, key_type)
