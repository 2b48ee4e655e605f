"""Columns that come as Arrow dictionaries (a pandas categorical), however deep: streams carry their values."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.testing.crash_points import Crash
from tidegate.testing.runner import run_in_process
from tidegate.types import record_type
from tidegate.types.dictionaries import plain_type, with_type

WORDS = pa.dictionary(pa.int8(), pa.string())
NESTED = {
    "words": WORDS,
    "numbers": pa.dictionary(pa.int32(), pa.int64()),
    "list": pa.list_(WORDS),
    "large list": pa.large_list(WORDS),
    "pair": pa.list_(WORDS, 2),
    "struct": pa.struct([("a", WORDS), ("b", pa.int64())]),
    "map": pa.map_(pa.string(), WORDS),
    "list of structs": pa.list_(pa.struct([("a", pa.list_(WORDS))])),
}


class OneBatch(tg.Source):
    """Gives a table's only batch as it is."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split("0")]

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return _OneBatchReader(self.batch)


class _OneBatchReader(tg.SourceReader):
    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._is_read: bool | None = None  #: None without the split

    def add_splits(self, splits: Sequence[tg.Split]) -> None:
        self._is_read = splits[0].position == 1

    def poll(self, deadline: float) -> pa.RecordBatch | None:
        if self._is_read is not False:
            return None
        self._is_read = True
        return self._batch

    def splits(self) -> list[tg.Split]:
        return [] if self._is_read is None else [tg.Split("0", 1 if self._is_read else None, self._is_read)]


def a_value(arrow: pa.DataType, draw: random.Random, nulls: bool = True) -> Any:
    if nulls and draw.random() < 0.2:
        return None
    if pa.types.is_dictionary(arrow):
        return a_value(arrow.value_type, draw, nulls=False)
    if pa.types.is_struct(arrow):
        return {field.name: a_value(field.type, draw) for field in arrow}
    if pa.types.is_map(arrow):
        return [(str(n), a_value(arrow.item_type, draw)) for n in range(draw.randrange(3))]
    if pa.types.is_fixed_size_list(arrow):
        return [a_value(arrow.value_type, draw) for _ in range(arrow.list_size)]
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return [a_value(arrow.value_type, draw) for _ in range(draw.randrange(3))]
    return draw.choice(["de", "fr", ""]) if pa.types.is_string(arrow) else draw.randrange(3)


def a_type(draw: random.Random, depth: int = 3) -> pa.DataType:
    leaf: list[pa.DataType] = [WORDS, pa.dictionary(pa.uint16(), pa.int32()), pa.string(), pa.int64()]
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(leaf)
    inner = a_type(draw, depth - 1)
    makers = (
        lambda: pa.list_(inner),
        lambda: pa.large_list(inner),
        lambda: pa.list_(inner, 2),
        lambda: pa.struct([("a", inner), ("b", a_type(draw, depth - 1))]),
        lambda: pa.map_(pa.string(), inner),
    )
    return draw.choice(makers)()


@pytest.mark.property
@pytest.mark.parametrize("seed", range(200))
def test_a_column_without_its_dictionaries_has_the_same_values(seed: int) -> None:
    draw = random.Random(seed)
    arrow = a_type(draw)
    column = pa.array([a_value(arrow, draw) for _ in range(20)], arrow).slice(draw.randrange(5))

    plain = with_type(column, plain_type(arrow))

    assert "dictionary" not in str(plain.type)
    assert plain.to_pylist() == column.to_pylist()
    assert (plain_type(arrow) is arrow) == ("dictionary" not in str(arrow)) or arrow == pa.null()


@pytest.mark.property
def test_records_of_every_nesting_come_through_a_job() -> None:
    draw = random.Random(7)
    columns = {name: pa.array([a_value(arrow, draw) for _ in range(50)], arrow) for name, arrow in NESTED.items()}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    env = tg.StreamEnvironment("dictionaries", parallelism=2)
    env.checkpointing(every="20ms", storage=fresh_storage())
    stream = env.from_source(OneBatch(batch), uid="in", returns=batch.schema, parallelism=1)
    again = stream.rebalance().map_batches(_encoded_again, returns=batch.schema).rebalance()
    again.map(lambda row: row, returns=batch.schema).collect(uid="out")
    stream.key_by("words").count(uid="count").collect(uid="counts")

    result = run_in_process(env)

    assert result.error is None
    assert sorted(map(repr, result.collected.rows("out"))) == sorted(map(repr, batch.to_pylist()))
    assert Counter(word for word, _ in result.collected.rows("counts")) == Counter(columns["words"].to_pylist())


def _encoded_again(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As a function does that works with categories."""
    return batch.set_column(0, "words", batch.column("words").dictionary_encode())


class KeepsWords(tg.KeyedProcessFunction):
    """State of dictionary types; emits what it held before."""

    word = tg.ValueState(WORDS)
    words = tg.ListState(pa.list_(WORDS))
    by_name = tg.MapState(str, pa.struct([("a", WORDS)]))

    def process_element(self, value: tuple[int, str], ctx: tg.Context) -> Iterator[tuple[Any, ...]]:
        before = self.word.get(), len(list(self.words.get())), self.by_name.get("x")
        self.word.set(value[1])
        self.words.add([value[1]])
        self.by_name.put("x", {"a": value[1]})
        yield before


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_state_may_have_a_dictionary_type(backend: str) -> None:
    env = tg.StreamEnvironment("words", parallelism=1)
    env.checkpointing(every="20ms", storage=fresh_storage())
    env.state_backend(backend, memory="1mb")
    rows = [(1, word) for word in ("de", "fr", "de", "at") * 20]
    env.from_collection(rows, uid="in").key_by(0).process(KeepsWords(), uid="keep").collect(uid="out")

    result = run_in_process(env, crashes=[Crash("slot.after-ack", nth=2)])

    held = [(None, 0, None)] + [(word, at + 1, {"a": word}) for at, (_, word) in enumerate(rows[:-1])]
    assert sorted(result.collected.rows("out"), key=itemgetter(1)) == held


@dataclass
class Visit:
    country: WORDS  # type: ignore[valid-type]
    number: int


def test_a_dataclass_may_name_a_dictionary_type() -> None:
    type_ = record_type(Visit)
    rows = [Visit("de", 1), Visit("fr", 2), Visit("de", 3)]

    assert type_.schema == pa.schema([("country", pa.string()), ("number", pa.int64())])
    assert type_.to_rows(type_.to_batch(rows)) == rows


def test_categories_of_pandas_are_read_from_parquet(tmp_path: Path) -> None:
    frame = pd.DataFrame({"country": pd.Categorical(["de", "fr", None, "de"]), "n": [1, 2, 3, 4]})
    frame.to_parquet(tmp_path / "visits.parquet")
    env = tg.StreamEnvironment("categories", parallelism=2)
    env.checkpointing(every="20ms", storage=fresh_storage())
    visits = env.from_source(tg.Files(str(tmp_path), "parquet"), uid="in", parallelism=1)
    visits.key_by("country").count(uid="count").collect(uid="out")

    result = run_in_process(env)

    assert result.error is None
    assert sorted(result.collected.rows("out"), key=repr) == [("de", 1), ("de", 2), ("fr", 1), (None, 1)]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"n": pa.array(["one"])}, "declared as schema"),
        ({"m": pa.array([1])}, "must have the columns"),
    ],
)
def test_a_batch_of_another_type_than_its_source_declares_is_refused(columns: dict[str, pa.Array], says: str) -> None:
    env = tg.StreamEnvironment("other", parallelism=1)
    env.restart_strategy("none")
    source = OneBatch(pa.RecordBatch.from_arrays(list(columns.values()), list(columns)))
    env.from_source(source, uid="in", returns=pa.schema([("n", pa.int64())])).collect(uid="out")

    result = run_in_process(env, storage=fresh_storage())

    assert says in str(result.error)


def test_a_batch_in_another_width_than_its_source_declares_is_read_as_declared() -> None:
    """Both ends read the wire by the declared type: narrow ints taken for wide ones would be other numbers."""
    env = tg.StreamEnvironment("width", parallelism=2)
    source = OneBatch(pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int8())], ["n"]))
    numbers = env.from_source(source, uid="in", returns=pa.schema([("n", pa.int64())]), parallelism=1)
    numbers.rebalance().map(lambda row: row["n"], returns=int).collect(uid="out")

    result = run_in_process(env, storage=fresh_storage())

    assert sorted(result.collected.rows("out")) == [1, 2, 3]


def test_a_function_that_returns_other_columns_is_named() -> None:
    env = tg.StreamEnvironment("other", parallelism=1)
    env.restart_strategy("none")
    numbers = env.from_source(tg.NumberSequence(1, 3), uid="in")
    numbers.map_batches(_as_text, returns=int, name="as text").collect(uid="out")

    result = run_in_process(env, storage=fresh_storage())

    assert "in what as text returned: a batch has the columns value: string" in str(result.error)


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(["x"] * batch.num_rows)], batch.schema.names)
