"""Runs in a checkpoint: a file `RUNS` that says which parts there are, and the parts beside it. Executor.

    {"max_parallelism": 128, "states": {"total": {"ints": [["<part>", ...], ...], "others": []}}}      runs newest first

A rescale takes files over as they are, so a part may hold rows of key groups that its subtask has not taken over. They are
out of date, or somebody else's: such a part is named with the key groups that count, ["<part>", 0, 63].
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tidegate.errors import CheckpointDamaged
from tidegate.state.cold import Cold
from tidegate.state.cold_keys import ELEMENTS, INTS
from tidegate.state.key_codec import encode_key
from tidegate.state.key_groups import key_groups as groups_of
from tidegate.state.key_groups import overlap
from tidegate.state.rocksdb_keys import EMPTY_NAMESPACE, GROUP_BYTES, group_prefix
from tidegate.state.runs import (
    Columns,
    Loaded,
    Part,
    Run,
    StoredPart,
    by_upper_half,
    listed,
    merged,
    new_name,
    order_range,
    read_columns,
)

RUNS_FILE = "RUNS"
_PIECE_BYTES = 1 << 20


class RunsOf(msgspec.Struct, frozen=True):
    """The runs of all states of one checkpoint."""

    max_parallelism: int
    states: dict[str, dict[str, list[list[StoredPart]]]]

    def write(self, folder: Path) -> None:
        (folder / RUNS_FILE).write_bytes(msgspec.json.encode(self))


def runs_of(folder: Path) -> RunsOf | None:
    """None: of a checkpoint without any.

    :raises CheckpointDamaged: when the file says something else.
    """
    path = folder / RUNS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunsOf)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CheckpointDamaged(
            f"{path} does not say which runs of state there are: {error}", path=str(path)
        ) from error


def taken_over(
    folder: Path, stored: RunsOf, state: str, groups: range, cold: Cold, *, keep_names: bool = False
) -> None:
    """Runs of a fetched checkpoint become those of a table, as they are: only the rows of these key groups count.

    `keep_names`: the next checkpoint is built on this one, and this is all that is taken over. Else they get new ones: two old
    subtasks may bring the same file, which both had taken over from a third.
    """
    for tier, runs in stored.states[state].items():
        adopted = []
        for of_run in runs:
            parts = []
            for part in of_run:
                name, counting = _counting(part, groups)
                columns, is_whole = _rows_within(folder / name, counting, stored.max_parallelism)
                if len(columns):
                    path = cold.folder / (name if keep_names else new_name())
                    shutil.move(folder / name, path)
                    parts.append(Part(path, columns, None if is_whole else counting))
            if parts:
                adopted.append(Run(parts))
        cold.adopt({tier: adopted})


def _counting(part: StoredPart, groups: range) -> tuple[str, range]:
    """A part's file, and which of these key groups count."""
    if isinstance(part, str):
        return part, groups
    name, first, last = part
    return name, overlap(groups, range(first, last + 1))


def _rows_within(path: Path, groups: range, max_parallelism: int) -> tuple[Columns, bool]:
    """The rows of some key groups; and whether the file has no others."""
    columns = read_columns(path)
    within = columns.within(*order_range(groups, max_parallelism)) if groups else columns.slice(0, 0)
    return within, len(within) == len(columns)


def rows_of(folder: Path, stored: RunsOf, state: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Addresses and cells as RocksDB's rows have them, of the key groups between two prefixes, ascending."""
    tiers = []
    groups = range(*(min(int.from_bytes(end[:GROUP_BYTES], "big"), stored.max_parallelism) for end in (start, stop)))
    for tier, runs in stored.states[state].items():
        named = [[_counting(part, groups) for part in of_run] for of_run in runs]
        loaded = [
            [_rows_within(folder / name, counting, stored.max_parallelism)[0] for name, counting in of_run]
            for of_run in named
        ]
        some = [Run([Loaded(columns) for columns in of_run if len(columns)]) for of_run in loaded]
        some = [run for run in some if run.parts]
        if some:
            tiers.append(_rows(tier, some, stored.max_parallelism))
    return merge(*tiers, key=lambda row: row[0][:GROUP_BYTES]) if len(tiers) > 1 else iter(tiers[0] if tiers else ())


def _rows(tier: str, runs: list[Run], max_parallelism: int) -> Iterator[tuple[bytes, bytes]]:
    if tier == ELEMENTS:  # the rows of each key together, in the order of their parts
        for of_half in by_upper_half(runs, _PIECE_BYTES):
            yield from sorted(of_half)
        return
    for columns in merged(runs, forget_absent=True, part_bytes=_PIECE_BYTES):
        addresses: Any = listed(columns.identity)
        if tier == INTS:
            groups = groups_of(columns.order.copy(), max_parallelism).tolist()
            prefixes = {group: group_prefix(group) for group in set(groups)}
            addresses = [
                prefixes[group] + encode_key(key) + EMPTY_NAMESPACE
                for group, key in zip(groups, addresses, strict=True)
            ]
        yield from zip(addresses, _cells(columns.cell), strict=True)


def _cells(column: Any) -> list[bytes]:
    if not isinstance(column, np.ndarray):
        return listed(column)
    size, raw = column.dtype.itemsize, np.ascontiguousarray(column).tobytes()
    return [raw[at : at + size] for at in range(0, len(raw), size)]
