"""The database sink against its contract, step by step, with crashes between the steps. Real servers, no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from databases.kit import Order, batch_of, context, ids_in, ledger_of, new_table, orders, prepared_of
from databases.servers import TRANSACTION_TIMEOUT_S, DatabaseServer, Postgres, new_folder, removed_afterwards
from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome
from tidegate.connectors.database import bookkeeping
from tidegate.connectors.database.committables import KeptEpoch, PreparedEpoch, decode
from tidegate.connectors.database.names import TransactionName, new_nonce
from tidegate.connectors.database.session import Settled, connect
from tidegate.connectors.database.sink import DatabaseSink, DatabaseUpsertSink
from tidegate.connectors.database.urls import parse_url
from tidegate.errors import ConfigurationError, ConnectorError, TypeDeclarationError
from tidegate.ids import AttemptId
from tidegate.types import record_type

DONE, ALREADY, RETRY, LOST = CommitOutcome.DONE, CommitOutcome.ALREADY_DONE, CommitOutcome.RETRY, CommitOutcome.LOST
BOTH_WAYS = pytest.mark.parametrize("commit", ["two-phase", "ledger"])


class Rig:
    """A table and a sink; everything that it opens is closed at the end."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self.table = new_table(server)
        self._opened: list[Any] = []

    def sink(self, **options: Any) -> DatabaseSink:
        return DatabaseSink(self.server.url, self.table, **{"lock_timeout_s": 5.0, **options})

    def writer(self, sink: Any, **about: Any) -> Any:
        self._opened.append(sink.writer(context(job=self.table, **about)))
        return self._opened[-1]

    def committer(self, sink: DatabaseSink, clock: Any = None, **about: Any) -> Any:
        where = context(job=self.table, **about)
        self._opened.append(sink.committer(where if clock is None else replace(where, clock=clock)))
        return self._opened[-1]

    def prepared(self, sink: DatabaseSink, *ids: int, checkpoint: int = 1, **about: Any) -> list[bytes]:
        """What a writer leaves for one epoch, and then it is gone."""
        writer = self.writer(sink, **about)
        writer.write(batch_of(orders(*ids)))
        committables = writer.prepare(checkpoint)
        writer.close()
        return committables

    def clean_up(self, sink: DatabaseSink, attempt: tuple[int, int], uncommitted: list[bytes]) -> None:
        sink.clean_up(self.table, "out", AttemptId(*attempt), uncommitted)

    def ids(self) -> list[int]:
        return ids_in(self.server, self.table)

    def close(self) -> None:
        for thing in self._opened:
            thing.close()


@pytest.fixture
def rig(server: DatabaseServer) -> Iterator[Rig]:
    rig = Rig(server)
    yield rig
    rig.close()
    for name in prepared_of(server):
        server.settle(name, commit=False)


# -- the two phases -------------------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_records_are_seen_after_the_commit_and_once_however_often_it_is_asked(rig: Rig, commit: str) -> None:
    sink = rig.sink(commit=commit)
    writer = rig.writer(sink)
    writer.write(batch_of(orders(1, 2)))
    writer.write(batch_of(orders(3)))
    writer.flush()

    committables = writer.prepare(1)
    writer.write(batch_of(orders(4)))  # of the next epoch
    writer.flush()

    assert rig.ids() == []
    committer = rig.committer(sink)
    assert committer.commit(committables) == [DONE]
    assert rig.ids() == [1, 2, 3]
    assert committer.commit(committables) == [ALREADY]
    assert rig.committer(sink, subtask=1, attempt="g2-a1").commit(committables) == [ALREADY]
    assert rig.ids() == [1, 2, 3]


@BOTH_WAYS
def test_an_epoch_without_records_leaves_nothing_to_commit(rig: Rig, commit: str) -> None:
    writer = rig.writer(rig.sink(commit=commit))

    writer.write(batch_of([]))

    assert writer.prepare(1) == []
    assert prepared_of(rig.server) == []


def test_auto_prepares_where_the_server_allows_it(rig: Rig) -> None:
    (committable,) = rig.prepared(rig.sink(), 1)

    assert isinstance(decode(committable), PreparedEpoch)


def test_auto_keeps_the_records_where_the_server_does_not_prepare() -> None:
    with removed_afterwards(Postgres(new_folder("pg0"), prepared=0)) as server:
        server.start()
        rig = Rig(server)
        sink = rig.sink()

        committables = rig.prepared(sink, 1, 2)

        assert isinstance(decode(committables[0]), KeptEpoch)
        assert rig.committer(sink).commit(committables) == [DONE]
        assert rig.ids() == [1, 2]
        with pytest.raises(ConfigurationError, match=r"max_prepared_transactions is 0.*commit='ledger'"):
            rig.writer(rig.sink(commit="two-phase"))
        rig.close()


@BOTH_WAYS
def test_the_ledger_has_a_row_exactly_for_what_is_committed(rig: Rig, commit: str) -> None:
    sink = rig.sink(commit=commit)
    first, second = rig.prepared(sink, 1, 2, checkpoint=7), rig.prepared(sink, 3, checkpoint=8)

    assert ledger_of(rig.server, decode(first[0]).id) == []
    rig.committer(sink).commit(second)

    assert ledger_of(rig.server, decode(first[0]).id) == []
    assert ledger_of(rig.server, decode(second[0]).id) == [("8", "1")]


# -- servers that die -----------------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_a_server_killed_twice_between_prepare_and_commit_loses_and_doubles_nothing(rig: Rig, commit: str) -> None:
    sink = rig.sink(commit=commit)
    committables = rig.prepared(sink, 1, 2, 3)
    rig.server.restart()
    assert rig.ids() == []
    rig.server.restart()

    assert rig.committer(sink).commit(committables) == [DONE]
    rig.server.restart()

    assert rig.committer(sink).commit(committables) == [ALREADY]
    assert rig.ids() == [1, 2, 3]


def test_a_server_that_is_away_is_asked_again(rig: Rig) -> None:
    sink = rig.sink()
    committables = rig.prepared(sink, 1)
    committer = rig.committer(sink)
    rig.server.kill()

    with pytest.raises(ConnectorError, match="cannot be reached"):
        committer.commit(committables)

    rig.server.start()
    assert committer.commit(committables) == [DONE]


def test_a_server_killed_under_a_writer_ends_the_attempt_and_leaves_nothing(rig: Rig) -> None:
    sink = rig.sink()
    writer = rig.writer(sink)
    writer.write(batch_of(orders(1)))
    writer.flush()
    rig.server.restart()

    with pytest.raises(ConnectorError):
        writer.prepare(1)

    assert prepared_of(rig.server) == []
    assert rig.ids() == []


def test_a_quiet_epoch_outlives_the_servers_patience_with_idle_transactions(rig: Rig) -> None:
    sink = rig.sink()
    writer = rig.writer(sink)
    writer.write(batch_of(orders(1)))
    writer.flush()
    time.sleep(TRANSACTION_TIMEOUT_S + 0.5)  # the server would end any session that does not ask to stay

    assert rig.committer(sink).commit(writer.prepare(1)) == [DONE]
    assert rig.ids() == [1]


# -- what older attempts leave --------------------------------------------------------------------------------------------


def test_a_restore_rolls_back_what_no_checkpoint_names_and_keeps_what_one_names(rig: Rig) -> None:
    sink = rig.sink()
    named = rig.prepared(sink, 1, attempt="g1-a1")
    rig.prepared(sink, 2, attempt="g1-a2")
    newer = rig.prepared(sink, 3, attempt="g2-a1")  # this driver was stopped, and another has taken over

    rig.clean_up(sink, (1, 3), named)

    assert len(prepared_of(rig.server)) == 2
    assert rig.committer(sink).commit(named + newer) == [DONE, DONE]
    assert rig.ids() == [1, 3]


def test_other_sinks_and_other_peoples_transactions_are_left_alone(rig: Rig) -> None:
    sink = rig.sink()
    other_uid = sink.writer(context(job=rig.table, uid="another"))
    other_uid.write(batch_of(orders(5)))
    other_uid.prepare(1)
    other_uid.close()
    foreign = rig.server.prepare_foreign(rig.table)

    rig.clean_up(sink, (9, 9), [])

    assert len(prepared_of(rig.server)) == 1
    rig.server.settle_foreign(foreign)


def test_the_locks_of_an_older_attempt_are_ended_before_the_next_writes(rig: Rig) -> None:
    sink = rig.sink()
    older = rig.writer(sink, attempt="g1-a1")
    older.write(batch_of(orders(1, 2)))
    older.flush()  # an open transaction that holds ids 1 and 2
    rig.clean_up(sink, (1, 2), [])

    assert rig.committer(sink, attempt="g1-a2").commit(rig.prepared(sink, 1, 2, attempt="g1-a2")) == [DONE]
    with pytest.raises(ConnectorError):  # the old worker wakes up
        older.prepare(1)

    assert rig.ids() == [1, 2]
    assert prepared_of(rig.server) == []


def test_an_old_committer_that_wakes_up_late_changes_nothing(rig: Rig) -> None:
    sink = rig.sink(commit="ledger", key="id")
    committables = rig.prepared(sink, 1)
    late = rig.committer(sink, attempt="g1-a1")
    rig.committer(sink, attempt="g1-a2").commit(committables)
    rig.server.ask(f"UPDATE {rig.table} SET customer = 'newer'")

    assert late.commit(committables) == [ALREADY]

    assert rig.server.ask(f"SELECT customer FROM {rig.table}") == [("newer",)]


def test_a_committer_of_an_older_attempt_that_hangs_in_its_transaction_is_ended(rig: Rig) -> None:
    sink = rig.sink(commit="ledger")
    committables = rig.prepared(sink, 1)
    hanging = rig.committer(sink, attempt="g1-a1")
    assert hanging.commit([]) == []
    session = hanging._open_session()
    session.begin()
    bookkeeping.write_entry(session, decode(committables[0]).id, "x", 1, 1)  # and there it is stopped

    rig.clean_up(sink, (1, 2), committables)

    assert rig.committer(sink, attempt="g1-a2").commit(committables) == [DONE]
    assert rig.ids() == [1]
    session.close()


def test_a_transaction_that_was_rolled_back_from_outside_stops_the_job_after_a_while(rig: Rig) -> None:
    sink = rig.sink()
    committables = rig.prepared(sink, 1, 2)
    (name,) = prepared_of(rig.server)
    rig.server.settle(name, commit=False)
    now = [100.0]
    committer = rig.committer(sink, clock=lambda: now[0])

    assert committer.commit(committables) == [RETRY]  # somebody may be committing it at this moment
    now[0] += 4.0
    assert committer.commit(committables) == [RETRY]
    now[0] += 2.0
    assert committer.commit(committables) == [LOST]

    assert "2 records" in committer.lost_reason
    assert rig.table in committer.lost_reason


def test_a_transaction_that_was_committed_by_hand_counts_as_done(rig: Rig) -> None:
    sink = rig.sink()
    committables = rig.prepared(sink, 1)
    (name,) = prepared_of(rig.server)
    rig.server.settle(name, commit=True)

    assert rig.committer(sink).commit(committables) == [ALREADY]


def test_what_its_own_session_still_holds_is_not_taken_for_lost(mariadb: DatabaseServer) -> None:
    table = new_table(mariadb)
    name = TransactionName("0" * 16, AttemptId(1, 1), 0, 0, new_nonce())
    url = parse_url(mariadb.url)
    holder, other = connect(url, ""), connect(url, "")
    holder.begin(name)
    holder.insert(table, ["id"], [(1,)], ())
    holder.prepare(name)

    assert other.commit_prepared(name) is Settled.BUSY
    holder.close()
    while (settled := other.commit_prepared(name)) is Settled.BUSY:
        pass
    assert settled is Settled.DONE
    other.close()


def test_committables_behind_one_that_must_wait_wait_too(rig: Rig) -> None:
    sink = rig.sink()
    first, second = rig.prepared(sink, 1), rig.prepared(sink, 2, checkpoint=2)
    rig.server.settle(
        next(name for name in prepared_of(rig.server) if decode(first[0]).id.rpartition(":")[2] in name), commit=False
    )

    assert rig.committer(sink, clock=lambda: 0.0).commit(first + second) == [RETRY, RETRY]
    assert rig.ids() == []


# -- upserts --------------------------------------------------------------------------------------------------------------


def test_an_exactly_once_upsert_leaves_the_newest_value_of_each_key(rig: Rig) -> None:
    sink = rig.sink(key=["id"])
    writer = rig.writer(sink)
    writer.write(batch_of([Order(1, "a", 1.0), Order(2, "b", 1.0), Order(1, "c", 2.0)]))
    first = writer.prepare(1)
    writer.write(batch_of([Order(1, "d", 3.0)]))
    second = writer.prepare(2)

    assert rig.committer(sink).commit(first + second) == [DONE, DONE]
    assert rig.committer(sink).commit(first + second) == [ALREADY, ALREADY]
    assert rig.server.ask(f"SELECT id, customer FROM {rig.table} ORDER BY id") == [("1", "d"), ("2", "b")]


@dataclass
class Score:
    name: str
    points: int


def test_of_keys_that_the_database_takes_for_one_the_newest_counts(rig: Rig) -> None:
    """Without regard to case, as MySQL compares unless it is told otherwise."""
    column = "varchar(40) PRIMARY KEY"
    if isinstance(rig.server, Postgres):
        collation = f"no_case_{rig.table}"
        rig.server.ask(
            f"CREATE COLLATION {collation} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
        column = f"varchar(40) COLLATE {collation} PRIMARY KEY"
    else:
        column = "varchar(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY"
    rig.table = new_table(rig.server, f"name {column}, points bigint")
    scores = [Score("ann", 1), Score("Ann", 2), Score("bob", 3), Score("ann", 4)]
    sink = rig.sink(key="name")
    writer = sink.writer(context(job=rig.table, type=Score))
    writer.write(batch_of(scores, Score))

    assert rig.committer(sink).commit(writer.prepare(1)) == [DONE]
    assert rig.server.ask(f"SELECT points FROM {rig.table} ORDER BY points") == [("3",), ("4",)]


def test_an_upsert_never_writes_over_the_row_of_another_key(rig: Rig) -> None:
    """PostgreSQL refuses such a record; the others would take the row that any unique index finds."""
    rig.table = new_table(rig.server, "id bigint PRIMARY KEY, customer varchar(40) UNIQUE, amount double precision")
    sink, refused = rig.sink(key="id"), r"refuses a record|'customer' \(customer\) may find the row of another key"

    def write() -> None:
        writer = rig.writer(sink)
        writer.write(batch_of([Order(1, "ann", 1.0), Order(2, "ann", 2.0)]))
        rig.committer(sink).commit(writer.prepare(1))

    with pytest.raises(ConfigurationError, match=refused):
        write()
    assert rig.ids() == []


def test_an_index_that_holds_the_key_or_what_records_have_not_is_in_nobodys_way(rig: Rig) -> None:
    columns = (
        "id bigint PRIMARY KEY, customer varchar(40), amount double precision, number int UNIQUE, UNIQUE (customer, id)"
    )
    rig.table = new_table(rig.server, columns)
    sink = rig.sink(key="id")
    writer = rig.writer(sink)
    writer.write(batch_of([Order(1, "ann", 1.0), Order(2, "ann", 2.0), Order(1, "bob", 3.0)]))
    assert rig.committer(sink).commit(writer.prepare(1)) == [DONE]
    assert rig.server.ask(f"SELECT id, customer FROM {rig.table} ORDER BY id") == [("1", "bob"), ("2", "ann")]


def test_upserts_at_once_are_seen_after_a_flush_and_may_come_again(rig: Rig) -> None:
    sink = DatabaseUpsertSink(rig.server.url, rig.table, key="id")
    writer = rig.writer(sink)
    for _ in range(2):
        writer.write(batch_of([Order(1, "a", 1.0), Order(2, "b", 2.0), Order(1, "c", 3.0)]))
        writer.flush()

    assert writer.prepare(1) == []
    assert rig.server.ask(f"SELECT id, customer FROM {rig.table} ORDER BY id") == [("1", "c"), ("2", "b")]


def test_an_older_upserting_worker_is_cut_off_before_the_next_attempt(rig: Rig) -> None:
    sink = DatabaseUpsertSink(rig.server.url, rig.table, key="id")
    older = rig.writer(sink, attempt="g1-a1")
    older.write(batch_of([Order(1, "old", 1.0)]))
    sink.clean_up(rig.table, "out", AttemptId(1, 2), [])
    newer = rig.writer(sink, attempt="g1-a2")
    newer.write(batch_of([Order(1, "new", 1.0)]))
    newer.flush()

    with pytest.raises(ConnectorError):
        older.flush()

    assert rig.server.ask(f"SELECT customer FROM {rig.table}") == [("new",)]


# -- values ---------------------------------------------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_the_server_does_not_have_is_a_bad_record_and_not_tried_again(
    rig: Rig, commit: str, number: float
) -> None:
    sink = rig.sink(commit=commit)

    def write() -> Any:
        writer = rig.writer(sink)
        writer.write(batch_of([Order(1, "a", number)]))
        return rig.committer(sink).commit(writer.prepare(1))

    if isinstance(rig.server, Postgres):  # it has them
        assert write() == [DONE]
        return
    with pytest.raises(TypeDeclarationError if commit == "two-phase" else ConfigurationError, match="refuses a record"):
        write()
    assert rig.ids() == []


@BOTH_WAYS
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "-09:30"])
def test_a_moment_is_the_same_in_whatever_zone_the_stream_has_it(rig: Rig, commit: str, zone: str) -> None:
    at = "timestamptz" if isinstance(rig.server, Postgres) else "datetime"
    rig.table = new_table(rig.server, f"id bigint PRIMARY KEY, at {at}")
    type = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms", zone))])
    moment = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
    columns = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([moment], type.field("at").type)], schema=type)
    sink = rig.sink(commit=commit)
    writer = rig.writer(sink, type=type)
    writer.write(Batch(record_type(type), columns=columns))
    assert rig.committer(sink).commit(writer.prepare(1)) == [DONE]

    zoned = "at AT TIME ZONE 'UTC'" if isinstance(rig.server, Postgres) else "at"
    assert rig.server.ask(f"SELECT {zoned} FROM {rig.table}") == [("2026-07-01 12:00:00",)]


# -- bounds ---------------------------------------------------------------------------------------------------------------


def test_an_epoch_that_is_too_large_for_the_checkpoint_says_so(rig: Rig) -> None:
    writer = rig.writer(rig.sink(commit="ledger", max_epoch_bytes=1000))

    writer.write(batch_of(orders(*range(10))))
    with pytest.raises(ConnectorError, match=r"max_epoch_bytes is 1000.*Checkpoint more often"):
        writer.write(batch_of(orders(*range(40))))


def test_the_ledger_forgets_by_age_and_keeps_what_a_checkpoint_names(rig: Rig) -> None:
    sink = rig.sink(commit="ledger", ledger_days=30)
    epochs = [rig.prepared(sink, number, checkpoint=number) for number in (1, 2, 3)]
    for epoch in epochs:
        rig.committer(sink).commit(epoch)
    old = "now() - interval '31 days'" if rig.server.kind == "postgresql" else "now() - INTERVAL 31 DAY"
    for epoch in epochs[:2]:
        rig.server.ask(f"UPDATE tidegate_ledger SET written_at = {old} WHERE id = '{decode(epoch[0]).id}'")

    rig.clean_up(sink, (1, 2), epochs[1])

    assert [bool(ledger_of(rig.server, decode(epoch[0]).id)) for epoch in epochs] == [False, True, True]


# -- bad input ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WithMore(Order):
    colour: str = ""


@dataclass(frozen=True)
class NoId:
    customer: str


MISTAKES = {
    "wrong password": (
        lambda rig: DatabaseSink(rig.server.url_of(password="wrong secret"), rig.table), Order, "user and password"
    ),
    "no database": (lambda rig: DatabaseSink(rig.server.url_of(database="nowhere"), rig.table), Order, "nowhere"),
    "no table": (lambda rig: DatabaseSink(rig.server.url, "no_such_table"), Order, "no table 'no_such_table'"),
    "unknown column": (lambda rig: rig.sink(), WithMore, "no such column"),
    "missing column": (lambda rig: rig.sink(), NoId, "needs a value for 'id'"),
    "untyped stream": (lambda rig: rig.sink(), None, "has no type"),
    "no such key": (lambda rig: rig.sink(key="customer"), Order, "no unique index on exactly"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_the_way_out_and_without_the_password(rig: Rig, mistake: str) -> None:
    make, type, expected = MISTAKES[mistake]
    sink = make(rig)

    with pytest.raises(ConfigurationError) as raised:
        rig.writer(sink, type=type)

    assert expected in str(raised.value)
    assert_no_secret(rig, raised.value)


BAD_RECORDS = pytest.mark.parametrize(
    "bad", [Order(1, "x" * 100, 1.0), Order(1, "y" * (20 << 20), 1.0)], ids=["too long", "20 MiB"]
)


@BAD_RECORDS
def test_a_record_that_the_table_refuses_is_a_clear_error(rig: Rig, bad: Order) -> None:
    writer = rig.writer(rig.sink())
    writer.write(batch_of([bad]))

    with pytest.raises(TypeDeclarationError) as raised:
        writer.prepare(1)

    assert f"The table {rig.table!r} refuses a record" in str(raised.value)
    assert_no_secret(rig, raised.value)


@BAD_RECORDS
def test_a_record_that_is_refused_at_the_commit_stops_the_job_with_the_reason(rig: Rig, bad: Order) -> None:
    sink = rig.sink(commit="ledger")
    writer = rig.writer(sink)
    writer.write(batch_of([bad]))
    committables = writer.prepare(1)

    with pytest.raises(ConfigurationError) as raised:
        rig.committer(sink).commit(committables)

    assert f"The table {rig.table!r} refuses a record" in str(raised.value)
    assert "resume the job" in str(raised.value)
    assert_no_secret(rig, raised.value)
    assert rig.ids() == []


def test_a_name_that_postgresql_has_folded_is_guessed(postgres: DatabaseServer) -> None:
    with pytest.raises(ConfigurationError, match=r"no table 'Orders'.*in lower case: 'orders'\?"):
        DatabaseSink(postgres.url, "Orders").writer(context())


def test_an_unreachable_server_is_named(rig: Rig) -> None:
    sink = DatabaseSink("postgresql://u:topsecret@127.0.0.1:1/d", "t")

    with pytest.raises(ConnectorError, match=r"postgresql://u@127.0.0.1:1/d.*cannot be reached") as raised:
        sink.writer(context())

    assert "topsecret" not in str(raised.value)


def test_whoever_may_not_create_tables_gets_the_statements(postgres: DatabaseServer) -> None:
    postgres.ask("CREATE ROLE reader LOGIN PASSWORD 'pw'", as_admin=True)
    postgres.ask("CREATE DATABASE strict_shop", as_admin=True)
    postgres.ask(
        "CREATE TABLE orders (id bigint); GRANT ALL ON orders TO reader", as_admin=True, database="strict_shop"
    )
    sink = DatabaseSink(postgres.url_of("reader", "pw", "strict_shop"), "orders")

    with pytest.raises(ConfigurationError, match="CREATE TABLE IF NOT EXISTS tidegate_ledger"):
        sink.writer(context())


def assert_no_secret(rig: Rig, error: BaseException) -> None:
    while error is not None:
        assert rig.server.password not in str(error)
        assert "wrong secret" not in str(error)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
