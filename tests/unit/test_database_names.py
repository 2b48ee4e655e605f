"""Names, URLs and committables of the database sinks: no server needed."""

from __future__ import annotations

import pickle
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.connectors.database.committables import KeptEpoch, PreparedEpoch, batches_of, decode, encode
from tidegate.connectors.database.mysql import _name_of, _xid
from tidegate.connectors.database.names import SessionName, TransactionName, session_is_before, sink_id
from tidegate.connectors.database.rows import newest_of_each_key
from tidegate.connectors.database.session import connect
from tidegate.connectors.database.sink import DatabaseSink
from tidegate.connectors.database.urls import parse_url
from tidegate.errors import ConfigurationError
from tidegate.ids import AttemptId

NAME = TransactionName("0123456789abcdef", AttemptId(3, 12), 7, 41, "deadbeef")


def test_a_transaction_is_found_again_by_its_name() -> None:
    assert str(NAME) == "tidegate:0123456789abcdef:g3-a12:7:41:deadbeef"
    assert TransactionName.parse(str(NAME)) == NAME


@pytest.mark.parametrize("text", ["", "tidegate:x", "somebody:else", str(NAME) + "0", str(NAME).replace("g3", "h3")])
def test_the_names_of_others_are_not_taken_for_ours(text: str) -> None:
    assert TransactionName.parse(text) is None


@pytest.mark.property
@given(st.lists(st.tuples(st.sampled_from(["a", "A", "b", "B", "c"]), st.integers())))
def test_the_newest_rows_of_keys_leave_what_all_rows_would_have_left(rows: list[tuple[str, int]]) -> None:
    """In a table that takes keys of another case for the same, and in one that does not."""
    newest = newest_of_each_key(rows, ["key", "value"], ["key"])

    assert len({key for key, _ in newest}) == len(newest)
    for same in (str.lower, str):
        assert {same(key): value for key, value in newest} == {same(key): value for key, value in rows}


def test_an_xa_id_holds_the_same_name_in_its_two_parts() -> None:
    gtrid, bqual, format_id = (part.strip("'") for part in _xid(NAME).split(","))

    assert _name_of(gtrid, bqual) == NAME
    assert max(len(gtrid), len(bqual)) <= 64
    assert format_id == "29799"
    assert _name_of("tidegate:x", "y") is None


def test_only_sessions_of_the_same_sink_and_an_earlier_attempt_are_older() -> None:
    name = str(SessionName("0123456789abcdef", AttemptId(2, 3), 0, "w", "deadbeef"))

    assert session_is_before(name, "0123456789abcdef", AttemptId(2, 4))
    assert session_is_before(name, "0123456789abcdef", AttemptId(3, 1))
    assert not session_is_before(name, "0123456789abcdef", AttemptId(2, 3))
    assert not session_is_before(name, "0123456789abcdef", AttemptId(1, 9))
    assert not session_is_before(name, "f" * 16, AttemptId(2, 4))
    assert not session_is_before("psql", "f" * 16, AttemptId(2, 4))
    assert len(name) <= 63, "PostgreSQL cuts longer names"


def test_two_targets_never_share_an_id() -> None:
    ids = {
        sink_id(*parts)
        for parts in [("a", "b", "c", "d"), ("ab", "", "c", "d"), ("a", "b", "c", "e"), ("a", "bc", "", "d")]
    }

    assert len(ids) == 4


def test_a_password_is_in_no_text() -> None:
    url = parse_url("postgres://me:p%40ss%2Fw@db.example:6543/shop?sslmode=require")

    assert (url.kind, url.port, url.password, url.options) == ("postgresql", 6543, "p@ss/w", (("sslmode", "require"),))
    assert str(url) == "postgresql://me@db.example:6543/shop"
    assert "p@ss" not in repr(url)
    assert url.scrub("no entry for p@ss/w or p%40ss%2Fw") == "no entry for *** or ***"
    assert pickle.loads(pickle.dumps(url)) == url


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:///x?pw=topsecret",
        "postgresql://u:topsecret@/db",
        "postgresql://u:topsecret@host",
        "mysql://u:topsecret@host:port/db",
        "mysql://u:topsecret@host/db?password=topsecret",
        "topsecret",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_url(text)

    assert "topsecret" not in str(raised.value)


def test_a_password_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "from outside")

    assert parse_url("mysql://me@host/db", "SHOP_PASSWORD").password == "from outside"
    with pytest.raises(ConfigurationError, match="NO_SUCH_VARIABLE"):
        parse_url("mysql://me@host/db", "NO_SUCH_VARIABLE")
    with pytest.raises(ConfigurationError, match="not both"):
        parse_url("mysql://me:x@host/db", "SHOP_PASSWORD")


@pytest.mark.parametrize(
    ("url", "module", "extra"), [("postgresql", "psycopg", "postgres"), ("mysql", "pymysql", "mysql")]
)
def test_a_missing_driver_names_the_extra(url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigurationError, match=rf"pip install 'tidegate\[{extra}\]'"):
        connect(parse_url(f"{url}://u@127.0.0.1:1/d"), "")


def test_upserts_are_not_prepared() -> None:
    with pytest.raises(ConfigurationError, match="commit='ledger'"):
        DatabaseSink("mysql://u@h/d", "t", key="id", commit="two-phase")


def test_committables_are_read_again_and_others_are_refused() -> None:
    prepared = PreparedEpoch(str(NAME), 3, "t")
    kept = KeptEpoch(str(NAME), 2, "t", ["a"], [], 5)
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})

    assert decode(encode(prepared)) == prepared
    assert decode(encode(kept, [batch])) == kept
    assert batches_of(encode(kept, [batch])) == [batch]
    for data in [b"", b"{}", b'{"kind": "other"}', b"\x80\x04pickle"]:
        with pytest.raises(ValueError):
            decode(data)
    with pytest.raises(ValueError, match="version 9"):
        decode(encode(PreparedEpoch(str(NAME), 3, "t", version=9)))
