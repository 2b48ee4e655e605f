"""What a function returned where many records are expected. Executor; the task's thread, per-record path.

    result = function(row)
    if result is not None:
        if type(result) not in MANY:
            check_many(...)

Almost every function returns a list or is a generator; only what is neither is looked at.
"""

from __future__ import annotations

import reprlib
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.errors import ContractError
from tidegate.task.operators.first_rows import function_line
from tidegate.types.records import TupleRecords

if TYPE_CHECKING:
    from tidegate.task.operators.base import RunningOperator
    from tidegate.types import RecordType

MANY: frozenset[type] = frozenset({list, GeneratorType})
#: They can be iterated over, and nobody means it: a str would fall into letters, a dict into its keys.
_ONE = (str, bytes, bytearray, memoryview, dict, pa.RecordBatch, pa.Table)


def check_many(result: Any, operator: RunningOperator, function: str) -> None:
    """:raises ContractError: for one record where many are expected. `function` is what the user calls it."""
    assert operator.output_type is not None
    if isinstance(result, tuple):
        if result and _is_one_record(result, operator.output_type):
            raise ContractError(
                f"{function} returned the tuple {reprlib.repr(result)}, which is one record, where many are expected: it would "
                "be taken apart. Write `yield` instead of `return`, or return a list of records. To emit its parts one by one, "
                "return them as a list.",
                user_line=function_line(operator),
            )
        return
    if isinstance(result, _ONE) or not _is_iterable(result):
        raise ContractError(
            f"{function} returned {reprlib.repr(result)} (type {type(result).__name__}); it must return None, a list or a "
            "generator of records (write `yield value` or `return [value]`)",
            user_line=function_line(operator),
        )


def _is_one_record(result: tuple[Any, ...], record_type: RecordType) -> bool:
    """A tuple is the most common record there is; that it holds several is believed only where the type says so."""
    if hasattr(result, "_fields") or not record_type.typed or record_type.pickles:
        return True
    if not isinstance(record_type, TupleRecords):
        return False
    try:
        record_type.check(result)
    except Exception:
        return not all(type(part) is tuple for part in result)
    return True


def _is_iterable(result: Any) -> bool:
    try:
        iter(result)
    except TypeError:
        return False
    return True
