from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from connector_kit import drain, read_all, reader_context, restored_readers
from pyspark import cloudpickle

from tidegate.connectors.files_source import Files
from tidegate.connectors.formats import lines
from tidegate.errors import ConfigurationError, ConnectorError
from tidegate.types import record_type


@dataclass(frozen=True)
class Everything:
    i: int
    f: float
    b: bool
    s: str
    raw: bytes
    day: date
    at: datetime
    price: Decimal
    id: UUID
    maybe: int | None


EVERYTHING = Everything(
    -1,
    0.5,
    True,
    "",
    b"\x00\xff",
    date(2024, 2, 29),
    datetime(2024, 1, 1, 12, tzinfo=UTC),
    Decimal("1.10"),
    UUID("12345678123456781234567812345678"),
    None,
)


@dataclass(frozen=True)
class Small:
    n: int
    s: str


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# -- which files --------------------------------------------------------------------------------------------------


def test_folders_globs_and_uris_name_the_same_files_and_hidden_ones_are_skipped(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "_staging").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "_SUCCESS", ".a.txt.crc", "_staging/x.txt", ".git/y.txt"):
        write(tmp_path / name, name + "\n")
    expected = ["a.txt", "b.txt", "sub/c.txt"]

    assert read_all(Files(tmp_path)) == expected
    assert read_all(Files(f"file://{tmp_path}")) == expected
    assert read_all(Files(str(tmp_path / "**" / "*.txt"))) == expected
    assert read_all(Files([tmp_path / "a.txt", str(tmp_path / "*.txt"), tmp_path / "sub"])) == expected
    assert read_all(Files(tmp_path / "*.txt")) == ["a.txt", "b.txt"]
    assert read_all(Files(tmp_path / "_SUCCESS")) == ["_SUCCESS"]  # named outright


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    write(tmp_path / "data[1].txt", "one")
    assert read_all(Files(tmp_path / "data[1].txt")) == ["one"]


def test_a_relative_path_is_made_absolute_on_the_driver(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", "here")
    monkeypatch.chdir(tmp_path)
    source = cloudpickle.loads(cloudpickle.dumps(Files("a.txt")))
    monkeypatch.chdir("/")
    assert read_all(source) == ["here"]


@pytest.mark.parametrize("path", ["s3://bucket/x", "gs://b/x", "hdfs://nn/x", "file://host/x", ""])
def test_what_is_not_a_local_path_is_refused(path):
    with pytest.raises(ConfigurationError):
        Files(path)


def test_a_file_whose_name_is_not_utf_8_is_refused_by_its_name(tmp_path):
    """No checkpoint could name it; such names come from old archives."""
    inner = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(inner)
    (tmp_path / "ok.txt").write_text("fine\n")
    source = Files(tmp_path)
    assert read_all(source) == ["fine"]

    with open(inner + b"/a.txt", "w") as file:
        file.write("not to be named\n")
    with pytest.raises(ConfigurationError, match=r"caf\\xe9/a\.txt' is not UTF-8, .* Rename it, or move it out"):
        source.discover_splits(1)
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        Files(os.fsdecode(inner))
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        Files(f"file://{tmp_path}/caf%E9/a.txt")
    with pytest.raises(ConfigurationError, match="holds a NUL"):
        Files(f"{tmp_path}/a\0b")

    os.rename(inner, os.fsencode(tmp_path) + b"/_caf\xe9")
    assert read_all(source) == ["fine"]


def test_a_path_that_is_not_there_is_refused_and_an_empty_folder_is_not(tmp_path):
    with pytest.raises(ConfigurationError, match="no file or folder"):
        Files(tmp_path / "missing").discover_splits(1)
    with pytest.raises(ConfigurationError, match="No file matches"):
        Files(tmp_path / "*.txt").discover_splits(1)
    assert Files(tmp_path).discover_splits(1) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, "no file format 'xml'"),
        ({"format": "text", "type": int}, "is a str"),
        ({"format": "text", "encoding": "utf-16"}, "keeps ASCII"),
        ({"format": "csv", "type": tuple[int, list[int]]}, "does not fit in a csv field"),
        ({"format": "parquet"}, "no Parquet files"),
        ({"batch_rows": 0}, "batch_rows"),
    ],
)
def test_impossible_settings_are_refused_on_the_driver(tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        Files(tmp_path, **options)


# -- a file that changes ------------------------------------------------------------------------------------------


def paused(source):
    """The splits of a reader that has read one batch."""
    (reader,) = restored_readers(source, source.discover_splits(1), 1)
    assert len(reader.poll(0.0)) == 1
    reader.close()
    return reader.splits()


@pytest.mark.parametrize("format", ["text", "csv", "jsonl"])
@pytest.mark.parametrize("change", ["longer", "same size", "gone"])
def test_a_file_that_changed_after_the_checkpoint_is_refused(tmp_path, format, change):
    path = write(tmp_path / "a", "1\n2\n3\n")
    source = Files(path, format, batch_rows=1)
    splits = paused(source)
    if change == "gone":
        path.unlink()
    else:
        write(path, "1\n2\n3\n4\n" if change == "longer" else "9\n9\n9\n")
        os.utime(path, ns=(1, 1))
    (reader,) = restored_readers(source, splits, 1)

    with pytest.raises(ConnectorError, match="cannot be opened" if change == "gone" else "between the checkpoint"):
        reader.poll(0.0)


@pytest.mark.parametrize("change", [b"1\n2\n3\n4\n", b"1\n"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, change):
    path = write(tmp_path / "a", "1\n2\n3\n")
    (reader,) = restored_readers(Files(path, batch_rows=1), Files(path).discover_splits(1), 1)
    reader.poll(0.0)
    write(path, change)

    with pytest.raises(ConnectorError, match="while it was read"):
        drain(reader, record_type(str))
    reader.close()


# -- lines --------------------------------------------------------------------------------------------------------


def test_only_line_feeds_end_a_line(tmp_path):
    path = write(tmp_path / "a", "a\x0bb\x0cc\x85d\u2028e\rf\r\n\n\ng")
    assert read_all(Files(path)) == ["a\x0bb\x0cc\x85d\u2028e\rf", "", "", "g"]


@pytest.mark.parametrize(
    ("content", "expected"), [("", []), ("\n", [""]), ("a", ["a"]), ("\ufeffa\n\ufeffb", ["a", "\ufeffb"])]
)
def test_the_edges_of_a_text_file(tmp_path, content, expected):
    assert read_all(Files(write(tmp_path / "a", content))) == expected


def test_lines_longer_than_a_chunk_are_whole(tmp_path):
    long = ["x" * 1_000_000, "short", "ü" * 400_000]
    assert read_all(Files(write(tmp_path / "a", "\n".join(long)))) == long


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1024 * 1024)
    with pytest.raises(ConnectorError, match="line 2: longer than 1048576 bytes"):
        read_all(Files(write(tmp_path / "a", "a\n" + "x" * 5_000_000 + "\nb")))


@pytest.mark.parametrize(
    ("format", "content", "options", "message"),
    [
        ("text", b"a\nb\n\xff\n", {}, "line 3: 'utf-8' codec"),
        ("jsonl", b'{"n":1,"s":"a"}\n\n{"n":', {}, "line 3: Input data was truncated"),
        ("jsonl", b'{"n":1,"s":"a"}\n{"n":"1","s":"a"}', {"type": Small}, r"line 2: Expected `int`, got `str`"),
        ("jsonl", b'{"n":1,"s":"a"}\n{"n":1}', {"type": Small}, "line 2: Object missing required field `s`"),
        ("jsonl", b'{"n":1}\n{"n":1} {"n":2}', {}, "line 2: JSON is malformed"),
        ("csv", b'n,s\n1,"a\nb"\nx,c\n', {"type": Small}, "line 4: column 'n': 'x' is not of the type int"),
        ("csv", b"n,s\n1,a\n,c\n", {"type": Small}, "line 3: column 'n': '' is not of the type int"),
        ("csv", b"n,s\n1,a\n99999999999999999999,c\n", {"type": Small}, "line 3: column 'n'"),
        ("csv", b"n,s\n1,a\n1,2,3\n", {}, "line 3: 3 fields, the header has 2"),
        ("csv", b'n,s\n1,"a"b\n', {}, "line 2"),
        ("csv", b"n,t\n1,a\n", {"type": Small}, "line 1: the header lacks s; it has n, t"),
        ("csv", b"n\n1\n", {"type": tuple[int, str]}, "the header has 1 columns, the type 2"),
        ("csv", b"n,s,n\n1,a,2\n", {}, "line 1: the header has 'n' more than once"),
        ("csv", b"n,s,n\n1,a,2\n", {"type": Small}, "line 1: the header has 'n' more than once"),
        (
            "csv",
            b"n\n1\nx\n",
            {"type": pa.schema([("n", pa.int8())])},
            "line 3: column 'n': 'x' is not of the type arrow:int8",
        ),
    ],
)
def test_a_bad_line_is_named_with_its_file(tmp_path, format, content, options, message):
    path = write(tmp_path / "input.dat", content)
    with pytest.raises(ConnectorError, match=message) as caught:
        read_all(Files(path, format, **options))
    assert str(path) in str(caught.value)


def test_the_line_of_an_error_is_right_after_a_restore(tmp_path):
    path = write(tmp_path / "a", '1\n2\n3\n"broken\n')
    source = Files(path, "jsonl", batch_rows=1)
    (reader,) = restored_readers(source, paused(source), 1)

    with pytest.raises(ConnectorError, match="line 4"):
        drain(reader, record_type(None))
    reader.close()


# -- typed records ------------------------------------------------------------------------------------------------


def test_every_type_can_be_read_from_csv(tmp_path):
    text = (
        "\ufeffid,maybe,extra,price,at,day,raw,s,b,f,i\n"
        "12345678-1234-5678-1234-567812345678,,ignored,1.10,2024-01-01T12:00:00Z,2024-02-29,AP8=,,true,0.5,-1\n"
    )
    assert read_all(Files(write(tmp_path / "a.csv", text), "csv", type=Everything)) == [EVERYTHING]


def test_csv_columns_are_found_by_place_for_tuples_and_delimiters_can_be_chosen(tmp_path):
    path = write(tmp_path / "a.csv", "x;y\n1;a\n2;b\n")
    assert read_all(Files(path, "csv", type=tuple[int, str], delimiter=";")) == [(1, "a"), (2, "b")]


def test_csv_by_schema_takes_its_arrow_types(tmp_path):
    schema = pa.schema([("t", pa.timestamp("s")), ("d", pa.decimal128(5, 2)), ("raw", pa.binary()), ("s", pa.string())])
    path = write(tmp_path / "a.csv", "s,raw,d,t\n,AP8=,1.10,2024-01-01 00:00:00\nx,,,\n")
    assert read_all(Files(path, "csv", type=schema)) == [
        {"t": datetime(2024, 1, 1), "d": Decimal("1.10"), "raw": b"\x00\xff", "s": ""},
        {"t": None, "d": None, "raw": None, "s": "x"},
    ]


def test_csv_without_records(tmp_path):
    write(tmp_path / "empty.csv", "")
    write(tmp_path / "header.csv", "n,s\n")
    assert read_all(Files(tmp_path, "csv", type=Small)) == []


def test_every_type_can_be_read_from_json_lines(tmp_path):
    line = (
        '{"i":-1,"f":0.5,"b":true,"s":"","raw":"AP8=","day":"2024-02-29","at":"2024-01-01T12:00:00Z","price":"1.10",'
        '"id":"12345678-1234-5678-1234-567812345678","maybe":null,"unknown":[]}\n'
    )
    assert read_all(Files(write(tmp_path / "a", line), "jsonl", type=Everything)) == [EVERYTHING]


def test_json_lines_by_schema_are_dicts_of_its_fields(tmp_path):
    schema = pa.schema(
        [
            pa.field("n", pa.int32(), nullable=False),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("at", pa.struct([("x", pa.float64())])),
        ]
    )
    path = write(tmp_path / "a", '{"n":1,"raw":"AP8=","tags":["a",null],"at":{"x":1},"more":0}\n\n{"n":2}\n')
    source = Files(path, "jsonl", type=schema)
    assert read_all(source) == [{"n": 1, "raw": b"\x00\xff", "tags": ["a", None], "at": {"x": 1.0}}, {"n": 2}]


def test_json_lines_without_a_type_are_what_each_line_holds(tmp_path):
    assert read_all(Files(write(tmp_path / "a", '{"a":1}\r\n[1]\r\n"x"\r\n'), "jsonl")) == [{"a": 1}, [1], "x"]


# -- Parquet ------------------------------------------------------------------------------------------------------


def test_parquet_takes_its_schema_from_the_files_and_comes_as_columns(tmp_path):
    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32()), "s": ["a", "b"]}), tmp_path / "a.parquet")
    source = Files(tmp_path, "parquet")

    assert source.record_type == pa.schema([("n", pa.int32()), ("s", pa.string())])
    reader = source.reader(reader_context())
    reader.add_splits(source.discover_splits(1))
    assert isinstance(reader.poll(0.0), pa.RecordBatch)
    reader.close()


def test_parquet_reads_the_columns_of_the_given_type(tmp_path):
    pq.write_table(pa.table({"s": ["a"], "other": [0], "n": pa.array([1], pa.int16())}), tmp_path / "a.parquet")
    assert read_all(Files(tmp_path, "parquet", type=Small)) == [Small(1, "a")]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"n": [1]}, "lacks the columns s"),
        ({"n": ["x"], "s": ["a"]}, "column 'n': string cannot be read as int"),
        ({"n": [None, 1], "s": ["a", "b"]}, "column 'n': there are nulls"),
    ],
)
def test_a_parquet_file_that_does_not_fit_is_named(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "odd.parquet")
    with pytest.raises(ConnectorError, match=message) as caught:
        read_all(Files(tmp_path, "parquet", type=Small))
    assert "odd.parquet" in str(caught.value)


def test_a_file_that_is_not_parquet_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", "no parquet at all")
    with pytest.raises(ConnectorError, match=r"a\.parquet is not a Parquet file"):
        read_all(Files(path, "parquet", type=Small))
