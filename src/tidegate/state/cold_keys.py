"""Keys as runs know them: a hash, and an identity that says which key it is. Pure; executor.

    tier        identity                                          of
    ints        the key, an int64                                 values, in the empty namespace
    others      the address (state/rocksdb_keys.py)               values
    entries     the address and the cell of the map's key         maps
    elements    the address and a sequence number                 lists

Where a key has several rows, the upper half of their hashes is that of the key: they are neighbours, and in one key group. The
lower half is of all that the identity says, so each of them is found at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.state.key_hash import hash_int64s
from tidegate.state.namespaces import split_namespaces
from tidegate.state.runs import Column, order_of, order_of_rows

if TYPE_CHECKING:
    from tidegate.state.rocksdb_keys import Addresses

    Array = np.ndarray[Any, np.dtype[Any]]

INTS, OTHERS, ENTRIES, ELEMENTS = "ints", "others", "entries", "elements"


class Keys:
    """Some keys, in the one or two forms in which tiers know them."""

    def __init__(self, forms: list[tuple[str, Array, Array, Column]]) -> None:
        self.forms = forms  #: tier, places in what was given, hashes, identities

    @staticmethod
    def of_values(keys: list[Any] | Array, addresses: Addresses, state: str) -> Keys:
        """Of keys that have one row each."""
        if isinstance(keys, np.ndarray):
            return Keys([_ints(np.arange(len(keys)), keys, addresses, state)])
        are_ints = [key.__class__ is int and -(1 << 63) <= key < 1 << 63 for key in keys]
        if all(are_ints):
            return Keys([_ints(np.arange(len(keys)), np.array(keys, dtype=np.int64), addresses, state)])
        is_int = np.array(are_ints, dtype=np.bool_)
        forms = []
        ints = np.flatnonzero(is_int)
        if len(ints):
            numbers = np.array([keys[at] for at in ints.tolist()], dtype=np.int64)
            forms.append(_ints(ints, numbers, addresses, state))
        places = np.flatnonzero(~is_int)
        others = [keys[at] for at in places.tolist()]
        bare, namespaces = split_namespaces(others)
        hashes = addresses.key_type.hash_many(bare)
        identities = pa.array(addresses.of_many(others, state), pa.large_binary())
        return Keys([*forms, (OTHERS, places, order_of(hashes, namespaces), identities)])

    @staticmethod
    def of_parts(tier: str, keys: list[Any], parts: list[list[bytes]], addresses: Addresses, state: str) -> Keys:
        """Of the rows of keys, all those of one after the other; a part is what follows the address."""
        bare, _ = split_namespaces(keys)
        counts = np.fromiter(map(len, parts), np.int64, len(parts))
        found = zip(addresses.of_many(keys, state), parts, strict=True)
        identities = [address + part for address, of_key in found for part in of_key]
        order = order_of_rows(np.repeat(addresses.key_type.hash_many(bare), counts), identities)
        return Keys([(tier, np.arange(len(identities)), order, pa.array(identities, pa.large_binary()))])


def _ints(places: Array, numbers: Array, addresses: Addresses, state: str) -> tuple[str, Array, Array, Column]:
    hashes = hash_int64s(np.ascontiguousarray(numbers))
    addresses.own_groups(hashes, numbers, state)
    return INTS, places, hashes, numbers
