"""How the records of a stream travel as columns. Pure; both sides.

| stream of      | columns                        | a row is                    |
| ---            | ---                            | ---                         |
| a dataclass    | one a field, by its name       | an instance                 |
| tuple[...]     | f0, f1, ...                    | a tuple                     |
| a pa.Schema    | as the schema says             | a dict; a missing nullable field is None |
| another type   | value                          | the value                   |
| untyped        | none: travels as encoded rows  | any object                  |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from itertools import chain
from typing import Any

import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.types.annotations import data_type
from tidegate.types.arrow_types import ArrowType
from tidegate.types.base import DataType, decode_inside, encode_inside, misfit
from tidegate.types.containers import DataclassType, TupleType
from tidegate.types.copying import Copier, copy_record, dataclass_copier, dict_copier
from tidegate.types.dictionaries import plain_schema, plain_type, with_type
from tidegate.types.pickled import Pickled

ROWS_CHECKED_AT_ONCE = 100


class RecordType(ABC):
    """The type of a stream's records. Picklable, compared by `equals`."""

    typed: bool = True
    name: str
    schema: pa.Schema | None
    field_names: list[str]
    field_types: list[DataType]
    annotation: Any  #: `record_type(annotation)` gives this type again

    @abstractmethod
    def to_batch(self, rows: list[Any]) -> pa.RecordBatch:
        """:raises TypeDeclarationError: naming the first value that does not fit."""

    @abstractmethod
    def to_rows(self, batch: pa.RecordBatch) -> list[Any]:
        """:raises TypeDeclarationError: when the batch has other columns."""

    def column_values(self, batch: pa.RecordBatch, at: int) -> list[Any]:
        """What `to_rows` puts into one field of the rows.

        :raises TypeDeclarationError: when the column holds something else.
        """
        return decode_inside(self.part_named(at), self.field_types[at], self._columns(batch)[at])

    def part_named(self, at: int) -> str:
        """What a message calls a column."""
        return f"field {self.field_names[at]!r} of {self.name}"

    def batch_of_values(self, lists: list[list[Any]]) -> pa.RecordBatch:
        """Of the values of each field.

        :raises TypeDeclarationError: naming the first value that does not fit.
        """
        return self._made(
            [
                encode_inside(self.part_named(at), type, values)
                for at, (type, values) in enumerate(zip(self.field_types, lists, strict=True))
            ]
        )

    def check(self, row: Any) -> None:
        """:raises TypeDeclarationError: when the row does not fit. What only pickling could tell is not looked at."""
        if not self.pickles:
            self.to_batch([row])

    def check_rows(self, rows: list[Any]) -> None:
        """`check`, for each of them."""
        for row in rows:
            self.check(row)

    @property
    def pickles(self) -> bool:
        """Reading rows runs pickle."""
        return any(field.pickles for field in self.field_types)

    def come_back(self, fields: Collection[str] | None = None) -> bool:
        """Whether a record that was sent is the very record to whoever reads these fields; None: anything of it."""
        named = zip(self.field_names, self.field_types, strict=True)
        return all(type.comes_back for name, type in named if fields is None or name in fields)

    def copier(self) -> Copier | None:
        """What gives a record that changes to another holder's do not reach; None where nobody can change a record."""
        return None if all(field.immutable for field in self.field_types) else copy_record

    @abstractmethod
    def settled(self, row: Any) -> Any:
        """A copy of a record as it is when it is read again; of one that does not fit, that record."""

    def conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch that somebody made, as the columns of this type: in its order, without dictionaries, in its widths.

        :raises TypeDeclarationError: when it holds something else.
        """
        schema = self.schema
        if schema is None or batch.schema.equals(schema):
            return batch
        columns = [
            with_type(column, plain_type(column.type)) for column in (batch.column(n) for n in self._named_in(batch))
        ]
        plain = pa.RecordBatch.from_arrays(columns, self.field_names)
        try:
            return plain if plain.schema.equals(schema) else plain.cast(schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            has = ", ".join(f"{field.name}: {field.type}" for field in batch.schema)
            raise TypeDeclarationError(
                f"a batch has the columns {has}, and its stream is declared as {self.name}: {error}. "
                "Declare what the columns are, or cast them before.",
                declared=self.name,
            ) from error

    def _made(self, columns: list[pa.Array]) -> pa.RecordBatch:
        assert self.schema is not None
        plain = [with_type(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(plain, schema=self.schema)

    def equals(self, other: object) -> bool:
        return type(self) is type(other) and self.name == other.name and self.schema == other.schema

    def __eq__(self, other: object) -> bool:
        return self.equals(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<RecordType {self.name}>"

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return (
            batch.columns if batch.schema.names == self.field_names else list(map(batch.column, self._named_in(batch)))
        )

    def _named_in(self, batch: pa.RecordBatch) -> list[str]:
        """The names of the columns, each of which the batch has once."""
        names = batch.schema.names
        missing = [name for name in self.field_names if names.count(name) != 1]
        if missing:
            raise TypeDeclarationError(
                f"a batch of {self.name} must have the columns {self.field_names}, each once; it has {names}.",
                declared=self.name,
            )
        return self.field_names


class ScalarRecords(RecordType):
    def __init__(self, type: DataType) -> None:
        self._type = type
        self.name = type.name
        self.schema = plain_schema(pa.schema([("value", type.arrow)]))
        self.field_names = ["value"]
        self.field_types = [type]
        self.annotation = type.annotation

    def to_batch(self, rows: list[Any]) -> pa.RecordBatch:
        return self._made([self._type.to_arrow(rows)])

    def to_rows(self, batch: pa.RecordBatch) -> list[Any]:
        return self._type.from_arrow(self._columns(batch)[0])

    def settled(self, row: Any) -> Any:
        return self._type.settled(row)

    def check(self, row: Any) -> None:
        self._type.check(row)


class TupleRecords(RecordType):
    def __init__(self, type: TupleType) -> None:
        self._type = type
        self.name = type.name
        self.schema = plain_schema(pa.schema(list(type.arrow)))
        self.field_names = self.schema.names
        self.field_types = type.parts
        self.annotation = type.annotation

    def to_batch(self, rows: list[Any]) -> pa.RecordBatch:
        return self._made(self._type.columns_of(rows))

    def to_rows(self, batch: pa.RecordBatch) -> list[Any]:
        return self._type.values_of(self._columns(batch))

    def settled(self, row: Any) -> Any:
        return self._type.settled(row)

    def check(self, row: Any) -> None:
        self._type.check(row)

    def part_named(self, at: int) -> str:
        return f"part {at} of {self.name}"


class DataclassRecords(RecordType):
    def __init__(self, type: DataclassType) -> None:
        self._type = type
        self.name = type.name
        self.schema = plain_schema(pa.schema(list(type.arrow)))
        self.field_names = list(type.fields)
        self.field_types = list(type.fields.values())
        self.annotation = type.annotation

    def to_batch(self, rows: list[Any]) -> pa.RecordBatch:
        return self._made(self._type.columns_of(rows))

    def to_rows(self, batch: pa.RecordBatch) -> list[Any]:
        return self._type.values_of(dict(zip(self.field_names, self._columns(batch), strict=True)), batch.num_rows)

    def settled(self, row: Any) -> Any:
        return self._type.settled(row)

    def check(self, row: Any) -> None:
        self._type.check(row)

    def part_named(self, at: int) -> str:
        return f"field {self.field_names[at]!r} of {self._type.cls.__name__}"

    def copier(self) -> Copier | None:
        if self._type.immutable:
            return None
        fields = self._type.fields.items()
        return dataclass_copier(self._type.cls, tuple((name, type.immutable) for name, type in fields))


class SchemaRecords(RecordType):
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema = plain_schema(schema)
        self.field_names = schema.names
        self.field_types = [ArrowType(field.type) for field in schema]
        self.name = f"schema{{{', '.join(f'{field.name}:{field.type}' for field in schema)}}}"
        self.annotation = schema
        if not self.field_names or len(set(self.field_names)) != len(self.field_names):
            raise TypeDeclarationError(f"{self.name} needs at least one field, and each name once.", declared=self.name)

    def to_batch(self, rows: list[Any]) -> pa.RecordBatch:
        if not set(map(type, rows)) <= {dict}:
            raise misfit(next(row for row in rows if type(row) is not dict), self.name, "Its rows are dicts.")
        unknown = set(chain.from_iterable(rows)).difference(self.field_names)
        if unknown:
            odd = next(row for row in rows if not unknown.isdisjoint(row))
            raise misfit(odd, self.name, f"The schema has no field {', '.join(map(repr, unknown))}.")
        columns = []
        schema: pa.Schema = self.schema
        for field, field_type in zip(schema, self.field_types, strict=True):
            name = field.name
            column = encode_inside(f"field {name!r}", field_type, [row.get(name) for row in rows])
            if column.null_count and not field.nullable:
                odd = next(row for row in rows if row.get(name) is None)
                raise misfit(odd, self.name, f"Field {name!r} is not nullable.")
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def to_rows(self, batch: pa.RecordBatch) -> list[Any]:
        names = self.field_names
        columns = [
            decode_inside(f"field {name!r}", field_type, column)
            for name, field_type, column in zip(names, self.field_types, self._columns(batch), strict=True)
        ]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def settled(self, row: Any) -> Any:
        if type(row) is not dict or not row.keys() <= set(self.field_names):
            return row
        return {name: of.settled(row.get(name)) for name, of in zip(self.field_names, self.field_types, strict=True)}

    def come_back(self, fields: Collection[str] | None = None) -> bool:
        """A dict that lacks a field has it, as None, when it was sent."""
        schema: pa.Schema = self.schema
        lacks = any(field.nullable for field in schema if fields is None or field.name in fields)
        return not lacks and super().come_back(fields)

    def part_named(self, at: int) -> str:
        return f"field {self.field_names[at]!r}"

    def check_rows(self, rows: list[Any]) -> None:
        """Column by column, which is far quicker; and a few rows at a time, so that large ones are not all there twice."""
        for start in range(0, len(rows), ROWS_CHECKED_AT_ONCE):
            self.to_batch(rows[start : start + ROWS_CHECKED_AT_ONCE])

    def copier(self) -> Copier | None:
        return dict_copier if all(field.immutable for field in self.field_types) else copy_record


class UntypedRecords(RecordType):
    typed = False
    name = "untyped"
    schema = None
    annotation = None

    def __init__(self) -> None:
        self.field_names = []
        self.field_types = []

    def to_batch(self, rows: list[Any]) -> pa.RecordBatch:
        raise TypeDeclarationError(
            "the stream is untyped, so its records have no columns. Give the operator before it returns=..., "
            "or annotate what its function returns.",
            declared=self.name,
        )

    def to_rows(self, batch: pa.RecordBatch) -> list[Any]:
        raise TypeDeclarationError(
            "columns came to an untyped stream. Give the operator that made them returns=... with their schema.",
            declared=self.name,
        )

    def settled(self, row: Any) -> Any:
        return copy_record(row)

    def copier(self) -> Copier | None:
        return copy_record

    def __reduce__(self) -> str:
        return "UNTYPED"


UNTYPED = UntypedRecords()


def record_type(annotation: Any) -> RecordType:
    """The RecordType of an annotation, a pyarrow schema, or None (untyped).

    :raises TypeDeclarationError: when the annotation has no column form.
    """
    if annotation is None or annotation is Any:
        return UNTYPED
    if isinstance(annotation, RecordType):
        return annotation
    if isinstance(annotation, pa.Schema):
        return SchemaRecords(annotation)
    type = data_type(annotation)
    if isinstance(type, TupleType):
        return TupleRecords(type)
    if isinstance(type, DataclassType):
        return DataclassRecords(type)
    return ScalarRecords(type)


def field_type(records: RecordType, field: str | int) -> DataType | None:
    """The type of one column, by name or position; None when the stream is untyped.

    :raises TypeDeclarationError: when there is no such column.
    """
    if not records.typed:
        return None
    names = records.field_names
    if isinstance(field, str) and field in names:
        return records.field_types[names.index(field)]
    if isinstance(field, int) and 0 <= field < len(names):
        return records.field_types[field]
    raise TypeDeclarationError(
        f"{records.name} has no field {field!r}; it has {', '.join(names)}.", declared=records.name, field=field
    )


def stored_annotation(records: RecordType) -> Any:
    """As what a record of this type is kept in state; one without a type is pickled."""
    annotation = records.annotation if records.typed else Pickled
    return pa.struct(list(annotation)) if isinstance(annotation, pa.Schema) else annotation
