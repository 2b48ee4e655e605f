"""State as tables: what a savepoint or checkpoint holds, read by whoever owns it. No Spark, no job, nothing unpickled.

savepoint = tg.Savepoint.load("file:///backups/savepoint-orders-17-3fa2c1")
savepoint.states()
savepoint.keyed_state("count", "total").to_pandas()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from tidegate.errors import ConfigurationError
from tidegate.ids import EVENT_TIMERS, PROCESSING_TIMERS
from tidegate.savepoints.canonical_rows import canonical_rows, key_type_named
from tidegate.savepoints.stored_sections import stored_sections
from tidegate.storage.anywhere import as_uri, folder_of, is_uri, reaching_anywhere
from tidegate.storage.checkpoints import read_metadata
from tidegate.storage.metadata import IN_FLIGHT, NOT_KEYED, PARQUET, CheckpointMetadata, OperatorInfo, SectionRef
from tidegate.storage.paths import METADATA_NAME
from tidegate.storage.savepoint_format import CANONICAL, NATIVE, prepared_table, sources_table
from tidegate.storage.snapshot_file import SCHEMA_KIND, read_sections, select_sections
from tidegate.storage.state_files import StateFiles
from tidegate.storage.state_tables import read_rows
from tidegate.storage.store import ObjectStore, StorageNotFound, open_store, without_credentials

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.savepoints.comparing import StateDiff
    from tidegate.savepoints.editing import SavepointEdit


@dataclass(frozen=True, slots=True)
class StateSummary:
    """One state of one operator."""

    uid: str
    operator: str
    name: str
    kind: str
    type: str  #: as declared; "" for operator state, whose type only its function knows
    key_type: str  #: "" for what has no keys
    rows: int
    size_bytes: int  #: as stored; of several states in one file, its part by rows


@dataclass(frozen=True, slots=True)
class StateTable:
    """The rows of one state, read when they are asked for."""

    savepoint: Savepoint
    uid: str
    name: str
    kind: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """One for each key group, or for each subtask of state without keys."""
        return (rows for _, rows in self.sections())

    def sections(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The same with their key group; -1 for what has none."""
        metadata, store = self.savepoint.metadata, self.savepoint.store
        info = self.savepoint.operator(self.uid)

        def wanted(section: SectionRef) -> bool:
            return (section.uid, section.state, section.kind) == (self.uid, self.name, self.kind)

        for file in (file for slot in metadata.slots for file in slot.files()):
            chosen = select_sections(file, wanted)
            if not chosen.sections:
                continue
            if file.format == PARQUET:
                for section, rows in read_rows(store, chosen):
                    yield section.key_group, rows
                continue
            for section, rows in read_sections(store, chosen):
                yield section.key_group, _for_people(info, section.kind, section.key_group, rows)
        for files in (files for slot in metadata.slots for files in slot.states if files.uid == self.uid):
            for stored in stored_sections(store, files, files.key_groups):
                if (stored.state, stored.kind) == (self.name, self.kind):
                    yield stored.key_group, _for_people(info, stored.kind, stored.key_group, stored.rows)

    def to_arrow(self) -> pa.Table:
        return pa.Table.from_batches(list(self.batches()))

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of the session that is given. Canonical tables are read by Spark itself, in parallel."""
        paths = [
            file.path
            for slot in self.savepoint.metadata.slots
            for file in slot.tables
            if file.sections and (file.sections[0].uid, file.sections[0].state) == (self.uid, self.name)
        ]
        if paths:
            # Hadoop takes a path as it is written: "a%20b" would be a folder of that name.
            return spark.read.parquet(*[unquote(self.savepoint.store.uri(path or "")) for path in paths])
        return spark.createDataFrame(self.to_arrow())

    def __len__(self) -> int:
        return sum(rows.num_rows for rows in self.batches())


class Savepoint:
    """A savepoint, or a checkpoint of any job, in any storage.

    In the examples below `path` is where one of a job lies that adds up orders by name: ("ann", 2), ("bob", 4), ("ann", 3).
    """

    def __init__(self, store: ObjectStore, path: str, metadata: CheckpointMetadata) -> None:
        self.store = store
        self.path = path  #: a URI; what `resume` takes
        self.metadata = metadata
        self._counts: dict[tuple[str, int], Counter[tuple[str, str]]] = {}

    @classmethod
    def load(cls, path: str) -> Savepoint:
        """From its folder, or its metadata file.

        :raises ConfigurationError: when there is none. :raises CheckpointDamaged: when it cannot be read.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.job, savepoint.kind
        ('example', 'savepoint')
        """
        if not is_uri(path):
            raise ConfigurationError(
                f"{path!r} is not an absolute path or a URI: use /path, file:///path, s3://bucket/folder ..."
            )
        uri = as_uri(path)
        if not uri.endswith(".json"):
            uri = f"{uri}/{METADATA_NAME}"
        store = reaching_anywhere(open_store(folder_of(uri)))
        try:
            data = store.get(uri)
        except StorageNotFound:
            raise ConfigurationError(
                f"there is no savepoint or checkpoint at {without_credentials(path)}: {METADATA_NAME} does not exist there"
            ) from None
        return cls(store, folder_of(uri), read_metadata(store, uri, data))

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def job(self) -> str:
        """Whose it is.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.job
        'example'
        """
        return self.metadata.job

    @property
    def checkpoint(self) -> int:
        """Its number among the checkpoints of its job.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.checkpoint > 0
        True
        """
        return self.metadata.checkpoint

    @property
    def kind(self) -> str:
        """savepoint, or checkpoint.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.kind
        'savepoint'
        """
        return "savepoint" if self.metadata.savepoint else "checkpoint"

    @property
    def format(self) -> str:
        """Of a savepoint: canonical, which others read, or native. Of a checkpoint: full, incremental, with "unaligned" where
        it holds records in flight.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.format
        'canonical'
        """
        slots = self.metadata.slots
        if self.metadata.savepoint:
            return NATIVE if any(slot.states or slot.file.sections for slot in slots) else CANONICAL
        sections = (section for slot in slots for section in slot.file.sections)
        unaligned = ", unaligned" if any(section.kind == IN_FLIGHT for section in sections) else ""
        return ("incremental" if any(slot.states for slot in slots) else "full") + unaligned

    def operators(self) -> list[OperatorInfo]:
        """All operators of the job that keep something in it.

        >>> savepoint = tg.Savepoint.load(path)
        >>> [info.uid for info in savepoint.operators()]
        ['orders', 'totals', 'out']
        """
        return list(self.metadata.operators)

    def operator(self, uid: str) -> OperatorInfo:
        """The one with this uid. :raises ConfigurationError: when there is none.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.operator("totals").key_type
        'str'
        """
        for info in self.metadata.operators:
            if info.uid == uid:
                return info
        there = ", ".join(repr(info.uid) for info in self.metadata.operators)
        raise ConfigurationError(f"{self.path} has no operator with uid {uid!r}; there are {there}")

    def states(self) -> list[StateSummary]:
        """Everything with rows, by operator: keyed state, timers, operator state, records in flight.

        >>> savepoint = tg.Savepoint.load(path)
        >>> [(state.uid, state.name, state.rows) for state in savepoint.states()]
        [('totals', 'total', 2)]
        """
        rows: Counter[tuple[str, str, str]] = Counter()
        sizes: Counter[tuple[str, str, str]] = Counter()
        for file in (file for slot in self.metadata.slots for file in slot.files()):
            total = sum(section.rows for section in file.sections) or 1
            for section in file.sections:
                if section.kind != SCHEMA_KIND:
                    state = section.uid, section.state, section.kind
                    rows[state] += section.rows
                    sizes[state] += section.length if file.format != PARQUET else file.size * section.rows // total
        for files in (files for slot in self.metadata.slots for files in slot.states):
            counted = self._counted(files)
            for (name, kind), count in counted.items():
                rows[files.uid, name, kind] += count
                sizes[files.uid, name, kind] += files.size_bytes() * count // sum(counted.values())
        infos = {info.uid: info for info in self.metadata.operators}
        types = {(info.uid, state.name): state.type for info in self.metadata.operators for state in info.states}
        found = [
            StateSummary(
                uid,
                infos[uid].name if uid in infos else "",
                name,
                kind,
                types.get((uid, name), ""),
                (infos[uid].key_type or "") if uid in infos else "",
                count,
                sizes[uid, name, kind],
            )
            for (uid, name, kind), count in rows.items()
        ]
        order = {info.uid: place for place, info in enumerate(self.metadata.operators)}
        return sorted(found, key=lambda state: (order.get(state.uid, len(order)), state.name))

    # -- tables -------------------------------------------------------------------------------------------------------

    def keyed_state(self, uid: str, name: str) -> StateTable:
        """Columns: key_group, key, key_bytes, namespace, [map_key,] value, expiry (docs/savepoint-format.md).

        >>> savepoint = tg.Savepoint.load(path)
        >>> rows = savepoint.keyed_state("totals", "total").to_arrow()
        >>> sorted(zip(rows["key"].to_pylist(), rows["value"].to_pylist()))
        [('ann', 5), ('bob', 4)]
        """
        return self._table(uid, name, lambda kind: not kind.startswith(("operator-", "raw-")) and kind != IN_FLIGHT)

    def operator_state(self, uid: str, name: str) -> StateTable:
        """Rows of list, union, broadcast and raw state. :raises ConfigurationError: when there is none of that name.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.operator_state("totals", "totals so far")
        Traceback (most recent call last):
        tidegate.errors.ConfigurationError: operator 'totals' has no rows of a state 'totals so far' in ...
        """
        return self._table(uid, name, lambda kind: kind.startswith(("operator-", "raw-")))

    def timers(self, uid: str, domain: str = "event") -> StateTable:
        """Timers in "event" or "processing" time, by key. :raises ConfigurationError: when there are none.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.timers("totals")
        Traceback (most recent call last):
        tidegate.errors.ConfigurationError: operator 'totals' has no rows of a state ...
        """
        return self.keyed_state(uid, EVENT_TIMERS if domain == "event" else PROCESSING_TIMERS)

    def in_flight(self) -> list[StateTable]:
        """Records in flight, of an unaligned checkpoint; a table for each edge.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.in_flight()
        []
        """
        return [StateTable(self, s.uid, s.name, s.kind) for s in self.states() if s.kind == IN_FLIGHT]

    def sources(self) -> pa.Table:
        """The position of each split.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.sources().num_rows
        1
        """
        return sources_table(subtask for slot in self.metadata.slots for subtask in slot.subtasks)

    def prepared(self) -> pa.Table:
        """What sinks have prepared and not committed: of one checkpoint, or of several where a commit takes its time.

        >>> savepoint = tg.Savepoint.load(path)
        >>> set(savepoint.prepared()["uid"].to_pylist())
        {'out'}
        """
        return prepared_table(subtask for slot in self.metadata.slots for subtask in slot.subtasks)

    def largest_keys(self, uid: str, name: str, count: int = 10) -> list[tuple[Any, int]]:
        """The keys whose values take the most space, with their bytes as Arrow lays them out; the largest first.

        >>> savepoint = tg.Savepoint.load(path)
        >>> sorted(savepoint.largest_keys("totals", "total"))
        [('ann', 9), ('bob', 9)]
        """
        sizes: Counter[Any] = Counter()
        for rows in self.keyed_state(uid, name).batches():
            keys = rows.column("key").to_pylist()
            values = rows.column("value")
            for at, key in enumerate(keys):
                sizes[repr(key) if isinstance(key, dict) else key] += _size_of(values, at)
        return sizes.most_common(count)

    @staticmethod
    def new(job: str) -> SavepointEdit:
        """An empty one to fill and write, for a job that has not run yet.

        >>> edit = tg.Savepoint.new("orders")
        """
        from tidegate.savepoints.editing import new_savepoint

        return new_savepoint(job)

    def diff(self, other: Savepoint) -> list[StateDiff]:
        """What `other` has otherwise, a line for each keyed state of either.

        >>> savepoint = tg.Savepoint.load(path)
        >>> savepoint.diff(savepoint)[0].changed
        0
        """
        from tidegate.savepoints.comparing import diff

        return diff(self, other)

    def edit(self) -> SavepointEdit:
        """A copy to change and write elsewhere; this one stays as it is.

        >>> savepoint = tg.Savepoint.load(path)
        >>> changed = savepoint.edit().drop_state("totals", "total").write("/tmp/changed")
        >>> changed.states()
        []
        """
        from tidegate.savepoints.editing import SavepointEdit

        return SavepointEdit(self)

    def _counted(self, files: StateFiles) -> Counter[tuple[str, str]]:
        """Rows of each (state, kind). Files of a database say so only when they are read; once is enough."""
        known = self._counts.get((files.uid, files.subtask))
        if known is None:
            known = Counter()
            for section in stored_sections(self.store, files, files.key_groups):
                known[section.state, section.kind] += section.rows.num_rows
            self._counts[files.uid, files.subtask] = known
        return known

    def _table(self, uid: str, name: str, fits: Any) -> StateTable:
        self.operator(uid)
        states = [state for state in self.states() if state.uid == uid]
        for state in states:
            if state.name == name and fits(state.kind):
                return StateTable(self, uid, name, state.kind)
        there = ", ".join(repr(state.name) for state in states) or "none"
        raise ConfigurationError(f"operator {uid!r} has no rows of a state {name!r} in {self.path}; it has {there}")

    def __repr__(self) -> str:
        return f"<Savepoint {self.path}: job {self.job!r}, checkpoint {self.checkpoint}>"


def _for_people(info: OperatorInfo, kind: str, key_group: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    if key_group == NOT_KEYED or "key" not in rows.schema.names:
        return rows
    assert info.key_type is not None
    return canonical_rows(rows, kind, key_group, key_type_named(info.key_type))


def _size_of(column: pa.Array, at: int) -> int:
    """Of one value alone: a slice of an array still counts the whole buffers of a list's children."""
    return (
        int(pa.concat_arrays([column.slice(at, 1)]).get_total_buffer_size())
        if column.type.num_fields
        else _flat(column, at)
    )


def _flat(column: pa.Array, at: int) -> int:
    scalar = column[at]
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        buffer = scalar.as_buffer()
        return 0 if buffer is None else int(buffer.size)
    return int(column.slice(at, 1).nbytes)
