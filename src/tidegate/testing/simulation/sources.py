"""The sources of a simulated run: a few records a poll, so that checkpoints come between them, and an end."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tidegate.connectors.contract import JsonValue, Polled, ReaderContext, Source, SourceReader, Split
from tidegate.connectors.files_source import Files
from tidegate.connectors.generator import DataGenerator
from tidegate.connectors.row_reader import OneByOneReader
from tidegate.errors import ConfigurationError
from tidegate.functions.checkpointed import CheckpointedFunction
from tidegate.ids import CheckpointId
from tidegate.testing.simulation.outside import outside_named

RECORDS = 100  #: of an input without an end, where nothing else is said
POLLS_BEFORE_MORE = 100  #: of one reader; then twice as many records
_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".txt": "text"}
#: Sources of ours that ask a service, which a simulation has not got.
_OF_SERVICES = ("KafkaSource", "DatabaseTable", "SocketText", "DataFrameSource")


def needs_input(source: Source) -> str:
    """Why its records must be given; "" where it can be read as it is."""
    kind = type(source).__name__
    if kind in _OF_SERVICES:
        return f"simulate has no model of {kind}"
    if not source.replayable:
        return f"{kind} cannot be replayed, so no two runs read the same"
    return ""


def given_input(source: Source, path: str) -> Source:
    """The records of a file in place of the source's own. :raises ConfigurationError: for a file of no known format."""
    ending = path[path.rfind(".") :].lower() if "." in path else ""
    if ending not in _FORMATS:
        raise ConfigurationError(f"{path}: the name of a file of records ends in {', '.join(_FORMATS)}.")
    return Files(path, _FORMATS[ending], type=None if ending == ".txt" else source.record_type)


class SlowSource(Source):
    """Reads what `inner` reads, `few` records a poll at the beginning; with a limit so many records of it."""

    def __init__(self, inner: Source, few: int, limit: int | None, outside: str) -> None:
        if isinstance(inner, DataGenerator):
            inner.rate = None  # nobody waits
        self.inner = inner
        self.few = few
        self.outside = outside
        self.limit = limit
        self.replayable = inner.replayable
        self.record_type = inner.record_type
        self.makes_new_records = inner.makes_new_records

    def __repr__(self) -> str:
        return repr(self.inner)

    def discover_splits(self, parallelism: int) -> list[Split]:
        splits = self.inner.discover_splits(parallelism)
        if self.limit is None:
            return splits
        shares = [self.limit // len(splits) + (place < self.limit % len(splits)) for place in range(len(splits))]
        return [
            Split(split.id, {"at": split.position, "left": share}, finished=not share)
            for split, share in zip(splits, shares, strict=True)
        ]

    def owner(self, split_id: str, parallelism: int) -> int | None:
        return self.inner.owner(split_id, parallelism)

    def reader(self, context: ReaderContext) -> SourceReader:
        asked = itertools.count()

        def wanted() -> int:  # long inputs come to their end
            return max(1, min(self.few << next(asked) // POLLS_BEFORE_MORE, context.wanted()))

        slow = replace(context, wanted=wanted)
        reader = self.inner.reader(slow) if self.limit is None else _EndingReader(self.inner, slow)
        outside_named(self.outside).held.append(reader)
        return reader


@dataclass(slots=True)
class _Part:
    reader: SourceReader  #: of this split alone, so that its records can be counted
    left: int


class _EndingReader(SourceReader):
    """Each split ends after so many records. What the last poll has given beyond them is dropped: nobody comes back to it."""

    def __init__(self, source: Source, context: ReaderContext) -> None:
        self._source = source
        self._context = context
        self._parts: dict[str, _Part] = {}
        self._turn = 0

    def add_splits(self, splits: Sequence[Split]) -> None:
        for split in splits:
            position = cast(dict[str, JsonValue], split.position)
            part = _Part(self._source.reader(self._context), cast(int, position["left"]))
            if isinstance(part.reader, CheckpointedFunction):
                raise ConfigurationError(
                    f"{type(self._source).__name__} has no end, and its reader keeps operator state: simulate reads each split "
                    "by a reader of its own, and cannot part that. Give the records as a file with --input."
                )
            part.reader.add_splits([Split(split.id, position["at"])])
            self._parts[split.id] = part

    def poll(self, deadline: float) -> Any:
        unread = [part for part in self._parts.values() if part.left]
        if not unread:
            return None
        self._turn += 1
        part = unread[self._turn % len(unread)]
        if isinstance(part.reader, OneByOneReader):  # in another order records would be late that never are
            part = unread[0]
        polled = part.reader.poll(deadline)
        if polled is None:
            if all(split.finished for split in part.reader.splits()):
                part.left = 0
            return None
        records = polled.records if isinstance(polled, Polled) else polled
        kept = records[: part.left] if isinstance(records, list) else records.slice(0, part.left)
        part.left -= len(kept)
        if not isinstance(polled, Polled):
            return kept
        origins = None if polled.origins is None else polled.origins[: len(kept)]
        return replace(polled, records=kept, origins=origins)

    def splits(self) -> list[Split]:
        return [self._split(id, part, part.reader.splits()) for id, part in self._parts.items()]

    def snapshot(self, checkpoint: CheckpointId) -> list[Split]:
        return [self._split(id, part, part.reader.snapshot(checkpoint)) for id, part in self._parts.items()]

    def _split(self, id: str, part: _Part, of_inner: list[Split]) -> Split:
        (inner,) = of_inner
        return Split(id, {"at": inner.position, "left": part.left}, inner.finished or not part.left)

    def notify_complete(self, checkpoint: CheckpointId) -> None:
        for part in self._parts.values():
            part.reader.notify_complete(checkpoint)

    def metrics(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        for part in self._parts.values():
            part.reader.close()
