"""Operations that are written as Arrow expressions and work on whole columns: filter, select, with_columns. Driver only.


    dear = sales.filter(pc.field("price") > 100).with_columns(total=pc.field("price") * pc.field("pieces"))

What comes out is worked out from the stream's type when the job is built, so a wrong name or type is refused at its line. The
names are those of a dataclass or schema, `f0`, `f1`, ... of a tuple, and `value` where a record is one value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.building import Asked
from tidegate.api.expressions import is_expression, refused, tried
from tidegate.api.transformable import Transformable
from tidegate.errors import TypeDeclarationError
from tidegate.graph import specs
from tidegate.types import RecordType, record_type

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from tidegate.api.streams import DataStream


class ColumnOperations(Transformable):
    """What a typed stream can be asked for by its columns."""

    def select(
        self, *columns: str | int, returns: Any = None, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, **computed: pc.Expression,
    ) -> DataStream[Any]:  # fmt: skip
        """These columns, and new ones that are computed of the old. Records are dicts, or what `returns` says.

        >>> import pyarrow.compute as pc
        >>> sales = env.from_collection([("tea", 3), ("rope", 9)], type=tuple[str, int])
        >>> list(sales.select("f0", double=pc.field("f1") * 2).execute_and_collect())
        [{'f0': 'tea', 'double': 6}, {'f0': 'rope', 'double': 18}]
        """
        names = [self._column_named(column, "select") for column in columns]
        twice = [column for column in names if column in computed or names.count(column) > 1]
        if twice or not (names or computed):
            wrong = f"has two columns {twice[0]!r}" if twice else "needs at least one column"
            raise refused("select", f"it {wrong}")
        import pyarrow.compute as pc

        given = {column: pc.field(column) for column in names} | computed
        return self._projected("select", given, returns, Asked(uid, name, parallelism))

    def with_columns(
        self, *, returns: Any = None, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, **computed: pc.Expression,
    ) -> DataStream[Any]:  # fmt: skip
        """All columns, and new ones, or old ones computed anew. Records are dicts, or what `returns` says.

        >>> import pyarrow.compute as pc
        >>> sales = env.from_collection([("tea", 3)], type=tuple[str, int])
        >>> list(sales.with_columns(total=pc.field("f1") + 1, returns=tuple[str, int, int]).execute_and_collect())
        [('tea', 3, 4)]
        """
        if not computed:
            raise refused(
                "with_columns", "it needs at least one column, as in with_columns(total=pc.field('price') * 2)"
            )
        import pyarrow.compute as pc

        given = {column: pc.field(column) for column in self._typed("with_columns").field_names} | computed
        return self._projected("with_columns", given, returns, Asked(uid, name, parallelism))

    def _projected(self, operation: str, columns: dict[str, Any], returns: Any, asked: Asked) -> DataStream[Any]:
        records = self._typed(operation)
        for column, expression in columns.items():
            if not is_expression(expression):
                raise refused(
                    operation,
                    f"{column}= is {expression!r}, and must be an Arrow expression: pc.field('price') * 2, or pc.scalar(1)",
                )
        made = tried(operation, records, list(columns), list(columns.values()))
        out = record_type(made.schema if returns is None else returns)
        if returns is not None:
            try:
                named = _with_names_of(out, made)
                out.conformed(named)
                out.to_rows(named)  # a text column can be cast to ints, until a text comes that is none
            except TypeDeclarationError as error:
                raise refused(operation, f"returns= does not fit: {error.message}") from None
        names = tuple(columns) if returns is None else tuple(_with_names_of(out, made).schema.names)
        spec = specs.ProjectSpec(names, tuple(columns.values()))
        return self._apply(spec, f"{operation} {', '.join(columns)}", out, asked)

    def _typed(self, operation: str) -> RecordType:
        records = self._upstream._type
        if not records.typed:
            raise refused(
                operation, "it works on columns, but this stream is untyped: declare its type with returns= before"
            )
        return records

    def _column_named(self, column: str | int, operation: str) -> str:
        names = self._typed(operation).field_names
        if isinstance(column, int) and not isinstance(column, bool) and 0 <= column < len(names):
            return names[column]
        if column in names:
            return str(column)
        if is_expression(column):
            raise refused(operation, "an expression needs a name: select(total=pc.field('price') * 2)")
        raise refused(operation, f"the stream has no column {column!r}; it has {', '.join(names)}")


def _with_names_of(out: RecordType, made: pa.RecordBatch) -> pa.RecordBatch:
    """A tuple's columns are called by their places."""
    if len(out.field_names) != made.num_columns:
        has = ", ".join(made.schema.names)
        raise TypeDeclarationError(f"{out.name} has {len(out.field_names)} fields, and there are the columns {has}")
    by_place = all(field == f"f{at}" for at, field in enumerate(out.field_names)) or out.field_names == ["value"]
    return made.rename_columns(out.field_names) if by_place else made
