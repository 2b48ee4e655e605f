"""New savepoints from tables: a copy of one with states replaced, added, dropped or re-hashed, or one for a job that has not
run yet. No Spark, no job.

    edit = tg.Savepoint.load(path).edit()
    edit.replace_state("count", "total", frame)             # columns key and value; pandas, Arrow, Spark, polars
    edit.write("file:///backups/corrected")

    new = tg.Savepoint.new("orders")
    new.add_operator("count", CountOrders, key_type=str)
    new.add_state("count", "total", frame)
    new.write("file:///backups/bootstrap")

What is written is a valid savepoint: key groups are worked out here, values are brought to the declared type or refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from tidegate.errors import ConfigurationError
from tidegate.ids import EVENT_TIME_MARKS
from tidegate.savepoints.canonical_rows import key_type_named, with_keys
from tidegate.savepoints.reading import Savepoint, StateTable
from tidegate.state.declarations import ROWS, Declaration, StoredList, StoredMap, declared_states
from tidegate.state.keys import key_type as key_type_of
from tidegate.storage.anywhere import as_uri, reaching_anywhere
from tidegate.storage.json_values import NotJson, json_copy
from tidegate.storage.metadata import (
    IN_FLIGHT,
    CheckpointMetadata,
    FileRef,
    OperatorInfo,
    SlotSnapshot,
    SplitState,
    StateInfo,
    SubtaskSnapshot,
)
from tidegate.storage.paths import METADATA_NAME
from tidegate.storage.savepoint_format import CANONICAL, store_savepoint, table_path
from tidegate.storage.state_tables import store_table
from tidegate.storage.store import open_store, without_credentials
from tidegate.types.containers import ListType

DEFAULT_MAX_PARALLELISM = 128

T = TypeVar("T")
_Key = tuple[str, str]  #: uid, state


@dataclass(slots=True)
class SavepointEdit:
    """Changes to a savepoint, carried out by `write`."""

    base: Savepoint
    operators: dict[str, OperatorInfo] = field(init=False)
    _made: dict[_Key, tuple[str, pa.Table]] = field(default_factory=dict, init=False)  #: kind and rows of new tables
    _gone: set[_Key] = field(default_factory=set, init=False)  #: dropped; stored uid and name
    _positions: dict[tuple[str, str], SplitState] = field(default_factory=dict, init=False)
    _uids: dict[str, str] = field(init=False)  #: of the operators of the old savepoint that stay: stored uid to new
    _renamed_states: dict[_Key, str] = field(default_factory=dict, init=False)  #: stored uid and name to new name
    _declared: dict[_Key, Declaration] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.operators = {info.uid: info for info in self.base.metadata.operators}
        self._uids = {uid: uid for uid in self.operators}

    # -- operators ----------------------------------------------------------------------------------------------------

    def add_operator(
        self,
        uid: str,
        function: Any = None,
        *,
        key_type: Any = None,
        name: str | None = None,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    ) -> SavepointEdit:
        """An operator of the job that will start from this. `function` (or its class) declares the states."""
        if uid in self.operators:
            raise ConfigurationError(f"there is an operator with uid {uid!r} already")
        declared = {} if function is None else declared_states(function)
        self._declared |= {(uid, state): declaration for state, declaration in declared.items()}
        self.operators[uid] = OperatorInfo(
            uid=uid,
            name=name or uid,
            parallelism=1,
            max_parallelism=max_parallelism,
            key_type=key_type_of(key_type).name if declared or key_type is not None else None,  # a source has no keys
            states=[StateInfo(state, d.kind, d.type_name) for state, d in declared.items()],
        )
        return self

    def drop_operator(self, uid: str) -> SavepointEdit:
        """With all of its state."""
        self._operator(uid)
        del self.operators[uid]
        self._uids.pop(self._stored_uid(uid) or "", None)
        self._made, self._positions = _without(self._made, uid), _without(self._positions, uid)
        self._declared = _without(self._declared, uid)
        return self

    def rename_operator(self, old: str, new: str) -> SavepointEdit:
        """For a program in which the operator has another uid now."""
        info = self._operator(old)
        if new in self.operators:
            raise ConfigurationError(f"there is an operator with uid {new!r} already")
        self.operators = {
            (new if uid == old else uid): (msgspec.structs.replace(info, uid=new) if uid == old else other)
            for uid, other in self.operators.items()
        }
        stored = self._stored_uid(old)
        if stored is not None:
            self._uids[stored] = new
        self._made = _moved(self._made, old, new)
        self._positions = _moved(self._positions, old, new)
        self._declared = _moved(self._declared, old, new)
        return self

    def set_max_parallelism(self, max_parallelism: int, uid: str | None = None) -> SavepointEdit:
        """Of one operator, or of all with keys: every key is hashed again."""
        if not 0 < max_parallelism <= 1 << 15:
            raise ConfigurationError(f"max_parallelism must be 1 to 32768, not {max_parallelism}")
        for info in [self._operator(uid)] if uid is not None else list(self.operators.values()):
            if info.key_type is None:
                continue
            for name, table in self._stored_tables(info.uid):
                if table.kind == IN_FLIGHT:  # at the old key groups' subtasks they would find no state of theirs
                    raise ConfigurationError(
                        f"operator {info.uid!r} has records in flight, which were sent by its key groups as they are: take a "
                        "savepoint, or an aligned checkpoint, and edit that"
                    )
                if (name, table.kind) == (EVENT_TIME_MARKS, "operator-union") and len(_marks_in(table)) > 1:
                    raise ConfigurationError(
                        f"for some keys of operator {info.uid!r} event time had come further than for others, since a restore "
                        "with records in flight: let the job continue for a while, and edit a later savepoint"
                    )
                if table.kind == "raw-keyed":
                    raise ConfigurationError(
                        f"operator {info.uid!r} has raw keyed state, bytes filed under key groups: they cannot be re-hashed"
                    )
                state = info.uid, name
                if table.kind in ROWS and state not in self._made:
                    self._made[state] = table.kind, table.to_arrow()
            self.operators[info.uid] = msgspec.structs.replace(info, max_parallelism=max_parallelism)
        return self

    # -- state --------------------------------------------------------------------------------------------------------

    def replace_state(self, uid: str, name: str, rows: Any) -> SavepointEdit:
        """All rows of a keyed state, from a DataFrame (pandas, Spark, polars) or an Arrow table."""
        info = self._state(uid, name)
        return self._set(uid, name, info.kind, rows)

    def add_state(
        self, uid: str, name: str, rows: Any, *, kind: str | None = None, type: str | None = None
    ) -> SavepointEdit:
        """A state that is not there yet. Its kind and type come from the function of `add_operator`, or are given as text
        (kind="value", type="int")."""
        operator = self._operator(uid)
        known = [state for state in operator.states if state.name == name]
        if not known:
            if kind is None or type is None:
                raise ConfigurationError(
                    f"what is state {name!r} of {uid!r}? Give kind= and type=, like kind='value', type='int'"
                )
            state = StateInfo(name, kind, type)
            self.operators[uid] = msgspec.structs.replace(operator, states=[*operator.states, state])
        return self._set(uid, name, kind or known[0].kind, rows)

    def drop_state(self, uid: str, name: str) -> SavepointEdit:
        info = self._operator(uid)
        states = [state for state in info.states if state.name != name]
        self.operators[uid] = msgspec.structs.replace(info, states=states)
        self._made.pop((uid, name), None)
        self._gone |= {(table.uid, table.name) for now, table in self._stored_tables(uid) if now == name}
        return self

    def rename_state(self, uid: str, old: str, new: str) -> SavepointEdit:
        """For a function that declares it under another name now. (Or it says so itself: `renamed_from="old"`.)"""
        info = self._operator(uid)
        there = {state.name for state in info.states} | {name for name, _ in self._stored_tables(uid)}
        if old not in there:
            raise ConfigurationError(
                f"operator {uid!r} has no state {old!r}; it has {', '.join(sorted(map(repr, there)))}"
            )
        if new in there:
            raise ConfigurationError(f"operator {uid!r} has a state {new!r} already")
        states = [msgspec.structs.replace(state, name=new) if state.name == old else state for state in info.states]
        self.operators[uid] = msgspec.structs.replace(info, states=states)
        self._renamed_states |= {(table.uid, table.name): new for now, table in self._stored_tables(uid) if now == old}
        if (uid, old) in self._made:
            self._made[uid, new] = self._made.pop((uid, old))
        if (uid, old) in self._declared:
            self._declared[uid, new] = self._declared.pop((uid, old))
        return self

    def set_source_position(self, uid: str, split: str, position: Any) -> SavepointEdit:
        """Where a split is read on: the position *after* the last record that is part of the state."""
        self._operator(uid)
        try:
            self._positions[uid, split] = SplitState(json_copy(split), json_copy(position))
        except NotJson as error:
            raise ConfigurationError(f"the position of split {split!a} of {uid!r} cannot be stored: {error}.") from None
        return self

    def _set(self, uid: str, name: str, kind: str, rows: Any) -> SavepointEdit:
        if kind not in ROWS:
            raise ConfigurationError(f"state {name!r} of {uid!r} is {kind}: only keyed state can be made from tables")
        if self._operator(uid).key_type is None:
            raise ConfigurationError(
                f"operator {uid!r} has no keys: say their type, add_operator({uid!r}, key_type=str)"
            )
        self._made[uid, name] = kind, self._typed(uid, name, arrow_table(rows))
        return self

    def _typed(self, uid: str, name: str, rows: pa.Table) -> pa.Table:
        """Values as the state stores them: by its declaration, else as the old table has them."""
        declaration = self._declared.get((uid, name))
        if declaration is not None:
            value_type = declaration.value_type
            column_type = ListType(value_type) if isinstance(declaration, StoredList) else value_type
            rows = _converted(rows, "value", lambda column: column_type.to_arrow(column_type.from_arrow(column)), name)
            if isinstance(declaration, StoredMap):
                map_key = declaration.key_type
                rows = _converted(rows, "map_key", lambda column: map_key.to_arrow(map_key.from_arrow(column)), name)
            return rows
        for stored, table in self._stored_tables(uid):
            if stored == name:
                schema = next(table.batches()).schema
                for column_name in ("map_key", "value"):
                    if column_name in schema.names:
                        wanted = schema.field(column_name).type
                        rows = _converted(rows, column_name, lambda column, to=wanted: column.cast(to), name)
        return rows

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, folder: str) -> Savepoint:
        """A new savepoint in `folder`, which must not hold one. It needs nothing of the old one.

        :raises ConfigurationError: for rows that are not state, and when there is one already.
        """
        target = as_uri(folder)
        store = reaching_anywhere(open_store(target))
        if store.exists(f"{target}/{METADATA_NAME}"):  # its tables would be written over before the new one is refused
            raise ConfigurationError(
                f"there is a savepoint or checkpoint in {without_credentials(target)} already; it stays as it is. "
                "Name a new folder."
            )
        slots = [self._slot(slot, target, store) for slot in self.base.metadata.slots] or [_empty_slot()]
        made = []
        for (uid, name), (kind, rows) in self._made.items():
            if uid in self.operators:
                made += self._store_made(store, target, uid, name, kind, rows)
        slots[0] = msgspec.structs.replace(slots[0], tables=[*slots[0].tables, *made])
        slots = self._with_new_operators(slots)
        now = time.time()
        metadata = msgspec.structs.replace(
            self.base.metadata, operators=list(self.operators.values()), slots=slots, completed_at=now, savepoint=False
        )
        store_savepoint(store, target, metadata, format=CANONICAL)
        return Savepoint.load(target)

    def _store_made(self, store: Any, target: str, uid: str, name: str, kind: str, rows: pa.Table) -> list[FileRef]:
        info = self.operators[uid]
        assert info.key_type is not None
        ready = with_keys(rows, kind, key_type_named(info.key_type), info.max_parallelism)
        path = f"{target}/{table_path(uid, name, kind, 0, 0)}".replace("part-0-0", "part-edited")
        table = store_table(store, path, uid, name, kind, _by_group(ready))
        return [] if table is None else [table]

    def _slot(self, slot: SlotSnapshot, target: str, store: Any) -> SlotSnapshot:
        """The slot without what was dropped or replaced, its tables stored in the new folder."""
        one = CheckpointMetadata(**{**_fields(self.base.metadata), "slots": [slot]})
        view = Savepoint(self.base.store, self.base.path, one)
        tables = []
        for state in view.states():
            uid, name = self._uids.get(state.uid), self._name_of(state.uid, state.name)
            if uid is None or (uid, name) in self._made or (state.uid, state.name) in self._gone:
                continue
            path = f"{target}/{table_path(uid, name, state.kind, slot.layer, slot.index)}"
            table = StateTable(view, state.uid, state.name, state.kind)
            stored = store_table(store, path, uid, name, state.kind, table.sections())
            if stored is not None:
                tables.append(stored)
        subtasks = [
            self._subtask(subtask, self._uids[subtask.uid]) for subtask in slot.subtasks if subtask.uid in self._uids
        ]
        return SlotSnapshot(slot.layer, slot.index, FileRef(size=0), subtasks, tables)

    def _subtask(self, subtask: SubtaskSnapshot, uid: str) -> SubtaskSnapshot:
        splits = [self._positions.get((uid, split.id), split) for split in subtask.splits]
        committables = [msgspec.structs.replace(committable, uid=uid) for committable in subtask.committables]
        return msgspec.structs.replace(subtask, uid=uid, splits=splits, committables=committables)

    def _with_new_operators(self, slots: list[SlotSnapshot]) -> list[SlotSnapshot]:
        """An operator that the old savepoint does not know has one subtask; so has a source whose splits are all new."""
        there = {subtask.uid for slot in slots for subtask in slot.subtasks}
        known = {(s.uid, split.id) for slot in slots for s in slot.subtasks for split in s.splits}
        new = []
        for uid in self.operators:
            splits = [split for (of, id), split in self._positions.items() if of == uid and (of, id) not in known]
            if uid not in there:
                new.append(SubtaskSnapshot(uid, 0, splits=splits))
            elif splits:
                raise ConfigurationError(
                    f"source {uid!r} has no split {splits[0].id!r} in this savepoint; it has "
                    f"{sorted(id for of, id in known if of == uid)}"
                )
        first = msgspec.structs.replace(slots[0], subtasks=[*slots[0].subtasks, *new])
        return [first, *slots[1:]]

    # -- looking up ---------------------------------------------------------------------------------------------------

    def _operator(self, uid: str) -> OperatorInfo:
        info = self.operators.get(uid)
        if info is None:
            raise ConfigurationError(
                f"there is no operator with uid {uid!r}; there are {', '.join(map(repr, self.operators))}"
            )
        return info

    def _state(self, uid: str, name: str) -> StateInfo:
        for state in self._operator(uid).states:
            if state.name == name:
                return state
        for stored, table in self._stored_tables(uid):
            if stored == name:
                return StateInfo(name, table.kind, "")
        raise ConfigurationError(f"operator {uid!r} has no state {name!r}; add it with add_state")

    def _stored_uid(self, uid: str) -> str | None:
        """In the old savepoint; None for an operator that it has not."""
        return next((stored for stored, now in self._uids.items() if now == uid), None)

    def _name_of(self, stored_uid: str, stored_name: str) -> str:
        return self._renamed_states.get((stored_uid, stored_name), stored_name)

    def _stored_tables(self, uid: str) -> Iterator[tuple[str, StateTable]]:
        """Those that were not dropped, with the name that each has now."""
        stored = self._stored_uid(uid)
        for state in self.base.states():
            if state.uid == stored and (stored, state.name) not in self._gone:
                yield self._name_of(stored, state.name), StateTable(self.base, stored, state.name, state.kind)


def new_savepoint(job: str) -> SavepointEdit:
    """An empty one, for a job that has not run yet."""
    now = time.time()
    metadata = CheckpointMetadata(
        job=job, checkpoint=1, generation=0, attempt=0, triggered_at=now, completed_at=now, operators=[], slots=[]
    )
    return SavepointEdit(Savepoint(reaching_anywhere(open_store("memory://nothing")), "", metadata))


def arrow_table(rows: Any) -> pa.Table:
    """From pandas, Spark, polars, Arrow, or a list of dictionaries."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, list):
        return pa.Table.from_pylist(rows)
    for method in ("toArrow", "to_arrow"):
        if hasattr(rows, method):
            return getattr(rows, method)()
    if hasattr(rows, "to_records"):
        return pa.Table.from_pandas(rows, preserve_index=False)
    raise ConfigurationError(f"state is made from a DataFrame or an Arrow table, not from {type(rows).__name__}")


def _converted(rows: pa.Table, name: str, convert: Callable[..., pa.Array], state: str) -> pa.Table:
    if name not in rows.column_names:
        return rows  # `with_keys` says what is missing
    try:
        column = convert(rows.column(name))
    except (pa.ArrowException, ConfigurationError) as error:
        raise ConfigurationError(f"the column {name!r} does not fit state {state!r}: {error}", state=state) from error
    return rows.set_column(rows.column_names.index(name), name, column)


def _by_group(rows: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    groups = rows.column("key_group").to_pylist()
    start = 0
    for at in range(1, len(groups) + 1):
        if at == len(groups) or groups[at] != groups[start]:
            for batch in rows.slice(start, at - start).combine_chunks().to_batches():
                yield groups[start], batch
            start = at


def _marks_in(table: StateTable) -> set[int]:
    """How far event time had come, of runs of key groups (task/operators/event_time_marks.py)."""
    rows = table.to_arrow().column("value").to_pylist()
    return {list(row.values())[-1] for row in rows if isinstance(row, dict)}  # a user's own state may have the name


def _moved(known: dict[_Key, T], old: str, new: str) -> dict[_Key, T]:
    """By uid and something of the operator: the same under its new uid."""
    return {(new if uid == old else uid, what): value for (uid, what), value in known.items()}


def _without(known: dict[_Key, T], uid: str) -> dict[_Key, T]:
    return {key: value for key, value in known.items() if key[0] != uid}


def _empty_slot() -> SlotSnapshot:
    return SlotSnapshot(0, 0, FileRef(size=0))


def _fields(metadata: CheckpointMetadata) -> dict[str, Any]:
    return {name: getattr(metadata, name) for name in metadata.__struct_fields__}
