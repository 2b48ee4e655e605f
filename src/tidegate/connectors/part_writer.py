"""Parts of a file sink or a table: which record goes to which open file, and when a file is closed. Executor.

A part ends when it has grown to `max_bytes`, when it is older than `max_age_s`, and at every checkpoint. With partitions each
combination of their values has a folder `name=value/...` and parts of its own; of these at most `max_open` are open at once:
the one that has waited longest for a record is closed for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.batch import Batch
from tidegate.connectors.formats.contract import PartEncoder
from tidegate.connectors.formats.known import format_named
from tidegate.connectors.partition_names import Partition, check_partition_type, partition_folder
from tidegate.connectors.staged_file import StagedFile
from tidegate.errors import ConfigurationError
from tidegate.types import RecordType, record_type

MAX_OPEN = 64


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A closed file that nobody sees yet."""

    path: str
    size_bytes: int
    rows: int
    checksum: str
    partition: Partition = ()

    @property
    def folder(self) -> str:
        return partition_folder(self.partition)


@dataclass(slots=True)
class _OpenPart:
    file: StagedFile
    encoder: PartEncoder
    opened_at: float
    rows: int = 0


class PartWriter:
    """Turns batches into staged files. `open_file` makes each, under a name of its own."""

    def __init__(
        self,
        type: RecordType,
        format: str,
        open_file: Callable[[], StagedFile],
        clock: Callable[[], float],
        max_bytes: int,
        max_age_s: float | None = None,
        partition_by: Sequence[str] = (),
        max_open: int = MAX_OPEN,
        check_partition: Callable[[Partition], None] = lambda partition: None,
    ) -> None:
        self._encoder = format_named(format).encoder
        self._open_file = open_file
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._partition_by = list(partition_by)
        self._max_open = max_open
        self._check_partition = check_partition
        self._open: dict[Partition, _OpenPart] = {}  #: the one that was written to last comes last
        self._staged: list[StagedPart] = []  #: closed since the last `take`
        if missing := [name for name in self._partition_by if name not in type.field_names]:
            raise ConfigurationError(
                f"partition_by names {', '.join(map(repr, missing))}, but the stream has the fields "
                f"{', '.join(type.field_names) or '(none: it has no type)'}."
            )
        for name in self._partition_by:
            assert type.schema is not None  # it has the field
            check_partition_type(name, type.schema.field(name).type)
        # As in Hive and Spark: in Parquet a partition's value stands in the folder's name alone. Lines keep all fields.
        self._drops = bool(self._partition_by) and format == "parquet"
        self._written = _without(type, self._partition_by) if self._drops else type

    @property
    def written_type(self) -> RecordType:
        """Of the records in the files."""
        return self._written

    def write(self, batch: Batch) -> None:
        if len(batch) == 0:
            return
        self._close_old()
        for partition, records in self._divided(batch):
            part = self._open.pop(partition, None) or self._new_part(partition)
            self._open[partition] = part
            part.encoder.write(records)
            part.rows += len(records)
            if part.encoder.size_bytes() >= self._max_bytes:
                self._close(partition)

    def _new_part(self, partition: Partition) -> _OpenPart:
        self._check_partition(partition)
        if len(self._open) >= self._max_open:
            self._close(next(iter(self._open)))
        file = self._open_file()
        return _OpenPart(file, self._encoder(file, self._written), self._clock())

    def _close_old(self) -> None:
        if self._max_age_s is not None:
            limit = self._clock() - self._max_age_s
            for partition in [partition for partition, part in self._open.items() if part.opened_at <= limit]:
                self._close(partition)

    def _close(self, partition: Partition) -> None:
        part = self._open.pop(partition)
        part.encoder.finish()
        part.file.sync()
        part.file.close()
        self._staged.append(
            StagedPart(part.file.path, part.file.size_bytes, part.rows, part.file.checksum(), partition)
        )

    def take(self) -> list[StagedPart]:
        """Close everything; all parts since the last time."""
        for partition in list(self._open):
            self._close(partition)
        staged, self._staged = self._staged, []
        return staged

    def flush(self) -> None:
        for part in self._open.values():
            part.file.flush()

    def abandon(self) -> None:
        for part in self._open.values():
            part.encoder.abandon()
            part.file.close()
        self._open.clear()

    # -- partitions -----------------------------------------------------------------------------------------------

    def _divided(self, batch: Batch) -> Iterator[tuple[Partition, Batch]]:
        if not self._partition_by:
            yield (), batch
            return
        columns = batch.columns()
        values = list(zip(*[columns.column(name).to_pylist() for name in self._partition_by], strict=True))
        places: dict[tuple[Any, ...], list[int]] = {}
        for place, value in enumerate(values):
            places.setdefault(value, []).append(place)
        if self._drops:
            columns = columns.drop_columns(self._partition_by)
        groups: dict[Partition, list[int]] = {}
        for value, taken in places.items():  # no NaN is equal to another, but all have one folder
            partition = tuple(zip(self._partition_by, map(_text, value), strict=True))
            groups.setdefault(partition, []).extend(taken)
        for partition, taken in groups.items():
            rows = columns if len(groups) == 1 else columns.take(pa.array(taken))
            yield partition, Batch(self._written, columns=rows)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _without(type: RecordType, names: Sequence[str]) -> RecordType:
    assert type.schema is not None
    left = [field for field in type.schema if field.name not in names]
    if not left:
        raise ConfigurationError("partition_by names every field of the stream: nothing is left for the files.")
    return record_type(pa.schema(left))
