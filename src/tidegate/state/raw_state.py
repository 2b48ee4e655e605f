"""Raw state: bytes that a function writes and reads itself, and that Tidegate only keeps and moves. Executor.

Raw operator state is a list of pieces for each subtask. At another parallelism the pieces of all subtasks are split
evenly; a piece stays whole. Raw keyed state is bytes for each key group, and goes where the key group goes.

Written in `snapshot_state`, anew for each snapshot: what was written for the last one is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidegate.errors import CheckpointDamaged, ConfigurationError, TypeDeclarationError
from tidegate.ids import KeyGroup
from tidegate.state.backend import Section

RAW_OPERATOR = "raw-operator"
RAW_KEYED = "raw-keyed"
RAW_KINDS = frozenset({RAW_OPERATOR, RAW_KEYED})  #: also the names under which they are stored


class RawOutput:
    """What one snapshot's raw state is written to."""

    def __init__(self, key_groups: range) -> None:
        self._key_groups = key_groups
        self.pieces: list[bytes] = []
        self.by_key_group: dict[int, list[bytes]] = {}

    def write_operator(self, piece: bytes) -> None:
        """Add a piece to the raw operator state."""
        self.pieces.append(_as_bytes(piece))

    def write_keyed(self, key_group: int, data: bytes) -> None:
        """Add to the raw keyed state of a key group; what is written later follows.

        :raises ConfigurationError: for a key group of another subtask.
        """
        own = self._key_groups
        if key_group not in own:
            whose = f"this subtask has {own.start} to {own.stop - 1}" if own else "this operator has no keys"
            raise ConfigurationError(
                f"raw keyed state was written for the key group {key_group}, but {whose}. Write each key group's bytes "
                "in the subtask that has it (ctx.key_groups)."
            )
        self.by_key_group.setdefault(key_group, []).append(_as_bytes(data))


class RawInput:
    """The raw state that a subtask was given at its restore."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._by_key_group: dict[int, list[bytes]] = {}
        self._read: set[str] = set()

    def operator(self) -> list[bytes]:
        """The pieces of raw operator state that are this subtask's."""
        self._read.add(RAW_OPERATOR)
        return list(self._pieces)

    def keyed(self) -> Iterator[tuple[int, bytes]]:
        """(key group, its bytes), ascending; only key groups for which something was written."""
        self._read.add(RAW_KEYED)
        return iter([(group, b"".join(self._by_key_group[group])) for group in sorted(self._by_key_group)])

    def restore(self, kind: str, key_group: int, batches: Iterable[pa.RecordBatch]) -> None:
        for rows in batches:
            if "value" not in rows.schema.names:
                raise CheckpointDamaged(
                    f"the stored rows of {kind} state have no column 'value', but {rows.schema.names}. "
                    "The file was not written by Tidegate, or was edited."
                )
            pieces = rows.column("value").to_pylist()
            (self._pieces if kind == RAW_OPERATOR else self._by_key_group.setdefault(key_group, [])).extend(pieces)

    def check_all_claimed(self) -> None:
        """:raises ConfigurationError: for raw state that initialize_state has not read: nobody would write it again."""
        for kind, found, call in (
            (RAW_OPERATOR, bool(self._pieces), "ctx.raw.operator()"),
            (RAW_KEYED, bool(self._by_key_group), "ctx.raw.keyed()"),
        ):
            if found and kind not in self._read:
                raise ConfigurationError(
                    f"the checkpoint holds {kind} state, but initialize_state does not read it. Read it there with "
                    f"{call}, or start without this operator's state under another uid."
                )
        self._pieces, self._by_key_group = [], {}  # the function has it now


def raw_sections(output: RawOutput) -> Iterator[Section]:
    if output.pieces:
        yield Section(RAW_OPERATOR, RAW_OPERATOR, KeyGroup(-1), _rows(output.pieces))
    for group in sorted(output.by_key_group):
        yield Section(RAW_KEYED, RAW_KEYED, KeyGroup(group), _rows(output.by_key_group[group]))


def _rows(pieces: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(pieces, pa.binary())], ["value"])


def _as_bytes(data: bytes) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeDeclarationError(
            f"raw state is bytes, not {type(data).__name__}. Encode the value, or use ctx.operator_state."
        )
    return bytes(data)
