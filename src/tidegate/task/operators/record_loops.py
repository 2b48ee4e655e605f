"""Runs a function's `process_element` as a loop over a batch, where it could be written into one (graph/record_loop.py).

Executor; the task's thread, per-record path. What comes out, in what order and with which timestamps, is what calling the
function record by record gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.batch import Batch, TupleBatch
from tidegate.errors import ContractError
from tidegate.graph.record_loop import RecordLoop, Ways, record_loop
from tidegate.task.operators.first_rows import holds_tag
from tidegate.task.operators.returned import MANY, check_many

if TYPE_CHECKING:
    from tidegate.graph.function_text import FunctionText
    from tidegate.graph.key_selector import KeySelector
    from tidegate.state.direct import DirectAccess
    from tidegate.task.operators.process import KeyedProcessOperator

Places = list[int]


class RecordLoops:
    """Those of one operator: one for each way in which batches come, made when the first of them does."""

    def __init__(
        self,
        operator: KeyedProcessOperator,
        function: Any,
        text: FunctionText,
        key: KeySelector,
        access: DirectAccess,
    ) -> None:
        self._operator = operator
        self._function = function
        self._text = text
        self._key = key
        self._access = access
        self._loops: dict[Ways, RecordLoop | str] = {}
        self._values = sorted(access.values.items())

    def keys_of(self, batch: Batch) -> list[Any]:
        """Without making records, where the key is made of columns that are at hand."""
        fields = self._key.fields
        if fields is None or not batch.has_columns or batch.has_rows:
            return list(map(self._key.row_key(), batch.rows()))
        columns = [batch.column_values(batch.type.field_names.index(name)) for name in fields]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def run(self, batch: Batch, keys: list[Any], normalised: list[Any], timers: Any) -> Emitted | None:
        """None: this batch is not for a loop. What is emitted is owned by nobody else: copies have been made."""
        operator, own = self._operator, vars(self._function)  # the user may have put something else in a state's place
        ways = Ways(
            by_field=batch.has_columns and not batch.has_rows,
            stamped=batch.timestamps is not None,
            in_columns=operator.copy is None,
            timed=timers is not None,
            states=tuple((name, value.kind) for name, value in self._values if own.get(name) is value.handle),
        )
        loop = self._loops.get(ways)
        if loop is None:
            made = record_loop(self._function, self._text, batch.type, operator.output_type, ways)
            loop = self._loops[ways] = made
        if isinstance(loop, str):
            return None
        emitted = Emitted(operator, loop.columns, batch)
        arguments = self._arguments(emitted, timers)
        rows = self._rows(loop, batch, keys, normalised)
        if rows is None:
            return None
        try:
            loop.run(self._function, operator._context, rows, *map(arguments.__getitem__, loop.parameters))
        except ContractError as error:
            if error is not emitted.refused:
                raise
            raise error.with_traceback(None) from None  # of what is returned the function is told, not the line
        except StopIteration as error:
            if not loop.is_generator:
                raise
            raise RuntimeError("generator raised StopIteration") from error  # as Python says of a generator
        return emitted

    def _rows(self, loop: RecordLoop, batch: Batch, keys: list[Any], normalised: list[Any]) -> Iterable[Any] | None:
        parts: list[list[Any]] = [normalised, self._access.chunks_of(normalised), keys]
        if batch.timestamps is not None:
            parts += [list(range(len(keys))), batch.timestamps.tolist()]
        if loop.fields is None:
            return zip(*parts, batch.rows(), strict=True)
        columns, types = batch.columns(), batch.type.field_types
        for at, column in enumerate(columns.columns):
            if column.null_count and not types[at].nullable:
                return None  # making records says which, also of a field that the function does not read
        return zip(*parts, *map(batch.column_values, loop.fields), strict=True)

    def _arguments(self, emitted: Emitted, timers: Any) -> dict[str, Any]:
        found: dict[str, Any] = {
            "_tg_current": self._access.current,
            "_tg_extend": emitted.extend,
            "_tg_returned": emitted.returned,
            "_tg_append": emitted.append,
            "_tg_put": emitted.places.append,
            "_tg_type": type,
            "_tg_int": int,
            "_tg_str": str,
            "_tg_timers": timers,
            **{f"_tg_append_{at}": values.append for at, values in enumerate(emitted.lists)},
        }
        for name, value in self._access.values.items():
            for what in ("chunks", "owned", "own", "default", "fit", "exact"):
                found[f"_tg_{what}_{name}"] = getattr(value, what)
        return found


class Emitted:
    """What a loop has emitted for one batch, with the places of the records that it stems from, where these have times."""

    def __init__(self, operator: KeyedProcessOperator, columns: int | None, batch: Batch) -> None:
        self._operator = operator
        self._batch = batch
        self.lists: list[list[Any]] = [[] for _ in range(columns or 0)]  #: the values of each field
        self.rows: list[Any] = []  #: or records
        self.places: Places = []
        self.refused: ContractError | None = None  #: what the function returned was no records
        copy = operator.copy
        self.append: Callable[[Any], None] = self.rows.append if copy is None else self._append_copy

    def _append_copy(self, row: Any) -> None:
        self.rows.append(self._operator.copy(row))  # type: ignore[misc]

    def extend(self, many: Iterable[Any], place: int | None = None) -> None:
        copy = self._operator.copy
        self.rows.extend(many if copy is None else map(copy, many))
        if place is not None:
            self.places.extend(repeat(place, len(self.rows) - len(self.places)))

    def returned(self, result: Any, place: int | None = None) -> None:
        if result is not None:
            if type(result) not in MANY:
                try:
                    check_many(result, self._operator, self._operator._named("process_element"))
                except ContractError as error:
                    self.refused = error
                    raise
            self.extend(result, place)

    @property
    def may_hold_tags(self) -> bool:
        """A pair whose first part is a tag is a record of a side output."""
        return not self.lists or (len(self.lists) == 2 and holds_tag(self.lists[0]))

    def take_rows(self) -> list[Any]:
        rows = list(zip(*self.lists, strict=True)) if self.lists else self.rows
        self.lists = []
        self.rows = rows
        return rows

    def batch(self) -> Batch | None:
        """None: nothing was emitted."""
        stamps = self._batch.timestamps
        picked = None if stamps is None else stamps[np.array(self.places, np.int64)]
        if self.lists:
            return TupleBatch(self._operator.output_type, self.lists, picked) if self.lists[0] else None
        return Batch(self._operator.output_type, self.rows, timestamps=picked) if self.rows else None
