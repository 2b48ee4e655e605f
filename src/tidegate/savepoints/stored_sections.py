"""Keyed state that is stored as files, as sections in the format of every backend: what a restore and an offline reader see.

Reads only. RocksDB is needed for its own files alone.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tidegate.ids import KeyGroup
from tidegate.savepoints.heap_increments import merge_increments
from tidegate.state.backend import Section, StoredFolder
from tidegate.state.key_groups import overlap
from tidegate.storage.increment_file import read_increment_file
from tidegate.storage.state_files import HEAP, FileStorage, StateFiles, StoredFile, fetch_state

KEY_GROUPS_AT_ONCE = 16  #: bounds the memory of a restore from increments


def stored_sections(storage: FileStorage, state: StateFiles, key_groups: range) -> Iterator[Section]:
    """What the files hold for these key groups, in the format of every backend."""
    if state.format == HEAP:
        wanted = overlap(state.key_groups, key_groups)
        for start in range(wanted.start, wanted.stop, KEY_GROUPS_AT_ONCE):
            part = range(start, min(start + KEY_GROUPS_AT_ONCE, wanted.stop))
            yield from merge_increments([list(_increment(storage, file, part)) for file in state.files])
        return
    from tidegate.state.rocksdb import sections_in

    base = Path(tempfile.mkdtemp(prefix="tidegate-restore-"))
    try:
        fetch_state(storage, state, base / "db")
        yield from sections_in(StoredFolder(base / "db", state.key_groups), key_groups)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _increment(storage: FileStorage, file: StoredFile, key_groups: range) -> Iterator[Section]:
    for section, rows in read_increment_file(storage, file, key_groups):
        yield Section(section.state, section.kind, KeyGroup(section.key_group), rows)
