"""Where a key's rows stand in RocksDB: its address. Pure; executor.

    address = key group (2 bytes, big-endian) + key (canonical bytes) + namespace

Rows of one key group lie together, key groups ascend, and inside one the keys ascend as their canonical bytes do. No
key's bytes are a prefix of another's (state/key_codec.py, invariant 3). The empty namespace is the byte 0x00, with which
no key begins; any other is encoded as a key of its bytes. So no address is a prefix of another, and all rows that begin
with an address are that key's own in that namespace. An address ends with 0x00 in the empty namespace and with 0x01 in
every other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.errors import ProtocolViolation
from tidegate.state.key_codec import decode_key, decode_prefix, encode_key
from tidegate.state.key_groups import key_group, key_groups
from tidegate.state.namespaces import in_namespace, parts_of_table_key, split_namespaces

if TYPE_CHECKING:
    from tidegate.state.keys import KeyType

GROUP_BYTES = 2
SEQUENCE_BYTES = 8  #: after the address, of the rows of a list
EMPTY_NAMESPACE = b"\x00"


class Addresses:
    """The addresses of the keys of one subtask, as tables have them: normalised, with their namespace."""

    def __init__(self, key_type: KeyType, own: range, max_parallelism: int) -> None:
        self.key_type = key_type
        self.own = own
        self.max_parallelism = max_parallelism
        self._prefixes = [group_prefix(group) for group in range(max_parallelism)]

    def of(self, table_key: Any, state: str) -> bytes:
        """:raises ProtocolViolation: for a key of another subtask."""
        return self.of_one(table_key, state)[0]

    def of_one(self, table_key: Any, state: str) -> tuple[bytes, int]:
        """The same, and the hash of the key."""
        key, namespace = parts_of_table_key(table_key)
        hashed = self.key_type.hash(key)
        group = key_group(hashed, self.max_parallelism)
        if group not in self.own:
            raise self._foreign(key, group, state)
        ending = encode_key(namespace) if namespace else EMPTY_NAMESPACE
        return self._prefixes[group] + self.key_type.encode(key) + ending, hashed

    def hashes(self, table_keys: list[Any]) -> np.ndarray[Any, Any]:
        """Of the keys, whatever their namespace."""
        return self.key_type.hash_many(split_namespaces(table_keys)[0])

    def of_many(self, table_keys: list[Any], state: str) -> list[bytes]:
        """The same for each of many."""
        keys, namespaces = split_namespaces(table_keys)
        groups = self.own_groups(self.key_type.hash_many(keys), keys, state)
        prefixes = self._prefixes
        encoded = self.key_type.encode_many(keys)
        if namespaces is None:
            return [
                prefixes[group] + key + EMPTY_NAMESPACE for group, key in zip(groups.tolist(), encoded, strict=True)
            ]
        return [
            prefixes[group] + key + (encode_key(namespace) if namespace else EMPTY_NAMESPACE)
            for group, key, namespace in zip(groups.tolist(), encoded, namespaces, strict=True)
        ]

    def own_groups(self, hashes: np.ndarray[Any, Any], keys: Any, state: str) -> np.ndarray[Any, Any]:
        """The key group of each. :raises ProtocolViolation: for a key of another subtask."""
        groups = key_groups(hashes, self.max_parallelism)
        foreign = np.flatnonzero((groups < self.own.start) | (groups >= self.own.stop))
        if len(foreign):
            at = int(foreign[0])
            key = keys[at].item() if isinstance(keys, np.ndarray) else keys[at]
            raise self._foreign(key, int(groups[at]), state)
        return groups

    def table_key(self, address: bytes) -> Any:
        """The way back."""
        key, namespace = parts_of(address)
        return in_namespace(self.key_type.normalise(decode_key(key)), namespace)

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
    if row_key.startswith(EMPTY_NAMESPACE, end):
        return row_key[: end + 1]
    _, end = decode_prefix(row_key, end)
    return row_key[:end]


def parts_of(address: bytes) -> tuple[bytes, bytes]:
    """The canonical bytes of the key, and the namespace."""
    if address.endswith(EMPTY_NAMESPACE):
        return address[GROUP_BYTES:-1], b""
    _, end = decode_prefix(address, GROUP_BYTES)
    namespace, _ = decode_prefix(address, end)
    return address[GROUP_BYTES:end], namespace


def end_of(prefix: bytes) -> bytes:
    """The least bytes that are beyond everything that begins with `prefix`. (No prefix of ours is all 0xFF.)"""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
