"""Operator state: what belongs to a subtask and not to a key. Executor.

Everything is called by the task's thread, except `OperatorStateSnapshot.sections`, which runs in the snapshot's thread.

    kind                 rows of its section           at another parallelism (protocol/redistribution.py)
    operator-list        value: T, in order            the elements of all subtasks are split evenly
    operator-union       value: T, in order            every subtask gets the elements of all
    operator-broadcast   map_key: K, value: V          every subtask gets one old subtask's copy
    raw-operator         value: bytes, in order        as operator-list
    raw-keyed            value: bytes, in order        by key group

All but raw-keyed have the key group -1. A section is left out when it would be empty.

    begin     restore (the runtime, for each stored section) -> list_state, ... (initialize_state) -> check_all_claimed
    snapshot  raw_output -> snapshot_state fills it -> snapshot -> sections (another thread)

Invariant 1. What a snapshot holds does not change: a container is copied on the first write after the snapshot.
Invariant 2. No value is changed in place: mutable ones are copied on the way in and on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import pyarrow as pa

from tidegate.errors import CheckpointDamaged, ConfigurationError, TypeDeclarationError
from tidegate.ids import KeyGroup
from tidegate.state.backend import Section
from tidegate.state.declarations import ABSENT, Declaration, ListState, MapState
from tidegate.state.fitting import Intake, object_intake
from tidegate.state.heap_tables import CurrentKey
from tidegate.state.map_keys import map_key_fit
from tidegate.state.nested_handles import KeptList, KeptMap
from tidegate.state.raw_state import RAW_KINDS, RawInput, RawOutput, raw_sections

if TYPE_CHECKING:
    from tidegate.types import DataType

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

OperatorKind = Literal["operator-list", "operator-union", "operator-broadcast"]
NOT_KEYED = KeyGroup(-1)
_OFFERED_AS: dict[str, str] = {
    "operator-list": "list_state",
    "operator-union": "union_list_state",
    "operator-broadcast": "broadcast_state",
}


class SharedElements:
    """The elements of one subtask's list: implements nested_handles.KeptLists."""

    __slots__ = ("elements", "is_shared")

    def __init__(self, elements: list[Any]) -> None:
        self.elements = elements  #: not to be changed while `is_shared`
        self.is_shared = False

    def whole(self, at: CurrentKey) -> list[Any]:
        return self.elements

    def add(self, at: CurrentKey, kept: list[Any]) -> None:
        if self.is_shared:
            self.replace(at, self.elements + kept)
        else:
            self.elements.extend(kept)

    def replace(self, at: CurrentKey, kept: list[Any]) -> None:
        self.elements, self.is_shared = kept, False


class SharedEntries:
    """The entries of one subtask's map: implements nested_handles.KeptMaps."""

    __slots__ = ("entries", "is_shared")

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.entries = entries  #: not to be changed while `is_shared`
        self.is_shared = False

    def entry(self, at: CurrentKey, map_key: Any) -> Any:
        return self.entries.get(map_key, ABSENT)

    def seen(self, at: CurrentKey) -> list[tuple[Any, Any]]:
        return list(self.entries.items())

    def count(self, at: CurrentKey) -> int:
        return len(self.entries)

    def put(self, at: CurrentKey, entries: dict[Any, Any]) -> None:
        self._own().update(entries)

    def remove(self, at: CurrentKey, map_key: Any) -> None:
        if map_key in self.entries:
            del self._own()[map_key]

    def clear(self, at: CurrentKey) -> None:
        self.entries, self.is_shared = {}, False

    def _own(self) -> dict[Any, Any]:
        if self.is_shared:
            self.entries, self.is_shared = self.entries.copy(), False
        return self.entries


class OperatorList(KeptList[T]):
    """The elements of one subtask."""

    __slots__ = ("_held",)

    def __init__(self, declaration: ListState[T], elements: list[Any]) -> None:
        self._held = SharedElements(elements)
        super().__init__(self._held, CurrentKey(), object_intake(declaration, declaration.value_type))

    def __len__(self) -> int:
        return len(self._held.elements)

    def share(self) -> list[Any]:
        self._held.is_shared = True
        return self._held.elements


class BroadcastMap(KeptMap[K, V]):
    """One subtask's copy of a map that is the same in all subtasks.

    Classic mistake: to write it while working on an element that not every subtask gets. Only the broadcast side may.
    """

    __slots__ = ("_held",)

    def __init__(self, declaration: MapState[K, V], entries: dict[Any, Any]) -> None:
        self._held = SharedEntries(entries)
        keys = Intake(map_key_fit(declaration), None)
        super().__init__(self._held, CurrentKey(), keys, object_intake(declaration, declaration.value_type))

    def share(self) -> dict[Any, Any]:
        self._held.is_shared = True
        return self._held.entries


@dataclass(frozen=True, slots=True)
class _Registered:
    kind: OperatorKind
    declaration: ListState[Any] | MapState[Any, Any]
    handle: OperatorList[Any] | BroadcastMap[Any, Any]


@dataclass(frozen=True, slots=True)
class _Stored:
    kind: str
    batches: list[pa.RecordBatch]


class OperatorStateStore:
    """The operator state of one operator in one subtask.

    `key_groups` are those of the subtask, for raw keyed state; empty for an operator without keys.
    """

    def __init__(self, key_groups: range = range(0)) -> None:
        self._key_groups = key_groups
        self._stored: dict[str, _Stored] = {}  # restored, and not yet asked for
        self._states: dict[str, _Registered] = {}
        self.raw = RawInput()

    # -- for initialize_state ------------------------------------------------------------------------------------------

    def list_state(self, name: str, type: Any) -> OperatorList[Any]:
        """A list whose elements are split evenly among the subtasks when the parallelism changes.

        :raises ConfigurationError: for a name that is in use, or stored as another kind.
        :raises TypeDeclarationError: for stored elements of another type.
        """
        return self._list("operator-list", name, type)

    def union_list_state(self, name: str, type: Any) -> OperatorList[Any]:
        """A list of which every subtask gets the elements of all subtasks, at every restore.

        Classic mistake: to keep them all. Each subtask must take what is its own, or the list grows with each restore.

        :raises ConfigurationError: and TypeDeclarationError, as `list_state`.
        """
        return self._list("operator-union", name, type)

    def broadcast_state(self, name: str, key_type: Any, value_type: Any) -> BroadcastMap[Any, Any]:
        """A map that must be the same in every subtask.

        :raises ConfigurationError: and TypeDeclarationError, as `list_state`.
        """
        declaration = MapState(key_type, value_type)
        declaration.name = name
        return self.broadcast(declaration)

    def broadcast(self, declaration: MapState[Any, Any]) -> BroadcastMap[Any, Any]:
        """The same for a declaration that has its name."""
        known = self._known("operator-broadcast", declaration)
        if known is None:
            entries: dict[Any, Any] = {}
            for rows in self._claim("operator-broadcast", declaration):
                keys = map(map_key_fit(declaration), _read(rows, "map_key", declaration.key_type, declaration))
                entries.update(zip(keys, _read(rows, "value", declaration.value_type, declaration), strict=True))
            known = _Registered("operator-broadcast", declaration, BroadcastMap(declaration, entries))
            self._states[declaration.name] = known
        assert isinstance(known.handle, BroadcastMap)
        return known.handle

    def _list(self, kind: OperatorKind, name: str, type: Any) -> OperatorList[Any]:
        declaration = ListState(type)
        declaration.name = name
        known = self._known(kind, declaration)
        if known is None:
            elements: list[Any] = []
            for rows in self._claim(kind, declaration):
                elements += _read(rows, "value", declaration.value_type, declaration)
            known = self._states[name] = _Registered(kind, declaration, OperatorList(declaration, elements))
        assert isinstance(known.handle, OperatorList)
        return known.handle

    def _known(self, kind: OperatorKind, declaration: Declaration) -> _Registered | None:
        """The state, when it was asked for before in the same way."""
        name = declaration.name
        if not name or name in RAW_KINDS:
            raise ConfigurationError(
                f"{declaration.line}: {name!r} cannot be the name of an operator state. Choose another one."
            )
        known = self._states.get(name)
        if known is None:
            return None
        if (known.kind, known.declaration.type_name) != (kind, declaration.type_name):
            raise ConfigurationError(
                f"operator state {name!r} is asked for twice: as {known.kind} of {known.declaration.type_name} at "
                f"{known.declaration.line}, as {kind} of {declaration.type_name} at {declaration.line}. Rename one of them.",
                state=name,
            )
        return known

    def _claim(self, kind: OperatorKind, declaration: Declaration) -> list[pa.RecordBatch]:
        name = declaration.name
        stored = self._stored.pop(name, None)
        if stored is None:
            return []
        if stored.kind != kind:
            self._stored[name] = stored
            raise ConfigurationError(
                f"the checkpoint holds the operator state {name!r} as {stored.kind}, but {declaration.line} asks for "
                f"{kind}. Ask for it with {_OFFERED_AS[stored.kind]}, or give the new state another name.",
                state=name,
            )
        return stored.batches

    # -- for the runtime -----------------------------------------------------------------------------------------------

    def restore(self, state_name: str, kind: str, key_group: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Stored rows that are this subtask's share, in the order in which they are to be. Before `initialize_state`."""
        if kind in RAW_KINDS:
            self.raw.restore(kind, key_group, batches)
            return
        if kind not in get_args(OperatorKind):
            raise CheckpointDamaged(
                f"the checkpoint holds {state_name!r} as {kind!r}, which is not a kind of operator state that this release "
                "knows. Use the release that wrote it, or a newer one.",
                state=state_name,
            )
        stored = self._stored.setdefault(state_name, _Stored(kind, []))
        if stored.kind != kind:
            raise CheckpointDamaged(
                f"the checkpoint holds the operator state {state_name!r} as {stored.kind} and as {kind}.",
                state=state_name,
            )
        stored.batches.extend(batches)

    def check_all_claimed(self) -> None:
        """After `initialize_state`.

        :raises ConfigurationError: for restored state that nobody has asked for: it would be lost with the next checkpoint.
        """
        for name, stored in self._stored.items():
            raise ConfigurationError(
                f"the checkpoint holds the operator state {name!r} ({stored.kind}), but initialize_state does not ask for "
                f"it; it asks for {sorted(self._states) or 'none'}. Call {_OFFERED_AS[stored.kind]}({name!r}, ...) there, "
                "on every start, or start without this operator's state under another uid.",
                state=name,
            )
        self.raw.check_all_claimed()

    def raw_output(self) -> RawOutput:
        """For one snapshot: what `snapshot_state` writes its bytes to."""
        return RawOutput(self._key_groups)

    def snapshot(self, raw: RawOutput | None = None) -> OperatorStateSnapshot:
        """The synchronous part: takes no copy. After `snapshot_state`."""
        shared = [(name, state, state.handle.share()) for name, state in self._states.items()]
        return OperatorStateSnapshot(shared, raw)

    def state_size(self) -> dict[str, int]:
        """How many elements or entries each state holds. For metrics."""
        return {name: len(state.handle) for name, state in self._states.items()}


class OperatorStateSnapshot:
    """All operator state of a subtask at one moment."""

    def __init__(
        self, shared: list[tuple[str, _Registered, list[Any] | dict[Any, Any]]], raw: RawOutput | None
    ) -> None:
        self._shared = shared
        self._raw = raw

    def sections(self) -> Iterator[Section]:
        """:raises TypeDeclarationError: for a value that does not fit its declared type; names the state."""
        for name, state, content in self._shared:
            if content:
                yield Section(name, state.kind, NOT_KEYED, _rows(state.declaration, content))
        if self._raw is not None:
            yield from raw_sections(self._raw)


def _rows(declaration: ListState[Any] | MapState[Any, Any], content: list[Any] | dict[Any, Any]) -> pa.RecordBatch:
    if isinstance(content, list):
        return pa.RecordBatch.from_arrays([_column(declaration, declaration.value_type, content)], ["value"])
    assert isinstance(declaration, MapState)
    map_keys = _column(declaration, declaration.key_type, list(content))
    values = _column(declaration, declaration.value_type, list(content.values()))
    return pa.RecordBatch.from_arrays([map_keys, values], ["map_key", "value"])


def _column(declaration: Declaration, data_type: DataType, values: list[Any]) -> pa.Array:
    return _described(declaration, lambda: data_type.to_arrow(values), "what it holds is not")


def _read(rows: pa.RecordBatch, name: str, data_type: DataType, declaration: Declaration) -> list[Any]:
    if name not in rows.schema.names:
        raise CheckpointDamaged(
            f"the stored rows of operator state {declaration.name!r} have no column {name!r}, but {rows.schema.names}. "
            "The file was not written by Tidegate, or was edited.",
            state=declaration.name,
        )
    column = rows.column(name)
    found: list[Any] = _described(
        declaration, lambda: data_type.from_arrow(column), f"the checkpoint holds {column.type} in its column {name!r}"
    )
    return found


def _described(declaration: Declaration, convert: Callable[[], Any], otherwise: str) -> Any:
    try:
        return convert()
    except TypeDeclarationError as error:
        raise TypeDeclarationError(
            f"operator state {declaration.name!r} ({declaration.line}) is declared as {declaration.type_name}, but "
            f"{otherwise}: {error.message}",
            state=declaration.name,
        ) from error
