"""Exactly-once files. Each crash of the two phases is played by stopping there and continuing with the committables
alone."""

from __future__ import annotations

import base64
import errno
import json
import os
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from connector_kit import batch_of, read_all, writer_context
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

import tidegate as tg
from tidegate.connectors.contract import CommitOutcome
from tidegate.connectors.file_sink import FileCommitter, FileSink, staged_name, sweep_staging
from tidegate.connectors.files_source import Files
from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.ids import AttemptId
from tidegate.testing.runner import InProcessRun

NEXT = AttemptId(1, 3)  #: the attempt before which left-overs are swept
DONE, ALREADY_DONE, LOST = CommitOutcome.DONE, CommitOutcome.ALREADY_DONE, CommitOutcome.LOST


def prepared(sink, rows, record=None, checkpoint=1, **context):
    writer = sink.writer(writer_context(record, **context)[0])
    writer.write(batch_of(rows, record))
    writer.flush()
    committables = writer.prepare(checkpoint)
    writer.close()
    return committables


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("_"))


def staged(folder):
    return sorted(os.listdir(folder / "_staging"))


class PowerCut(BaseException):
    """Nothing after it runs: not an Exception, so no handler of the product may see it."""


def crash_at(monkeypatch, call, before=False):
    """The machine dies right after (or before) the next os.<call>."""
    real = getattr(os, call)

    def dying(*args, **kwargs):
        if not before:
            real(*args, **kwargs)
        raise PowerCut

    monkeypatch.setattr(os, call, dying)


# -- both phases --------------------------------------------------------------------------------------------------


def test_files_appear_with_the_commit_and_not_before(tmp_path):
    sink = cloudpickle.loads(cloudpickle.dumps(FileSink(tmp_path / "out", "text")))
    committables = prepared(sink, ["a", "b"], checkpoint=7, subtask=3)

    assert visible(tmp_path / "out") == []
    assert read_all(Files(tmp_path / "out")) == []
    assert FileCommitter().commit(committables) == [DONE]
    assert visible(tmp_path / "out") == ["part-00000007-00003-0.txt"]
    assert staged(tmp_path / "out") == []
    assert read_all(Files(tmp_path / "out")) == ["a", "b"]


def test_an_epoch_without_records_has_nothing_to_commit(tmp_path):
    writer = FileSink(tmp_path / "out").writer(writer_context()[0])
    writer.write(batch_of([]))
    assert writer.prepare(1) == []
    assert not (tmp_path / "out").exists()


def test_every_epoch_has_its_own_files(tmp_path):
    writer = FileSink(tmp_path, "text").writer(writer_context()[0])
    committables = []
    for checkpoint in (1, 2, 3):
        writer.write(batch_of([f"epoch {checkpoint}"]))
        committables += writer.prepare(checkpoint)
    assert FileCommitter().commit(committables) == [DONE] * 3
    assert read_all(Files(tmp_path)) == ["epoch 1", "epoch 2", "epoch 3"]


def test_a_part_that_has_grown_to_max_bytes_is_followed_by_another(tmp_path):
    writer = FileSink(tmp_path, "text", max_bytes=10).writer(writer_context()[0])
    for number in range(5):
        writer.write(batch_of([f"line{number}"]))
    committables = writer.prepare(1)

    assert [json.loads(one)["rows"] for one in committables] == [2, 2, 1]
    assert FileCommitter().commit(committables) == [DONE] * 3
    assert visible(tmp_path) == [f"part-00000001-00000-{n}.txt" for n in range(3)]
    assert read_all(Files(tmp_path)) == [f"line{number}" for number in range(5)]


def test_the_committable_is_versioned_json_that_anyone_can_read(tmp_path):
    (committable,) = prepared(FileSink(tmp_path, "text"), ["ä"])
    fields = json.loads(committable)
    assert set(fields) == {"v", "staged", "final", "bytes", "rows", "checksum"}
    assert (fields["v"], fields["bytes"], fields["rows"]) == (1, 3, 1)
    assert fields["final"] == str(tmp_path / "part-00000001-00000-0.txt")
    assert os.path.getsize(fields["staged"]) == 3


# -- crashes ------------------------------------------------------------------------------------------------------


def test_a_crash_before_prepare_leaves_nothing_that_is_ever_seen(tmp_path):
    sink = FileSink(tmp_path, "text")
    dead = sink.writer(writer_context(attempt="g1-a1")[0])
    dead.write(batch_of(["lost with the attempt"]))
    dead.flush()

    committables = prepared(sink, ["read again"], attempt="g1-a2")
    assert FileCommitter().commit(committables) == [DONE]
    assert read_all(Files(tmp_path)) == ["read again"]
    dead.close()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("call", "before", "then"),
    [
        ("link", True, DONE),
        ("link", False, ALREADY_DONE),
        ("unlink", True, ALREADY_DONE),
        ("unlink", False, ALREADY_DONE),
    ],
)
def test_a_crash_at_any_step_of_the_commit_is_finished_by_another_process(
    tmp_path, monkeypatch, call, before, then, times
):
    committables = prepared(FileSink(tmp_path, "text"), ["a", "b"])
    for _ in range(times):
        with monkeypatch.context() as patch:
            crash_at(patch, call, before)
            try:
                FileCommitter().commit(committables)
            except PowerCut:
                pass
            else:
                # The second try had nothing left to do at that step.
                assert times == 2

    assert FileCommitter().commit(committables) == [then]
    assert FileCommitter().commit(committables) == [ALREADY_DONE]
    assert visible(tmp_path) == ["part-00000001-00000-0.txt"]
    assert staged(tmp_path) == []
    assert read_all(Files(tmp_path)) == ["a", "b"]


def test_a_crash_before_the_folder_is_synced_is_finished_by_another_process(tmp_path, monkeypatch):
    committables = prepared(FileSink(tmp_path, "text"), ["a"])
    with monkeypatch.context() as patch:
        crash_at(patch, "fsync", before=True)
        with pytest.raises(PowerCut):
            FileCommitter().commit(committables)
    assert len(staged(tmp_path)) == 1  # never removed before the final name is durable

    assert FileCommitter().commit(committables) == [ALREADY_DONE]
    assert staged(tmp_path) == []


def test_prepare_syncs_each_file_and_the_folder_before_it_hands_out_a_committable(tmp_path, monkeypatch):
    writer = FileSink(tmp_path, "text", max_bytes=1).writer(writer_context()[0])
    synced = []
    real = os.fsync

    def noted(handle):
        synced.append(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    writer.write(batch_of(["a"]))
    writer.write(batch_of(["b"]))

    files = [os.stat(json.loads(one)["staged"]).st_ino for one in writer.prepare(1)]

    assert [file for file in synced if file in files] == files
    assert synced[-1] == os.stat(tmp_path / "_staging").st_ino


def test_an_error_of_the_disk_asks_for_another_try_and_the_others_stay_committed(tmp_path, monkeypatch):
    sink = FileSink(tmp_path, "text", max_bytes=1)
    writer = sink.writer(writer_context()[0])
    for text in ("a", "b"):
        writer.write(batch_of([text]))
    committables = writer.prepare(1)
    real = os.link

    def full(source, target):
        if target.endswith("-1.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(OSError, match="No space left"):
            FileCommitter().commit(committables)

    assert FileCommitter().commit(committables) == [ALREADY_DONE, DONE]
    assert read_all(Files(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("crash", [False, True])
def test_a_filesystem_without_links_commits_by_rename(tmp_path, monkeypatch, crash):
    def no_links(source, target, **at):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    committables = prepared(FileSink(tmp_path, "text"), ["a"])
    if crash:
        with monkeypatch.context() as patch:
            crash_at(patch, "rename")
            with pytest.raises(PowerCut):
                FileCommitter().commit(committables)
    assert FileCommitter().commit(committables) == [ALREADY_DONE if crash else DONE]
    assert FileCommitter().commit(committables) == [ALREADY_DONE]
    other = prepared(FileSink(tmp_path, "text"), ["other"], attempt="g1-a2")
    assert FileCommitter().commit(other) == [LOST]
    assert read_all(Files(tmp_path)) == ["a"]


def test_a_worker_that_dies_with_a_file_open_leaves_nothing(tmp_path):
    """Also one that was stopped, and wakes up when the job has ended and nobody tidies up any more."""
    worker = os.fork()
    if worker == 0:
        writer = FileSink(tmp_path, "text").writer(writer_context()[0])
        writer.write(batch_of(["a"]))
        os._exit(0 if writer is not None else 1)  # as a worker ends that has lost its connection
    assert os.waitpid(worker, 0)[1] == 0
    assert staged(tmp_path) == []


def test_a_filesystem_without_unnamed_files_has_named_ones(tmp_path, monkeypatch):
    real = os.open

    def no_unnamed(path, flags, *more, **at):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *more, **at)

    monkeypatch.setattr(os, "open", no_unnamed)
    assert FileCommitter().commit(prepared(FileSink(tmp_path, "text"), ["a"])) == [DONE]
    assert read_all(Files(tmp_path)) == ["a"]


# -- two attempts, one name ---------------------------------------------------------------------------------------


def test_two_attempts_that_prepare_one_checkpoint_never_share_a_file(tmp_path):
    sink = FileSink(tmp_path, "text")
    old = prepared(sink, ["old"], attempt="g1-a1", checkpoint=5)
    new = prepared(sink, ["new"], attempt="g1-a2", checkpoint=5)

    assert FileCommitter().commit(new) == [DONE]
    committer = FileCommitter()
    assert committer.commit(old) == [LOST]
    assert "part-00000005-00000-0.txt exists" in committer.lost_reason
    assert read_all(Files(tmp_path)) == ["new"]


def test_equal_bytes_of_another_run_are_not_taken_for_this_one(tmp_path):
    sink = FileSink(tmp_path, "text")
    first = prepared(sink, ["same"])
    second = prepared(sink, ["same"])

    assert FileCommitter().commit(first) == [DONE]
    assert FileCommitter().commit(second) == [LOST]
    assert FileCommitter().commit(first) == [ALREADY_DONE]


def test_a_foreign_file_under_the_final_name_is_never_overwritten(tmp_path):
    committables = prepared(FileSink(tmp_path, "text"), ["mine"])
    final = tmp_path / "part-00000001-00000-0.txt"
    final.write_text("foreign")

    assert FileCommitter().commit(committables) == [LOST]
    assert final.read_text() == "foreign"
    final.unlink()
    assert FileCommitter().commit(committables) == [DONE]  # nothing was lost by the refusal


def test_a_committed_file_that_was_changed_is_reported(tmp_path):
    committables = prepared(FileSink(tmp_path, "text"), ["mine"])
    FileCommitter().commit(committables)
    (tmp_path / "part-00000001-00000-0.txt").write_text("MINE\n")

    assert FileCommitter().commit(committables) == [LOST]


def test_a_staged_file_that_was_deleted_or_cut_is_reported(tmp_path):
    deleted = prepared(FileSink(tmp_path, "text"), ["a", "b"])
    cut = prepared(FileSink(tmp_path, "text"), ["a", "b"], checkpoint=2)
    os.unlink(json.loads(deleted[0])["staged"])
    os.truncate(json.loads(cut[0])["staged"], 1)

    committer = FileCommitter()
    assert committer.commit(deleted) == [LOST]
    assert "2 rows that were prepared have been deleted" in committer.lost_reason
    assert committer.commit(cut) == [LOST]
    assert "has 1 bytes, but 4 were prepared" in committer.lost_reason
    assert visible(tmp_path) == []


def test_a_committable_of_a_newer_release_is_not_guessed_at(tmp_path):
    (committable,) = prepared(FileSink(tmp_path, "text"), ["a"])
    committer = FileCommitter()
    assert committer.commit([committable.replace(b'"v":1', b'"v":2'), b"\x80junk"]) == [LOST, LOST]
    assert FileCommitter().commit([committable]) == [DONE]


# -- staging ------------------------------------------------------------------------------------------------------


def test_the_sweep_removes_left_overs_of_one_sink_and_keeps_what_a_checkpoint_names(tmp_path):
    sink = FileSink(tmp_path, "text")
    prepared(sink, ["left over"], attempt="g1-a1")
    (kept,) = prepared(sink, ["in the checkpoint"], attempt="g1-a2")
    prepared(sink, ["of a neighbour"], uid="out-2")
    neighbours = [name for name in staged(tmp_path) if "out%2D2" in name]

    removed = sweep_staging(tmp_path, "orders", "out", NEXT, {staged_name(kept)})

    assert len(removed) == 1
    assert staged(tmp_path) == sorted([staged_name(kept), *neighbours])
    assert FileCommitter().commit([kept]) == [DONE]
    assert sweep_staging(tmp_path / "never written", "orders", "out", NEXT, set()) == []


def test_the_sweep_of_a_driver_that_wakes_up_behind_a_newer_one_leaves_the_newer_ones_files(tmp_path):
    sink = FileSink(tmp_path, "text")
    prepared(sink, ["of the woken driver"], attempt="g9-a10")
    for attempt in ("g10-a1", "g9-a11"):
        prepared(sink, ["being written"], attempt=attempt)

    removed = sweep_staging(tmp_path, "orders", "out", AttemptId(9, 11), set())

    assert [name.split("-")[2:4] for name in removed] == [["g9", "a10"]]
    assert len(staged(tmp_path)) == 2


def test_the_sweep_tells_jobs_and_uids_apart_wherever_the_hyphen_is(tmp_path):
    prepared(FileSink(tmp_path, "text"), ["a"], uid="a-b")
    assert sweep_staging(tmp_path, "orders-a", "b", NEXT, set()) == []
    assert sweep_staging(tmp_path, "orders", "a", NEXT, set()) == []
    assert len(sweep_staging(tmp_path, "orders", "a-b", NEXT, set())) == 1


def test_long_and_odd_names_make_names_that_a_filesystem_takes(tmp_path):
    committables = prepared(FileSink(tmp_path, "text"), ["a"], uid="straße/../" + "x" * 400)
    assert FileCommitter().commit(committables) == [DONE]


# -- formats ------------------------------------------------------------------------------------------------------


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


ROWS = [
    Everything(
        number,
        number / 2,
        number % 2 == 0,
        ["plain", 'with "quotes", commas', "two\nlines", "\U0001f30a"][number % 4],
        bytes([number]),
        date(2024, 2, 29),
        datetime(2024, 1, 1, 12, 0, number, tzinfo=UTC),
        Decimal("1.10"),
        UUID(int=number),
        None if number % 3 else number,
    )
    for number in range(10)
]


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_what_is_written_is_read_back_by_the_file_source(tmp_path, format):
    writer = FileSink(tmp_path, format).writer(writer_context(Everything)[0])
    writer.write(batch_of(ROWS[:4], Everything))
    writer.write(batch_of(ROWS[4:], Everything))
    assert FileCommitter().commit(writer.prepare(1)) == [DONE]

    assert read_all(Files(tmp_path, format, type=Everything)) == ROWS


@dataclass(frozen=True)
class Anything:
    text: str
    number: float
    maybe: int | None
    raw: bytes


TEXTS = st.one_of(st.text(), st.text(st.sampled_from("\r\n\t\"',; \0\u2028\u0085\ufeffa"), max_size=6))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.property
@settings(deadline=None)
@given(
    rows=st.lists(
        st.builds(Anything, TEXTS, NUMBERS, st.none() | st.integers(-(2**63), 2**63 - 1), st.binary()), min_size=1
    )
)
@example(rows=[Anything("a\rb", 0.0, None, b"")])
@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_whatever_is_written_is_read_back_by_us_and_by_others(format, rows):
    with TemporaryDirectory() as folder:
        FileCommitter().commit(prepared(FileSink(folder, format), rows, Anything))

        assert read_all(Files(folder, format, type=Anything)) == rows
        (part,) = visible(folder)
        if format == "csv":  # by one that knows no type
            options = csv.ConvertOptions(column_types={"text": pa.string()}, strings_can_be_null=False)
            parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
            table = csv.read_csv(Path(folder, part), convert_options=options, parse_options=parse)
            assert table.column("text").to_pylist() == [row.text for row in rows]


def test_json_lines_as_documented(tmp_path):
    rows = [
        (1, "a"),
        {"at": datetime(2024, 1, 1), "d": Decimal("1.10"), "raw": b"\x00"},
        "text",
        7,
        None,
        np.float64(0.5),
        {"nan": float("nan"), "array": np.array([1, 2])},
    ]
    FileCommitter().commit(prepared(FileSink(tmp_path), rows))
    (part,) = visible(tmp_path)
    assert [json.loads(line) for line in (tmp_path / part).read_text().splitlines()] == [
        [1, "a"],
        {"at": "2024-01-01T00:00:00", "d": "1.10", "raw": base64.b64encode(b"\x00").decode()},
        "text",
        7,
        None,
        0.5,
        {"nan": None, "array": [1, 2]},
    ]


def test_a_value_that_json_cannot_hold_is_named(tmp_path):
    with pytest.raises(TypeDeclarationError, match="type complex"):
        prepared(FileSink(tmp_path), [1j])


def test_every_csv_part_has_a_header(tmp_path):
    writer = FileSink(tmp_path, "csv", max_bytes=1).writer(writer_context()[0])
    writer.write(batch_of([{"a": 1, "b": None}, {"b": [1, 2], "a": True}]))
    writer.write(batch_of([{"a": b"\x00", "b": date(2024, 1, 1)}]))
    FileCommitter().commit(writer.prepare(1))

    texts = [(tmp_path / name).read_text() for name in visible(tmp_path)]
    assert texts == ['a,b\n1,\ntrue,"[1,2]"\n', "a,b\nAA==,2024-01-01\n"]


def test_csv_refuses_records_without_names_and_records_with_other_names(tmp_path):
    with pytest.raises(ConfigurationError, match="returns="):
        prepared(FileSink(tmp_path, "csv"), [(1, 2)])
    with pytest.raises(TypeDeclarationError, match="columns b, but the csv file that it goes to has a"):
        prepared(FileSink(tmp_path, "csv"), [{"a": 1}, {"b": 1}])


def test_parquet_needs_a_type_and_keeps_the_schema(tmp_path):
    with pytest.raises(ConfigurationError, match="returns="):
        FileSink(tmp_path, "parquet").writer(writer_context()[0])
    schema = pa.schema([("n", pa.int16()), ("tags", pa.list_(pa.string()))])
    FileCommitter().commit(prepared(FileSink(tmp_path, "parquet"), [{"n": 1, "tags": ["a"]}], schema))
    (part,) = visible(tmp_path)
    assert pq.read_table(tmp_path / part).to_pylist() == [{"n": 1, "tags": ["a"]}]
    assert pq.read_schema(tmp_path / part).field("n").type == pa.int16()


def test_parquet_parts_roll_by_their_bytes_in_memory(tmp_path):
    writer = FileSink(tmp_path, "parquet", max_bytes=8000).writer(writer_context(int)[0])
    for _ in range(4):
        writer.write(batch_of(list(range(600)), int))
    committables = writer.prepare(1)
    assert [json.loads(one)["rows"] for one in committables] == [1200, 1200]
    assert FileCommitter().commit(committables) == [DONE, DONE]
    assert pq.ParquetFile(tmp_path / visible(tmp_path)[0]).metadata.num_rows == 1200


@pytest.mark.parametrize("path", ["ftp://host/out", "s3://key:secret@bucket/out", "s3://bucket/out?secret=x"])
def test_a_uri_that_is_no_store_or_holds_a_secret_is_refused_in_words(path):
    with pytest.raises(ConfigurationError) as raised:
        FileSink(path)

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("sign", ["#1", "?x=1"])
def test_a_file_uri_whose_path_would_be_cut_is_refused_and_a_bare_path_is_taken_as_it_is(tmp_path, sign):
    for make in (FileSink, Files):
        with pytest.raises(ConfigurationError, match="ends the path of a URI"):
            make(f"file://{tmp_path}/out{sign}")
        assert sign in str(make(f"{tmp_path}/out{sign}").__dict__)


def test_a_file_uri_names_a_local_folder(tmp_path):
    assert FileSink(f"file://{tmp_path}/with%20space").path == str(tmp_path / "with space")


def test_what_a_late_worker_left_is_swept_up_when_the_job_has_finished(tmp_path):
    """Where files have names from the start: nobody comes by after the end of the job."""
    late = tmp_path / "_staging" / "job-out-g1-a1-0-99-deadbeef.txt"

    def wake_up(text):
        late.parent.mkdir(exist_ok=True)
        late.touch()
        return text

    env = tg.StreamEnvironment("job", parallelism=1)
    env.checkpointing(every="20ms", storage=f"memory://late-{tmp_path.name}")
    env.from_collection(["a", "b"], uid="texts").map(wake_up, returns=str).sink_to(
        FileSink(tmp_path, "text"), uid="out"
    )

    assert InProcessRun(env, 1).run().status.value == "FINISHED"

    assert sorted(read_all(Files(tmp_path))) == ["a", "b"]
    assert staged(tmp_path) == []
