"""Where a key's rows stand in RocksDB: its address. Pure; executor.

    address = key group (2 bytes, big-endian) + key (canonical bytes) + namespace

Rows of one key group lie together, key groups ascend, and inside one the keys ascend as their canonical bytes do. No
key's bytes are a prefix of another's (state/key_codec.py, invariant 3), and the namespace is one key as well, or the
byte 0x00 where there is none; so no address is a prefix of another, and all rows that begin with an address are that
key's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.errors import ProtocolViolation
from tidegate.state.key_codec import decode_prefix
from tidegate.state.key_groups import key_group, key_groups

if TYPE_CHECKING:
    from tidegate.state.keys import KeyType

GROUP_BYTES = 2
NO_NAMESPACE = b"\x00"  #: no key begins with it


class Addresses:
    """The addresses of the keys of one subtask."""

    def __init__(self, key_type: KeyType, own: range, max_parallelism: int) -> None:
        self.key_type = key_type
        self.own = own
        self._max_parallelism = max_parallelism
        self._prefixes = [group_prefix(group) for group in range(max_parallelism)]

    def of(self, key: Any, state: str) -> bytes:
        """Of a normalised key. :raises ProtocolViolation: for a key of another subtask."""
        group = key_group(self.key_type.hash(key), self._max_parallelism)
        if group not in self.own:
            raise self._foreign(key, group, state)
        return self._prefixes[group] + self.key_type.encode(key) + NO_NAMESPACE

    def of_many(self, keys: list[Any], state: str) -> list[bytes]:
        """The same for each of many."""
        groups = key_groups(self.key_type.hash_many(keys), self._max_parallelism)
        foreign = np.flatnonzero((groups < self.own.start) | (groups >= self.own.stop))
        if len(foreign):
            raise self._foreign(keys[foreign[0]], int(groups[foreign[0]]), state)
        prefixes = self._prefixes
        encoded = self.key_type.encode_many(keys)
        return [prefixes[group] + key + NO_NAMESPACE for group, key in zip(groups.tolist(), encoded, strict=True)]

    def _foreign(self, key: Any, group: int, state: str) -> ProtocolViolation:
        return ProtocolViolation(
            f"state {state!r} was used under the key {self.key_type.denormalise(key)!r} of key group {group}, but this "
            f"subtask owns the key groups {self.own.start} to {self.own.stop - 1}: a record was routed under another "
            "key than the one its state is used under. The key function is not deterministic, or it has changed since "
            "the checkpoint was taken; it must always give the same key for the same record.",
            state=state,
            key_group=group,
        )


def group_prefix(group: int) -> bytes:
    return group.to_bytes(GROUP_BYTES, "big")


def group_of(row_key: bytes) -> int:
    return int.from_bytes(row_key[:GROUP_BYTES], "big")


def address_in(row_key: bytes) -> bytes:
    """The address at the beginning of a row's key."""
    _, end = decode_prefix(row_key, GROUP_BYTES)
    if row_key[end : end + 1] != NO_NAMESPACE:
        _, end = decode_prefix(row_key, end)
        return row_key[:end]
    return row_key[: end + 1]


def key_bytes_in(address: bytes) -> bytes:
    """The canonical bytes of the key, of an address without a namespace."""
    return address[GROUP_BYTES : -len(NO_NAMESPACE)]


def end_of(prefix: bytes) -> bytes:
    """The least bytes that are beyond everything that begins with `prefix`. (No prefix of ours is all 0xFF.)"""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
