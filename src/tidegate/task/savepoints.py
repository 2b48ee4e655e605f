"""A slot's part of a savepoint. Executor; a background thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import pyarrow as pa

from tidegate.graph.plan import JobPlan
from tidegate.graph.specs import keys_of
from tidegate.ids import SlotId
from tidegate.state.backend import Section
from tidegate.state.canonical_rows import canonical_rows
from tidegate.state.keys import KeyType
from tidegate.storage.metadata import NOT_KEYED, FileRef
from tidegate.storage.savepoint_format import table_path
from tidegate.storage.state_tables import store_table
from tidegate.task.ports import SnapshotStorage
from tidegate.wire.control import SavepointOrder


def native_path(order: SavepointOrder, slot: SlotId) -> str:
    return f"{order.folder}/slot-{slot.layer}-{slot.index}.snapshot"


def store_tables(
    storage: SnapshotStorage, order: SavepointOrder, slot: SlotId, plan: JobPlan, states: Iterable[tuple[str, Section]]
) -> list[FileRef]:
    """The canonical format: a Parquet table for each state. Durable when it returns.

    `states` gives (uid, section), the sections of one state one after another, key groups ascending.
    """
    keys = {operator.uid: keys_of(operator.operator.spec) for operator in plan.operators}
    tables = []
    for (uid, state, kind), sections in groupby(states, lambda entry: (entry[0], entry[1].state, entry[1].kind)):
        selectors = keys.get(uid)  # type: ignore[call-overload]
        key_type = selectors[0].key_type() if selectors else None
        path = f"{order.folder}/{table_path(uid, state, kind, slot.layer, slot.index)}"
        rows = _rows((section for _, section in sections), key_type)
        table = store_table(storage, path, uid, state, kind, rows)
        if table is not None:
            tables.append(table)
    return tables


def _rows(sections: Iterable[Section], key_type: KeyType | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    for section in sections:
        if section.key_group == NOT_KEYED or "key" not in section.rows.schema.names:
            yield section.key_group, section.rows
        else:
            assert key_type is not None
            yield section.key_group, canonical_rows(section.rows, section.kind, section.key_group, key_type)
