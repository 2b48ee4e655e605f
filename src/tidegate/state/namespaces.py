"""Namespaces: several states of one key under one name, as windows need. Pure; executor.

A namespace is bytes; the empty one is where all state lives that knows nothing of namespaces. Tables have one dictionary
key for both: in the empty namespace the normalised key itself, so that the common case pays nothing, and otherwise a
tuple that begins with a mark which no key of a user can hold.
"""

from __future__ import annotations

from typing import Any


class _Mark:
    __slots__ = ()

    def __repr__(self) -> str:
        return "in namespace"


_MARK = _Mark()


def in_namespace(key: Any, namespace: bytes) -> Any:
    """What tables file a normalised key's state under."""
    return (_MARK, key, namespace) if namespace else key


def bare_key(table_key: Any) -> Any:
    """The normalised key alone."""
    return table_key[1] if is_namespaced(table_key) else table_key


def parts_of_table_key(table_key: Any) -> tuple[Any, bytes]:
    """The normalised key, and the namespace."""
    return (table_key[1], table_key[2]) if is_namespaced(table_key) else (table_key, b"")


def split_namespaces(table_keys: list[Any]) -> tuple[list[Any], list[bytes] | None]:
    """Normalised keys and their namespaces; None for these when all are empty."""
    if tuple not in set(map(type, table_keys)) or not any(map(is_namespaced, table_keys)):
        return table_keys, None
    return (
        list(map(bare_key, table_keys)),
        [table_key[2] if is_namespaced(table_key) else b"" for table_key in table_keys],
    )


def is_namespaced(table_key: Any) -> bool:
    """Whether it stands for a key in a namespace other than the empty one."""
    return table_key.__class__ is tuple and len(table_key) == 3 and table_key[0] is _MARK
