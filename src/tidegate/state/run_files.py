"""Runs in a checkpoint: a file `RUNS` that says which parts there are, and the parts beside it. Executor.

    {"max_parallelism": 128, "states": {"total": {"ints": [["<part>", ...], ...], "others": []}}}      runs newest first

A part may hold keys of other key groups than those of the checkpoint's subtask: a rescale takes files over as they are. So
whoever reads names the key groups, and those of the subtask that stored it are the most that count.
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
from tidegate.state.cold import INTS, Cold
from tidegate.state.key_codec import encode_key
from tidegate.state.key_groups import key_groups as groups_of
from tidegate.state.rocksdb_keys import EMPTY_NAMESPACE, GROUP_BYTES, group_prefix
from tidegate.state.runs import Loaded, Part, Run, listed, merged, order_range, read_columns

RUNS_FILE = "RUNS"
_PIECE_BYTES = 1 << 20


class RunsOf(msgspec.Struct, frozen=True):
    """The runs of all states of one checkpoint."""

    max_parallelism: int
    states: dict[str, dict[str, list[list[str]]]]

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


def taken_over(folder: Path, stored: RunsOf, state: str, groups: range, cold: Cold) -> None:
    """Runs of a fetched checkpoint become those of a table, as they are: only the rows of these key groups count."""
    first, last = order_range(groups, stored.max_parallelism)
    for tier, runs in stored.states[state].items():
        adopted = []
        for names in runs:
            parts = []
            for name in names:
                columns = read_columns(folder / name).within(first, last)
                if len(columns):
                    path = cold.folder / name
                    shutil.move(folder / name, path)
                    parts.append(Part(path, columns))
            if parts:
                adopted.append(Run(parts))
        cold.adopt({tier: adopted})


def rows_of(folder: Path, stored: RunsOf, state: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Addresses and cells as RocksDB's rows have them, of the key groups between two prefixes, ascending."""
    tiers = []
    groups = range(*(min(int.from_bytes(end[:GROUP_BYTES], "big"), stored.max_parallelism) for end in (start, stop)))
    first, last = order_range(groups, stored.max_parallelism)
    for tier, runs in stored.states[state].items():
        loaded = [[read_columns(folder / name).within(first, last) for name in names] for names in runs]
        some = [Run([Loaded(columns) for columns in of_run if len(columns)]) for of_run in loaded]
        some = [run for run in some if run.parts]
        if some:
            tiers.append(_rows(tier, some, stored.max_parallelism))
    return merge(*tiers, key=lambda row: row[0][:GROUP_BYTES]) if len(tiers) > 1 else iter(tiers[0] if tiers else ())


def _rows(tier: str, runs: list[Run], max_parallelism: int) -> Iterator[tuple[bytes, bytes]]:
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
