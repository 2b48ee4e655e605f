"""Ids as Flink's clients want them: 32 hexadecimal digits, made from names. Driver; pure.

The same job (name and storage) has the same id in every run, so that whoever watches it finds it again. A vertex is a chain,
named by the uid of its head, which is what state is matched by: it keeps its id over restarts, rescaling and new releases.
"""

from __future__ import annotations

import re
import secrets

import xxhash

_HEX_32 = re.compile(r"[0-9a-f]{32}")


def job_id(name: str, storage: str | None) -> str:
    """Without a storage a job does not outlive its driver: its id is made up."""
    return secrets.token_hex(16) if storage is None else _hash(f"job\0{storage.rstrip('/')}\0{name}")


def vertex_id(head_uid: str) -> str:
    return _hash(f"vertex\0{head_uid}")


def new_trigger_id() -> str:
    return secrets.token_hex(16)


def is_id(text: str) -> bool:
    return _HEX_32.fullmatch(text) is not None


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
