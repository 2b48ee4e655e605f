"""Tables as sources, and `tidegate sinks in-doubt`. Real servers, no Spark."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tidegate as tg
from databases.kit import Order, batch_of, context, ids_in, new_table, orders, prepared_of
from databases.servers import DatabaseServer
from tidegate.cli.main import main
from tidegate.connectors.contract import ReaderContext, Split
from tidegate.connectors.database.sink import DatabaseSink
from tidegate.connectors.database.table_source import PAGE_ROWS, DatabaseTable, _time_text
from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.ids import AttemptId
from tidegate.testing.crash_points import Crash
from tidegate.testing.runner import run_in_process
from tidegate.types import NaiveDatetime, record_type


def fill(server: DatabaseServer, table: str, *ids: int) -> None:
    sink = DatabaseSink(server.url, table, commit="ledger")
    writer = sink.writer(context(job=table))
    writer.write(batch_of(orders(*ids)))
    committer = sink.committer(context(job=table))
    committer.commit(writer.prepare(1))
    committer.close()


def poll_all(reader: Any, source: DatabaseTable) -> list[Any]:
    """To the end; then the reader is closed."""
    rows: list[Any] = []
    with contextlib.closing(reader):
        while not all(split.finished for split in reader.splits()):
            records = reader.poll(1e9)
            if records is not None:
                rows += record_type(source.record_type).to_rows(records)
    return rows


def reader_of(source: DatabaseTable, splits: list[Split]) -> Any:
    reader = source.reader(ReaderContext(0, 1, lambda: 0.0, lambda seconds: None))
    reader.add_splits([split for split in splits if not split.finished])
    return reader


# -- reading --------------------------------------------------------------------------------------------------------------


def test_a_table_is_read_once_also_when_the_reader_is_restored_in_the_middle(server: DatabaseServer) -> None:
    table = new_table(server)
    ids = [-5, 0, 3, *range(100, 100 + 3 * PAGE_ROWS), 10**12]
    fill(server, table, *ids)
    source = DatabaseTable(server.url, table, type=Order, splits=3)
    splits = source.discover_splits(1)
    rows: list[Any] = []

    for _ in range(3):
        reader = reader_of(source, splits)
        records = reader.poll(1e9)
        rows += [] if records is None else record_type(Order).to_rows(records)
        kept = [split for split in splits if split.finished]
        splits = kept + [Split(s.id, json.loads(json.dumps(s.position)), s.finished) for s in reader.splits()]
        reader.close()
        fill(server, table, 10**13 + len(rows))  # beyond the bounds of the first look: another job's business
    reader = reader_of(source, splits)
    rows += poll_all(reader, source)

    assert sorted(row.id for row in rows) == ids
    assert rows[0] in orders(*ids)


def test_an_empty_table_and_a_table_with_a_text_key(server: DatabaseServer) -> None:
    empty = DatabaseTable(server.url, new_table(server))
    named = new_table(server, "name varchar(20) PRIMARY KEY, n int")
    server.ask(f"INSERT INTO {named} VALUES ('b', 2), ('a', 1), ('c', NULL)")
    text = DatabaseTable(server.url, named)

    assert poll_all(reader_of(empty, empty.discover_splits(4)), empty) == []
    assert len(text.discover_splits(4)) == 1
    assert poll_all(reader_of(text, text.discover_splits(4)), text) == [
        {"name": "a", "n": 1},
        {"name": "b", "n": 2},
        {"name": "c", "n": None},
    ]


@pytest.mark.usefixtures("the_dead_leave_connections_behind")
def test_a_job_from_a_table_to_a_table_survives_crashes(server: DatabaseServer) -> None:
    there, here = new_table(server), new_table(server)
    fill(server, there, *range(300))
    env = tg.StreamEnvironment(f"copy-{there}", parallelism=2)
    env.checkpointing(every="20ms", storage=f"memory://copy-{there}-{server.kind}")
    env.restart_strategy("fixed-delay", attempts=100, delay="0s")
    source = tg.DatabaseTable(server.url, there, type=Order)
    env.from_source(source, uid="there").sink_to(tg.DatabaseSink(server.url, here, commit="ledger"), uid="here")

    result = run_in_process(env, seed=3, crashes=[Crash("slot.after-ack", times=2), Crash("slot.restored")])

    assert result.attempts > 2
    assert ids_in(server, here) == list(range(300))


def test_a_table_without_a_usable_key_or_with_other_columns_is_refused(server: DatabaseServer) -> None:
    pair = new_table(server, "a int, b int, PRIMARY KEY (a, b)")
    dated = new_table(server, "day date PRIMARY KEY")
    table = new_table(server)

    for mistake, expected in [
        (lambda: DatabaseTable(server.url, pair), "no unique index on one column"),
        (lambda: DatabaseTable(server.url, dated), "along an integer or a text"),
        (lambda: DatabaseTable(server.url, table, key="customer"), "no unique index on one column 'customer'"),
        (lambda: DatabaseTable(server.url, "nothing"), "no table 'nothing'. Create it, or correct its name"),
        (lambda: DatabaseTable(server.url_of(password="wrong secret"), table), "user and password of the URL"),
        (lambda: DatabaseTable(server.url, table, type=tuple[int, str]), "no column f0, f1"),
    ]:
        with pytest.raises(ConfigurationError, match=expected) as raised:
            mistake()
        assert f"{server.kind}://" in str(raised.value) or "table" in str(raised.value)
        assert not [secret for secret in (server.password, "wrong secret") if secret in str(raised.value)]


#: By none of them is one row with a = 'abc1' told from all others.
NOT_UNIQUE = {
    "postgres": ["(a, b)", "((substr(a, 1, 3)))", "(a, (b + 1))"],
    "mariadb": ["(a, b)", "(a(3))"],
}


@pytest.mark.parametrize(("kind", "index"), [(kind, index) for kind, of in NOT_UNIQUE.items() for index in of])
def test_an_index_that_tells_rows_apart_in_another_way_is_not_a_key(
    kind: str, index: str, request: pytest.FixtureRequest
) -> None:
    """Rows with one value would be read in part, or each be written over the other."""
    server = request.getfixturevalue(kind)
    table = new_table(server, "a varchar(40) NOT NULL, b int")
    server.ask(f"CREATE UNIQUE INDEX an_index_{table} ON {table} {index}")

    with pytest.raises(ConfigurationError, match="no unique index on one column"):
        DatabaseTable(server.url, table, key="a")
    with pytest.raises(ConfigurationError, match="no unique index on exactly"):
        DatabaseSink(server.url, table, key="a").writer(context(job=table, type=Pair))


@dataclass
class Pair:
    a: str
    b: int


def test_keys_that_no_position_can_hold_are_refused_and_uuids_are_not(server: DatabaseServer) -> None:
    with pytest.raises(ConfigurationError, match="along an integer or a text"):
        DatabaseTable(server.url, new_table(server, "id numeric(20, 2) PRIMARY KEY"))
    table = new_table(server, f"id {'uuid' if server.kind == 'postgresql' else 'char(36)'} PRIMARY KEY")
    codes = sorted(str(UUID(int=number << 96)) for number in range(PAGE_ROWS + 3))
    server.ask(f"INSERT INTO {table} VALUES " + ", ".join(f"('{code}')" for code in codes))
    source = DatabaseTable(server.url, table)
    reader = reader_of(source, source.discover_splits(1))
    first = record_type(source.record_type).to_rows(reader.poll(1e9))
    (split,) = reader.splits()
    reader.close()

    rest = poll_all(reader_of(source, [Split(split.id, json.loads(json.dumps(split.position)))]), source)

    assert [row["id"] for row in first + rest] == codes


def test_a_small_integer_that_is_neither_true_nor_false_is_not_taken_for_one(mariadb: DatabaseServer) -> None:
    """PostgreSQL has a type for what is true or not."""
    server = mariadb
    table = new_table(server, "id bigint PRIMARY KEY, flag tinyint(1)")
    server.ask(f"INSERT INTO {table} VALUES (1, 0), (2, 1), (3, NULL)")
    source = DatabaseTable(server.url, table)
    assert [row["flag"] for row in poll_all(reader_of(source, source.discover_splits(1)), source)] == [
        False,
        True,
        None,
    ]

    server.ask(f"INSERT INTO {table} VALUES (4, 7)")

    with pytest.raises(TypeDeclarationError, match="column 'flag'"):
        poll_all(reader_of(source, source.discover_splits(1)), source)


def test_columns_without_a_type_of_their_own_come_as_their_text(server: DatabaseServer) -> None:
    table = new_table(server, "id bigint PRIMARY KEY, price numeric(20, 4), clock time(3), tags json")
    server.ask(f"INSERT INTO {table} VALUES (1, 12.34, '01:02:03.5', '[1, 2]')")
    source = DatabaseTable(server.url, table)

    (row,) = poll_all(reader_of(source, source.discover_splits(1)), source)

    assert (row["price"], row["clock"], json.loads(row["tags"])) == ("12.3400", "01:02:03.500000", [1, 2])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(), "00:00:00"),
        (timedelta(seconds=3723), "01:02:03"),
        (timedelta(days=34, hours=22, minutes=59, seconds=59), "838:59:59"),
        (-timedelta(hours=1, microseconds=5), "-01:00:00.000005"),
    ],
)
def test_a_time_is_the_text_that_databases_write(value: timedelta, text: str) -> None:
    assert _time_text(value) == text


def test_a_column_of_another_type_than_declared_is_named(server: DatabaseServer) -> None:
    @dataclass
    class Wrong:
        id: int
        customer: int

    table = new_table(server)
    fill(server, table, 1)
    source = DatabaseTable(server.url, table, type=Wrong)

    with pytest.raises(TypeDeclarationError, match=f"column 'customer' of table '{table}'"):
        poll_all(reader_of(source, source.discover_splits(1)), source)


@dataclass
class AllTypes:
    id: int
    text: str
    number: float
    flag: bool
    data: bytes
    day: date
    moment: datetime
    clock: NaiveDatetime
    price: Decimal
    code: UUID
    tags: list[int]
    nothing: int | None


def test_values_of_every_type_come_back_as_they_went(server: DatabaseServer) -> None:
    kinds = ["bytea", "timestamptz", "timestamp", "uuid", "json"]
    if server.kind == "mysql":
        kinds = ["blob", "datetime(6)", "datetime(6)", "varchar(40)", "json"]
    data, moment, clock, code, tags = kinds
    table = new_table(
        server,
        f"id bigint PRIMARY KEY, text varchar(40), number double precision, flag boolean, data {data}, day date, "
        f"moment {moment}, clock {clock}, price numeric(20, 4), code {code}, tags {tags}, nothing int",
    )
    row = AllTypes(
        1, "tab\tline\nü'\"\\N", 0.1, True, b"\x00\xff'", date(2026, 2, 28), datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59), Decimal("12.3400"), UUID(int=7), [1, 2], None,
    )  # fmt: skip
    for commit in ("two-phase", "ledger"):
        sink = DatabaseSink(server.url, table, commit=commit)
        writer = sink.writer(context(job=table, type=AllTypes))
        writer.write(batch_of([AllTypes(**{**row.__dict__, "id": len(commit)})], AllTypes))
        committer = sink.committer(context(job=table, type=AllTypes))
        committer.commit(writer.prepare(1))
        writer.close()
        committer.close()

    @dataclass
    class Read:
        id: int
        text: str
        number: float
        flag: bool
        data: bytes
        day: date
        moment: datetime
        clock: NaiveDatetime
        price: Decimal
        nothing: int | None

    source = DatabaseTable(server.url, table, type=Read)
    found = poll_all(reader_of(source, source.discover_splits(1)), source)

    assert [read.id for read in found] == [6, 9]
    for read in found:
        assert {**read.__dict__, "id": 1} == {name: getattr(row, name) for name in Read.__annotations__}
    for code_text, tags_text in server.ask(f"SELECT code, tags FROM {table}"):
        assert (code_text, json.loads(tags_text)) == (str(UUID(int=7)), [1, 2])


# -- in doubt -------------------------------------------------------------------------------------------------------------


def url_without_password(server: DatabaseServer) -> str:
    return re.sub(r":[^:@/]*@", "@", server.url)


def leave_in_doubt(server: DatabaseServer, table: str, job: str, *ids: int, uid: str = "out") -> str:
    writer = DatabaseSink(server.url, table).writer(context(job=job, uid=uid))
    writer.write(batch_of(orders(*ids)))
    (committable,) = writer.prepare(1)
    writer.close()
    return str(json.loads(committable)["id"])


def test_what_is_in_doubt_is_listed_and_settled_by_hand(
    server: DatabaseServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEGATE_DATABASE_PASSWORD", server.password)
    url, table = url_without_password(server), new_table(server)
    first, second = leave_in_doubt(server, table, "one", 1), leave_in_doubt(server, table, "two", 2)

    assert main(["sinks", "in-doubt", url]) == 1
    shown = capsys.readouterr().out
    assert first in shown
    assert f"job two, sink out, table {table}, subtask 0" in shown
    assert "With --job NAME --storage URI" in shown
    assert main(["sinks", "in-doubt", url, "--job", "one", "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["id"] == first
    assert main(["sinks", "in-doubt", url, "--commit", first]) == 0
    assert main(["sinks", "in-doubt", url, "--rollback", second, "--json"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"committed: {first}",
        json.dumps({"id": second, "settled": "rolled back"}),
    ]
    assert main(["sinks", "in-doubt", url]) == 0
    assert "nothing is in doubt" in capsys.readouterr().out
    assert main(["sinks", "in-doubt", url, "--rollback", second]) == 1
    assert "has no prepared transaction" in capsys.readouterr().err
    assert ids_in(server, table) == [1]


@pytest.mark.usefixtures("the_dead_leave_connections_behind")
def test_by_the_checkpoint_what_it_names_is_committed_and_the_rest_rolled_back(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver dies for good when a checkpoint is in the log and nothing of it is committed.

    It is the last one, of the end of the input: all rows are in it, however the run was scheduled."""
    monkeypatch.setenv("SHOP", server.password)
    table = new_table(server)
    job = f"gone-{table}"
    env = tg.StreamEnvironment(job, parallelism=2)
    env.checkpointing(every="10min", storage=f"file://{tmp_path}")
    stream = env.from_collection(orders(*range(200)), uid="orders", type=Order).rebalance()
    stream.sink_to(tg.DatabaseSink(server.url, table), uid="table")
    from tidegate.testing.runner import AllDriversDied, InProcessRun

    with pytest.raises(AllDriversDied):
        InProcessRun(env, 5, [Crash("driver.after-log")], max_drivers=1, zombies=False).run()
    assert ids_in(server, table) == []
    leave_in_doubt(server, table, job, 998, uid="table")  # of a checkpoint that is not in the log
    before = set(prepared_of(server))
    leave_in_doubt(server, table, "another", 999)
    (other,) = set(prepared_of(server)) - before
    options = ["sinks", "in-doubt", url_without_password(server), "--password-env", "SHOP", "--job", job]
    options += ["--storage", f"file://{tmp_path}"]

    assert main(options) == 1
    shown = capsys.readouterr().out
    assert shown.count("advice: commit") == 2  # one of each subtask
    assert shown.count("advice: roll back") == 1
    assert server.password not in shown
    from tidegate.connectors.database.session import connect
    from tidegate.connectors.database.urls import parse_url

    session = connect(parse_url(server.url), "")
    sink = next(iter({line.split(":")[1] for line in shown.splitlines() if line.startswith("tidegate:")}))
    session.end_sessions(sink, AttemptId(99, 1))  # the dead driver's workers, which are objects of this process
    session.close()
    assert main([*options, "--settle"]) == 0

    assert ids_in(server, table) == list(range(200))
    assert prepared_of(server) == [other]
    server.settle(other, commit=False)


@pytest.mark.usefixtures("the_dead_leave_connections_behind")
def test_a_running_job_is_not_settled_from_outside(
    server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEGATE_DATABASE_PASSWORD", server.password)
    table = new_table(server)
    env = tg.StreamEnvironment("running", parallelism=1)
    env.checkpointing(every="20ms", storage=f"file://{tmp_path}")
    env.from_collection(orders(1), uid="o", type=Order).sink_to(tg.DatabaseSink(server.url, table), uid="out")
    run_in_process(env)  # so that the log exists
    before = set(prepared_of(server))
    leave_in_doubt(server, table, "running", 5)
    alive = DatabaseSink(server.url, table).writer(context(job="running", attempt="g1-a2"))
    alive.write(batch_of(orders(6)))
    alive.flush()

    options = ["sinks", "in-doubt", url_without_password(server), "--job", "running", "--storage", f"file://{tmp_path}"]
    assert main([*options, "--settle"]) == 2
    assert "Stop it first" in capsys.readouterr().err
    alive.close()
    (name,) = set(prepared_of(server)) - before
    server.settle(name, commit=False)
