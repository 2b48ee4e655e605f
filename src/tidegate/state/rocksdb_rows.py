"""How a value is stored in RocksDB: its cell. Version 1; a change of meaning raises `ROW_FORMAT_VERSION`.

Pure; executor. A state's rows are

    value state   address                          -> cell of the value
    list state    address + sequence (8 bytes)     -> msgpack array of the elements' cells; the list is all rows in order
    map state     address + cell of the map's key  -> cell of the value
    timers        key group, moment, key, namespace -> cell of the moment (state/rocksdb_timers.py)

where the address is key group, key and namespace (state/rocksdb_keys.py). How a cell is laid out depends on the declared
type, and is noted beside the state together with its Arrow type (`RowFormat`), so that every row can be read as a
column without the class that wrote it:

    int64, float64, bool   8, 8, 1 bytes, little-endian        text, binary   the bytes
    plain                  msgpack (state/rocksdb_plain.py)    ipc            an Arrow record batch message of one row
    expiring <layout>      a moment and the cell of that layout: states with a TTL (`TimedCells`), each element of a list

Cells of one type are equal where the values are, so a map's key can be looked up by its cell: -0.0 is 0.0, all NaN are
one, Decimals are without trailing zeros. That holds for keys of maps only; values keep what they are.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import CheckpointDamaged
from tidegate.state.map_keys import canonical_form
from tidegate.state.rocksdb_plain import NotPlain, PlainForm, column_of_plain, plain_form
from tidegate.types import DataType
from tidegate.types.containers import OptionalType
from tidegate.types.dictionaries import plain_type, with_type
from tidegate.types.pickled import PickledType
from tidegate.types.scalars import INT64_MAX, INT64_MIN, ScalarType

if TYPE_CHECKING:
    from tidegate.state.declarations import Declaration

ROW_FORMAT_VERSION = 1
EXPIRING = "expiring "  #: how the layout of a state with a TTL begins
_EXPIRY = struct.Struct("<q")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_cells = msgspec.msgpack.Decoder(list[bytes]).decode
_NUMPY = {"int64": "<i8", "float64": "<f8", "bool": "?"}


class Cells(ABC):
    """The cells of one declared type, and how its values are kept in memory meanwhile.

    Scalars are kept as the Python objects that they are. All others are kept as their cell: taking one in makes it
    independent of the caller, and each way out makes a value that is the caller's own.
    """

    layout: str
    as_objects: bool  #: kept as the value; False: kept as the cell

    def __init__(self, data_type: DataType) -> None:
        self.type = data_type

    @abstractmethod
    def admit(self, value: Any) -> Any:
        """The value as it is to be kept. :raises TypeDeclarationError: when it does not fit, to the bottom."""

    @abstractmethod
    def give(self, kept: Any) -> Any:
        """A value of the caller's own."""

    @abstractmethod
    def to_cell(self, kept: Any) -> bytes: ...

    @abstractmethod
    def of_cell(self, cell: bytes) -> Any:
        """As it is kept."""

    def size_of(self, kept: Any) -> int:
        """About how many bytes of memory it takes beyond a small object."""
        return len(kept) if kept.__class__ is bytes or kept.__class__ is str else 0

    def _converted(self, value: Any) -> Any:
        """Through the stored form and back: converts what fits without loss, raises for the rest."""
        (converted,) = self.type.from_arrow(self.type.to_arrow([value]))
        return converted


class _ObjectCells(Cells):
    as_objects = True

    def give(self, kept: Any) -> Any:
        return kept


class FixedCells(_ObjectCells):
    """Numbers and bools."""

    def __init__(self, data_type: DataType) -> None:
        super().__init__(data_type)
        assert data_type.numpy is not None
        self.layout = data_type.numpy.name
        self._struct = struct.Struct({"int64": "<q", "float64": "<d", "bool": "?"}[self.layout])
        self._python: Any = {"int64": int, "float64": float, "bool": bool}[self.layout]
        self._is_int = self.layout == "int64"

    def admit(self, value: Any) -> Any:
        if value.__class__ is self._python and (not self._is_int or INT64_MIN <= value <= INT64_MAX):
            return value
        return self._converted(value)

    def to_cell(self, kept: Any) -> bytes:
        return self._struct.pack(kept)

    def of_cell(self, cell: bytes) -> Any:
        return self._struct.unpack(cell)[0]

    def size_of(self, kept: Any) -> int:
        return 0


class TextCells(_ObjectCells):
    layout = "text"

    def admit(self, value: Any) -> Any:
        if value.__class__ is str:
            if value.isascii():
                return value
            try:
                value.encode()
            except UnicodeEncodeError:
                return self._converted(value)
            return value
        return self._converted(value)

    def to_cell(self, kept: Any) -> bytes:
        return kept.encode()  # type: ignore[no-any-return]

    def of_cell(self, cell: bytes) -> Any:
        return cell.decode()


class BinaryCells(_ObjectCells):
    layout = "binary"

    def admit(self, value: Any) -> Any:
        return value if value.__class__ is bytes else self._converted(value)

    def to_cell(self, kept: Any) -> bytes:
        return kept  # type: ignore[no-any-return]

    def of_cell(self, cell: bytes) -> Any:
        return cell


class PlainScalarCells(_ObjectCells):
    """Dates, times, Decimals, UUIDs, and every scalar that may be None."""

    layout = "plain"

    def __init__(self, data_type: DataType, form: PlainForm) -> None:
        super().__init__(data_type)
        self._to = form.to
        self._of = form.of

    def admit(self, value: Any) -> Any:
        try:
            plain = self._to(value)
            if plain.__class__ is str and not plain.isascii():
                plain.encode()
        except (NotPlain, UnicodeEncodeError):
            return self._converted(value)
        return value if self.type.comes_back else self.type.settled(value)

    def to_cell(self, kept: Any) -> bytes:
        return _encode(self._to(kept))

    def of_cell(self, cell: bytes) -> Any:
        plain = _decode(cell)
        return plain if self._of is None else self._of(plain)


class _KeptAsCells(Cells):
    as_objects = False

    def to_cell(self, kept: Any) -> bytes:
        return kept  # type: ignore[no-any-return]

    def of_cell(self, cell: bytes) -> Any:
        return cell

    def size_of(self, kept: Any) -> int:
        return len(kept)


class PlainCells(_KeptAsCells):
    """Lists, dicts, tuples, dataclasses."""

    layout = "plain"

    def __init__(self, data_type: DataType, form: PlainForm) -> None:
        super().__init__(data_type)
        self._to = form.to
        self._of = form.of

    def admit(self, value: Any) -> bytes:
        try:
            return _encode(self._to(value))
        except (NotPlain, UnicodeEncodeError):
            return _encode(self._to(self._converted(value)))

    def give(self, kept: Any) -> Any:
        plain = _decode(kept)
        return plain if self._of is None else self._of(plain)


class PickledCells(_KeptAsCells):
    layout = "binary"

    def admit(self, value: Any) -> bytes:
        return self.type.to_arrow([value])[0].as_py()  # type: ignore[no-any-return]

    def give(self, kept: Any) -> Any:
        return self.type.from_arrow(pa.array([kept], pa.binary()))[0]


class IpcCells(_KeptAsCells):
    """What has no plain form: Arrow types whose values Python does not hold exactly, and all that has one inside."""

    layout = "ipc"

    def __init__(self, data_type: DataType) -> None:
        super().__init__(data_type)
        self._schema = _ipc_schema(data_type.arrow)

    def admit(self, value: Any) -> bytes:
        column = with_type(self.type.to_arrow([value]), self._schema.field(0).type)
        batch = pa.RecordBatch.from_arrays([column], schema=self._schema)
        return bytes(batch.serialize())

    def give(self, kept: Any) -> Any:
        return self.type.from_arrow(column_of_cells(self.layout, self.type.arrow, [kept]))[0]


def cells_of(data_type: DataType) -> Cells:
    if isinstance(data_type, PickledType):
        return PickledCells(data_type)
    if isinstance(data_type, ScalarType) and data_type.numpy is not None:
        return FixedCells(data_type)
    if data_type.name == "str":
        return TextCells(data_type)
    if data_type.name == "bytes":
        return BinaryCells(data_type)
    form = plain_form(data_type)
    if form is None:
        return IpcCells(data_type)
    scalar = data_type.inner if isinstance(data_type, OptionalType) else data_type
    return PlainScalarCells(data_type, form) if isinstance(scalar, ScalarType) else PlainCells(data_type, form)


# -- values that expire (state/ttl.py) -------------------------------------------------------------------------------


class TimedCells(Cells):
    """Of a state with a TTL: the expiry (8 bytes, little-endian) and the cell of the value."""

    as_objects = False

    def __init__(self, inner: Cells) -> None:
        super().__init__(inner.type)
        self.inner = inner
        self.layout = EXPIRING + inner.layout

    def admit(self, value: Any) -> Any:
        """A `Timed`."""
        return self.inner.admit(value[0]), value[1]

    def give(self, kept: Any) -> Any:
        return self.inner.give(kept[0])

    def to_cell(self, kept: Any) -> bytes:
        return _EXPIRY.pack(kept[1]) + self.inner.to_cell(kept[0])

    def of_cell(self, cell: bytes) -> Any:
        return self.inner.of_cell(cell[_EXPIRY.size :]), expiry_of(cell)

    def size_of(self, kept: Any) -> int:
        return self.inner.size_of(kept[0]) + 2 * _EXPIRY.size


def cells_for(declaration: Declaration) -> Cells:
    """The cells of a declared state's values."""
    cells = cells_of(declaration.value_type)
    return cells if declaration.ttl is None else TimedCells(cells)


def expiry_of(cell: bytes) -> int:
    """Of a cell of an expiring layout."""
    return _EXPIRY.unpack_from(cell)[0]  # type: ignore[no-any-return]


def expiries_of(cells: pa.Array) -> np.ndarray[Any, Any]:
    """The same of a column (large_binary)."""
    starts = np.frombuffer(cells.buffers()[1], np.int64)[cells.offset : cells.offset + len(cells)]
    data = np.frombuffer(cells.buffers()[2] or b"", np.uint8)
    return data[starts[:, None] + np.arange(_EXPIRY.size)].view("<i8").ravel()  # type: ignore[no-any-return]


def live_cell(cell: bytes, now_ms: int) -> bytes | None:
    """The cell, None when it has expired."""
    return cell if expiry_of(cell) > now_ms else None


def live_elements(row: bytes, now_ms: int) -> tuple[bytes | None, int, int]:
    """A row of a list state without the elements that have expired (None: all have), how many it has, how many have."""
    elements = decode_elements(row)
    live = [cell for cell in elements if expiry_of(cell) > now_ms]
    expired = len(elements) - len(live)
    if not expired:
        return row, len(elements), 0
    return (encode_elements(live) if live else None), len(elements), expired


def without_expiries(layout: str, cells: Sequence[bytes]) -> tuple[str, Sequence[bytes], list[int] | None]:
    """The inner layout, the inner cells and the expiries; None for a layout that does not expire."""
    if not layout.startswith(EXPIRING):
        return layout, cells, None
    return layout.removeprefix(EXPIRING), [cell[_EXPIRY.size :] for cell in cells], list(map(expiry_of, cells))


# -- keys of maps ------------------------------------------------------------------------------------------------------


class MapKeys:
    """The keys of a map state: objects in memory, cells in the row's key; equal cells for equal keys, and only them."""

    def __init__(self, data_type: DataType) -> None:
        self.cells = cells_of(data_type)
        self._canonical = canonical_form(data_type)

    def admit(self, key: Any) -> Any:
        """The hashable that stands for the key in memory. :raises TypeDeclarationError:"""
        kept = self.cells.admit(key)
        key = kept if self.cells.as_objects else self.cells.give(kept)
        return key if self._canonical is None else self._canonical(key)

    def to_cell(self, key: Any) -> bytes:
        cells = self.cells
        return cells.to_cell(key) if cells.as_objects else cells.admit(key)

    def of_cell(self, cell: bytes) -> Any:
        key = self.cells.give(self.cells.of_cell(cell))
        return key if self._canonical is None else self._canonical(key)


# -- lists -------------------------------------------------------------------------------------------------------------


def encode_elements(cells: list[bytes]) -> bytes:
    """A row of a list state."""
    return _encode(cells)


def decode_elements(row: bytes) -> list[bytes]:
    return _decode_cells(row)


# -- columns -----------------------------------------------------------------------------------------------------------


def column_of_cells(layout: str, arrow: pa.DataType, cells: Sequence[bytes]) -> pa.Array:
    """Stored cells as a column, without the type that wrote them.

    :raises CheckpointDamaged: for cells that are none of that layout.
    """
    try:
        if layout in _NUMPY:
            return pa.array(np.frombuffer(b"".join(cells), dtype=_NUMPY[layout]), arrow)
        if layout in ("text", "binary"):
            return pa.array(cells, pa.binary()).cast(arrow)
        if layout == "plain":
            return column_of_plain(arrow, list(map(_decode, cells)))
        if layout == "ipc":
            schema = _ipc_schema(arrow)
            batches = [pa.ipc.read_record_batch(pa.py_buffer(cell), schema) for cell in cells]
            if not batches:
                return pa.array([], arrow)
            return with_type(pa.concat_arrays([batch.column(0) for batch in batches]), arrow)
    except (msgspec.MsgspecError, pa.ArrowException, ValueError, IndexError, TypeError) as error:
        raise CheckpointDamaged(f"stored values of {layout} layout cannot be read as {arrow}: {error}") from error
    raise CheckpointDamaged(f"stored values have the layout {layout!r}, which this release does not know.")


def _ipc_schema(arrow: pa.DataType) -> pa.Schema:
    """A message of one row has no place for dictionaries, so the values stand in it."""
    return pa.schema([("value", plain_type(arrow))])
