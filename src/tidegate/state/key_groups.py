"""Key groups: the unit in which keyed state moves between subtasks. Pure; driver and executor agree by these formulas.

A key belongs to one of `max_parallelism` key groups for ever; a subtask owns a range of them. Ranges are Flink's
(KeyGroupRangeAssignment); the group is not a remainder but the top of the hash scaled down, which takes no division:

    key group = ((hash >> 32) * max_parallelism) >> 32
    subtask   = key group * parallelism // max_parallelism
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tidegate.errors import ConfigurationError

MAX_PARALLELISM_LIMIT = 32_768  #: key groups fit in 15 bits, as in Flink
_FEWEST_BY_DEFAULT = 128


def key_group(hash: int, max_parallelism: int) -> int:
    """Of an unsigned 64-bit hash."""
    if not 0 < max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise _out_of_range("max_parallelism", max_parallelism, MAX_PARALLELISM_LIMIT)
    return ((hash >> 32) * max_parallelism) >> 32


def key_groups(hashes: npt.NDArray[np.uint64], max_parallelism: int) -> npt.NDArray[np.int32]:
    """`key_group` of many."""
    if not 0 < max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise _out_of_range("max_parallelism", max_parallelism, MAX_PARALLELISM_LIMIT)
    groups: npt.NDArray[np.uint64] = hashes >> np.uint64(32)
    groups *= np.uint64(max_parallelism)
    groups >>= np.uint64(32)
    return groups.astype(np.int32)


@overload
def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int: ...
@overload
def subtask_of(key_group: npt.NDArray[np.int32], parallelism: int, max_parallelism: int) -> npt.NDArray[np.int32]: ...


def subtask_of(key_group: Any, parallelism: int, max_parallelism: int) -> Any:
    """The owner of a key group, or of each of an array of them."""
    check_parallelism(parallelism, max_parallelism)
    return key_group * parallelism // max_parallelism  # below 2**30, so int32 holds the product


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """All and only the key groups whose owner is `subtask`. Never empty."""
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise ConfigurationError(
            f"there is no subtask {subtask} of an operator with parallelism {parallelism}; they are 0 to "
            f"{parallelism - 1}.",
            subtask=subtask,
            parallelism=parallelism,
        )
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return range(start, last + 1)


def overlap(one: range, other: range) -> range:
    """The key groups that are in both; may be empty."""
    return range(max(one.start, other.start), min(one.stop, other.stop))


def default_max_parallelism(parallelism: int) -> int:
    """Flink's default: half as much again, the next power of two, at least 128."""
    check_parallelism(parallelism, MAX_PARALLELISM_LIMIT)
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), _FEWEST_BY_DEFAULT), MAX_PARALLELISM_LIMIT)


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """:raises ConfigurationError: unless 1 <= parallelism <= max_parallelism <= 32768."""
    if not 0 < max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise _out_of_range("max_parallelism", max_parallelism, MAX_PARALLELISM_LIMIT)
    if not 0 < parallelism <= max_parallelism:
        raise _out_of_range("parallelism", parallelism, max_parallelism)


def _out_of_range(name: str, value: int, largest: int) -> ConfigurationError:
    why = (
        "a key group is the smallest unit that a subtask can own"
        if largest < MAX_PARALLELISM_LIMIT
        else f"there are at most {MAX_PARALLELISM_LIMIT} key groups"
    )
    return ConfigurationError(
        f"{name} is {value}; it must be 1 to {largest}: {why}.", **{name: value, "largest": largest}
    )
