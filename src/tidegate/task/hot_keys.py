"""The hottest keys of one subtask of a keyed operator: a bounded sketch over a few sampled records. Executor.

The task's thread samples, after a slice was processed; the heartbeat's thread reads. At most MOST records each PAUSE_S are
looked at, and at most one in ONE_IN, so that it costs a small part of what the key function costs anyway.

Of the sample, the counts are lower bounds (Misra and Gries): when there are more than twice CAPACITY, the CAPACITY largest
are kept and the largest that goes is taken from each. A key with more than one in CAPACITY of the records is never lost.
Older records fade.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pyarrow as pa

from tidegate.batch import Batch
from tidegate.state.key_selector import KeySelector
from tidegate.wire.control import HotKey, HotKeys

PAUSE_S = 0.1
MOST = 16
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
    """What an operator with keyed inputs notes."""

    def __init__(self, keys: Sequence[KeySelector], clock: Callable[[], float], seed: int) -> None:
        self._inputs = [(key.row_key(), key.key_type().normalise) for key in keys]
        self._denormalise = keys[0].key_type().denormalise
        self._clock = clock
        self._random = random.Random(seed)
        self._found = HeavyHitters(CAPACITY)
        self._unseen = 0  #: records since the last look
        self._looked_at = 0
        self._due = 0.0
        self._fade_at = clock() + FADE_EVERY_S

    def note(self, batch: Batch, input_index: int) -> None:
        """A slice was processed."""
        if input_index >= len(self._inputs):
            return  # a broadcast input has no keys
        self._unseen += len(batch)
        if self._unseen < ONE_IN or not len(batch):
            return
        now = self._clock()
        if now >= self._due:
            self._look(batch, input_index, now)

    def _look(self, batch: Batch, input_index: int, now: float) -> None:
        self._due = now + PAUSE_S
        if now >= self._fade_at:
            self._fade_at = now + FADE_EVERY_S
            self._found.fade(FADE)
        row_key, normalise = self._inputs[input_index]
        looks = min(MOST, self._unseen // ONE_IN, len(batch))
        weight = self._unseen / looks
        for row in _rows_at(batch, [self._random.randrange(len(batch)) for _ in range(looks)]):
            self._found.add(normalise(row_key(row)), weight)
        self._unseen = 0
        self._looked_at += looks

    def hottest(self) -> HotKeys:
        """From any thread."""
        top = self._found.top(TOLD) if self._looked_at >= ENOUGH else []
        keys = [HotKey(shown(self._denormalise(key)), int(count)) for key, count in top if count >= 1.0]
        return HotKeys(int(self._found.total), keys)


def _rows_at(batch: Batch, places: list[int]) -> list[Any]:
    if batch.has_rows:
        rows = batch.rows()
        return [rows[place] for place in places]
    return Batch(batch.type, columns=batch.columns().take(pa.array(places))).rows()


def shown(key: Any) -> str:
    """A key as text: short, on one line, and without walking through megabytes."""
    if isinstance(key, str | bytes):
        key = key[: KEY_LENGTH + 1]
    text = key if isinstance(key, str) and key.isprintable() else repr(key)
    return text if len(text) <= KEY_LENGTH else text[: KEY_LENGTH - 1] + "…"
