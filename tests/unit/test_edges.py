"""The sending side of an edge: where each record goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg
from tidegate.batch import Batch
from tidegate.graph.plan import plan_job
from tidegate.ids import SlotId
from tidegate.task.edges import EdgeWriter
from tidegate.task.operators.base import OperatorFailed
from tidegate.task.outbox import Outbox
from tidegate.wire.frame import decode_frame
from tidegate.wire.records import decode_records
from tidegate.wire.seal import FrameSeal

RECEIVERS = 5


class Owner:
    """The operator that writes."""

    bytes_out = 0


class Edge:
    """A hash edge with five receivers."""

    def __init__(self, record: Any, key: Any, key_type: Any = None) -> None:
        env = tg.StreamEnvironment("edges", parallelism=RECEIVERS)
        stream = env.from_collection([], type=record, uid="source")
        keyed = stream.key_by(*key) if isinstance(key, tuple) else stream.key_by(key, key_type=key_type)
        keyed.process(Nothing(), uid="keyed", returns=int).collect(uid="out")
        env._built.taken_up = True
        plan = plan_job("edges", env._graph, RECEIVERS)
        self._seal = FrameSeal(b"key")
        self._edge = plan.edges[0]
        self._outbox = Outbox(self._seal, SlotId(0, 0), RECEIVERS)
        self._writer = EdgeWriter(plan, self._edge, 0, self._outbox, Owner())  # type: ignore[arg-type]

    def write(self, *rows: Any) -> None:
        self._writer.write(Batch(self._edge.record_type, rows=list(rows)))

    def sent(self) -> dict[Any, int]:
        """To which subtask each record went."""
        self._writer.flush()
        went: dict[Any, int] = {}
        for to, row in self._outbox.take(1 << 30):
            frame = decode_frame(self._seal, SlotId(1, to), memoryview(row))
            for record in decode_records(frame, self._edge.record_type).rows():
                assert record not in went
                went[record] = frame.target
        return went


class Nothing(tg.KeyedProcessFunction):
    def process_element(self, record: Any, ctx: tg.Context) -> list[int]:
        return []


CASES: list[tuple[str, Any, Any, Any, Callable[[int], Any]]] = [
    ("int", int, lambda record: record, int, lambda n: n * 7919 - 100_000),
    ("large int", int, lambda record: record * 2**60, int, lambda n: n),
    ("text", str, lambda record: record, str, lambda n: "ключ"[: n % 5] + str(n)),
    ("float", float, lambda record: record, float, lambda n: n / 7),
    ("parts", tuple[int, str], lambda record: (record[1], record[0]), tuple[str, int], lambda n: (n, f"k{n}")),
    ("by place", tuple[int, str], (1,), None, lambda n: (n, f"k{n}")),
    ("by two places", tuple[int, str], (0, 1), None, lambda n: (n, f"k{n}")),
]


@pytest.mark.parametrize(("record", "key", "key_type", "make"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_record_goes_to_the_same_subtask_alone_and_among_others(
    record: Any, key: Any, key_type: Any, make: Callable[[int], Any]
) -> None:
    records = [make(n) for n in range(200)]
    alone, together = Edge(record, key, key_type), Edge(record, key, key_type)
    for each in records:
        alone.write(each)
    together.write(*records)

    went = together.sent()
    assert set(went.values()) == set(range(RECEIVERS))
    assert alone.sent() == went


def test_a_key_function_that_fails_on_a_record_alone_fails_as_among_others() -> None:
    def key(record: int) -> int:
        return 1 // record

    for rows in ([0], [1, 0]):
        with pytest.raises(OperatorFailed) as failed:
            Edge(int, key, int).write(*rows)
        assert isinstance(failed.value.cause, ZeroDivisionError)


def test_a_key_that_is_none_of_its_type_is_refused_alone_and_among_others() -> None:
    for rows in ([7], [7, 8]):
        with pytest.raises(OperatorFailed, match="str"):
            Edge(int, lambda record: record, str).write(*rows)
