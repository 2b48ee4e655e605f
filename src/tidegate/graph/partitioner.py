"""A partitioning of the user's own: which subtask gets a record. Made on the driver, applied on the executors.

stream.partition_custom(lambda region, receivers: region % receivers, "region")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.graph.key_selector import KeySelector


@dataclass(frozen=True, slots=True)
class Partitioner:
    """`choose(key, receivers)` gives the number of the subtask, 0 to receivers-1, for what `key` takes out of a record."""

    choose: Callable[[Any, int], int]
    key: KeySelector

    def targets(self, batch: Batch, receivers: int) -> np.ndarray[Any, Any]:
        """The receiver of each record. :raises ValueError: for a number that is not a receiver's."""
        choose = self.choose
        chosen = [choose(key, receivers) for key in map(self.key.row_key(), batch.rows())]
        for target in chosen:
            if not isinstance(target, (int, np.integer)) or isinstance(target, bool) or not 0 <= target < receivers:
                raise ValueError(
                    f"the function of partition_custom gave {target!r}; it must give the number of a subtask, 0 to "
                    f"{receivers - 1} here: write, for instance, lambda key, receivers: hash_of(key) % receivers"
                )
        return np.array(chosen, np.int64)
