"""Increments of heap state, put together again: a full base and what has changed since. Pure.

An increment holds whole keys: every row of each key that has changed since the one before it, and the keys that are gone.
So a key's rows are those of the newest increment that names it, whatever older ones say:

    base        a=1  b=2  c=3
    increment 1      b=5       c deleted
    increment 2 a=7
    together    a=7  b=5
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.ids import KeyGroup
from tidegate.state.backend import Section
from tidegate.state.sections import DELETED


def merge_increments(increments: Sequence[Iterable[Section]]) -> Iterator[Section]:
    """The sections of the whole state. The base comes first in `increments`, then what has changed since, in order."""
    named: dict[tuple[str, KeyGroup], list[pa.Array]] = {}  #: keys that newer increments speak of
    for increment in reversed(increments):
        now: dict[tuple[str, KeyGroup], list[pa.Array]] = {}
        for section in increment:
            place = section.state, section.key_group
            keys = _identities(section.rows)
            now.setdefault(place, []).append(keys)
            if section.kind == DELETED:
                continue
            rows = section.rows
            if place in named:
                newer = pa.chunked_array(named[place], pa.binary())
                rows = rows.filter(pc.invert(pc.is_in(keys, value_set=newer)))
            if rows.num_rows:
                yield section._replace(rows=rows)
        for place, arrays in now.items():
            named.setdefault(place, []).extend(arrays)


def _identities(rows: pa.RecordBatch) -> pa.Array:
    """Key and namespace as one value: no key's bytes are the beginning of another's, so they can simply be joined."""
    return pc.binary_join_element_wise(rows.column("key"), rows.column("namespace"), pa.scalar(b"", pa.binary()))
