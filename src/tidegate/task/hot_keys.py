"""The hottest keys of one subtask of a keyed operator: a bounded sketch over a few sampled records. Executor.

The task's thread samples the keys that the operator has worked out for a slice; the heartbeat's thread reads. At most MAX_LOOKS
each PAUSE_S are looked at, and at most one in ONE_IN. The records are not looked at: user code has had them, and may have
changed them.

Of the sample, the counts are lower bounds (Misra and Gries): when there are more than twice CAPACITY, the CAPACITY largest
are kept and the largest that goes is taken from each. A key with more than one in CAPACITY of the records is never lost.
Older records fade.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pyarrow as pa

from tidegate.state.key_columns import normalised_keys
from tidegate.state.keys import KeyType
from tidegate.wire.control import HotKey, HotKeys

log = logging.getLogger("tidegate.task")

PAUSE_S = 0.1
MAX_LOOKS = 16
ONE_IN = 8
CAPACITY = 128
TOLD = 5  #: keys in a heartbeat
KEY_LENGTH = 80  #: characters of a key, as it is shown
ENOUGH = 50  #: records that were looked at, before a key is called hot
FADE_EVERY_S = 10.0
FADE = 0.85  #: what is a minute old counts for a third


class HeavyHitters:
    """Weighted counts of the most frequent of many values, never too high."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: dict[Hashable, float] = {}
        self.total = 0.0  #: of all weights, those of forgotten values too

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, value: Hashable, weight: float) -> None:
        self.total += weight
        self._counts[value] = self._counts.get(value, 0.0) + weight
        if len(self._counts) > 2 * self._capacity:
            self._prune()

    def _prune(self) -> None:
        cut = heapq.nlargest(self._capacity + 1, self._counts.values())[-1]
        self._counts = {value: count - cut for value, count in self._counts.items() if count > cut}

    def fade(self, by: float) -> None:
        self.total *= by
        self._counts = {value: count * by for value, count in self._counts.items()}

    def top(self, number: int) -> list[tuple[Hashable, float]]:
        """From any thread: a copy is made in one step."""
        return heapq.nlargest(number, self._counts.copy().items(), key=lambda entry: entry[1])


class KeySampler:
    """What an operator with keyed inputs notes. It never calls user code, and never fails a job."""

    def __init__(self, key_type: KeyType, clock: Callable[[], float], seed: int) -> None:
        self._key_type = key_type
        self._clock = clock
        self._random = random.Random(seed)
        self._found = HeavyHitters(CAPACITY)
        self._unseen = 0  #: records since the last look
        self._looked_at = 0
        self._due = 0.0
        self._fade_at = clock() + FADE_EVERY_S

    def note(self, keys: Sequence[Any]) -> None:
        """The keys of a slice, normalised."""
        if self._is_due(len(keys)):
            self._look(len(keys), lambda places: [keys[place] for place in places])

    def note_column(self, keys: pa.Array | pa.ChunkedArray) -> None:
        """The keys of a slice, as a batch function gets them."""
        if self._is_due(len(keys)):
            self._look(len(keys), lambda places: normalised_keys(self._key_type, keys.take(pa.array(places))))

    def _is_due(self, records: int) -> bool:
        self._unseen += records
        return records > 0 and self._unseen >= ONE_IN and self._clock() >= self._due

    def _look(self, records: int, keys_at: Callable[[list[int]], list[Any]]) -> None:
        now = self._clock()
        self._due = now + PAUSE_S
        if now >= self._fade_at:
            self._fade_at = now + FADE_EVERY_S
            self._found.fade(FADE)
        looks = min(MAX_LOOKS, self._unseen // ONE_IN, records)
        weight = self._unseen / looks
        self._unseen = 0
        try:
            for key in keys_at([self._random.randrange(records) for _ in range(looks)]):
                self._found.add(key, weight)
        except Exception:  # what is wrong with a key, its operator says; here nothing is lost but a look
            log.debug("the hottest keys were not sampled", exc_info=True)
            return
        self._looked_at += looks

    def hottest(self) -> HotKeys:
        """From any thread."""
        top = self._found.top(TOLD) if self._looked_at >= ENOUGH else []
        keys = [HotKey(shown(self._key_type.denormalise(key)), int(count)) for key, count in top if count >= 1.0]
        return HotKeys(int(self._found.total), keys)


def shown(key: Any) -> str:
    """A key as text: short, on one line, and without walking through megabytes. Whatever the key is."""
    if isinstance(key, str | bytes):
        key = key[: KEY_LENGTH + 1]
    try:
        text = key if isinstance(key, str) and key.isprintable() else repr(key)
    except ValueError:  # Python writes no int of more than 4,300 digits
        text = f"{type(key).__name__}, too long to be written"
    return text if len(text) <= KEY_LENGTH else text[: KEY_LENGTH - 1] + "…"
