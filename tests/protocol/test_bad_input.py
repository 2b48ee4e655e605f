"""The table "Bad input, word for word" of docs/storage.md: each of its lines is made to happen, with every way of storing
state where that matters, and says what the table says. A line without a case here, or a case without a line, fails."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from protocol_kit import Numbered, environment, fresh_storage, log_records

import tidegate as tg
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import ConfigurationError, TidegateError, TypeDeclarationError
from tidegate.state.declarations import declared_states
from tidegate.state.operator_state import OperatorStateStore
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.local_store import LocalStore
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

PAGE = (Path(__file__).parents[2] / "docs" / "storage.md").read_text(encoding="utf-8")
#: backend, incremental, and how the names of its files end
LAYOUTS = {
    "hashmap in full": ("hashmap", False, ".snapshot"),
    "hashmap increments": ("hashmap", True, ".state"),
    "rocksdb in full": ("rocksdb", False, ".snapshot"),
    "rocksdb increments": ("rocksdb", True, ".state"),
}
SOURCE = Numbered(1, splits=4, per_split=60, rows_per_poll=(3, 1, 2))


def table() -> dict[str, list[str]]:
    """What is wrong -> the sentences that may be said of it."""
    section = PAGE.partition("## Bad input, word for word")[2].partition("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    return {line[0].strip(): re.findall(r"`([^`]+)`", line[2]) for line in lines}


def says(text: str, sentence: str) -> bool:
    """`...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in sentence.split("..."))
    return re.search(pattern, " ".join(text.split())) is not None


# -- jobs --------------------------------------------------------------------------------------------------------------


class Tally(tg.KeyedProcessFunction):
    """(key, number, n-th of the key)."""

    count = tg.ValueState(int, default=0)
    names = tg.ValueState(list[str])
    seen = tg.ListState(int)

    def __init__(self, spoil: Callable[[Tally], None] | None = None) -> None:
        self.spoil = spoil

    def process_element(self, row: tuple[int, int], ctx: tg.Context) -> Iterator[tuple[int, int, int]]:
        self.count.set(self.count.get() + 1)
        self.seen.add(row[1])
        if self.spoil is not None and self.count.get() == 5:
            self.spoil(self)
        yield (ctx.key, row[1], self.count.get())


def job(
    layout: str, storage: str, spoil: Callable[[Tally], None] | None = None, **settings: Any
) -> tg.StreamEnvironment:
    backend, incremental, _ = LAYOUTS[layout]
    limits = {"inline_limit_bytes": 0, **settings.pop("limits", {})}
    env = environment(storage=storage, every="10ms", limits=limits, **settings)
    env.state_backend(backend, incremental=incremental, memory="4mb")
    rows = env.from_source(SOURCE, uid="source", returns=tuple[int, int]).key_by(lambda row: row[1] % 3, key_type=int)
    rows.process(Tally(spoil), uid="tally", returns=tuple[int, int, int]).sink_to(LedgerSink("out"), uid="out")
    return env


def assert_exact() -> None:
    rows = ledger("out").rows()
    assert sorted(number for _, number, _ in rows) == sorted(SOURCE.numbers())
    for key in range(3):
        places = sorted(nth for found, _, nth in rows if found == key)
        assert places == list(range(1, len(places) + 1))


def failure(env: tg.StreamEnvironment) -> str:
    """What the job fails with, at its first failure."""
    result = run_in_process(env.restart_strategy("none"))
    assert result.status is JobStatus.FAILED
    return str(result.error)


def refusal(ask: Callable[[], Any]) -> str:
    with pytest.raises((TypeDeclarationError, ConfigurationError)) as caught:
        ask()
    return str(caught.value)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def unstorable_type(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return refusal(lambda: tg.ValueState(object))


def declared_twice(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    class Confused(Tally):
        count = tg.ValueState(str)  # type: ignore[assignment]

    return refusal(lambda: declared_states(Confused))


def asked_twice(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    store = OperatorStateStore()
    store.list_state("rows", str)
    return refusal(lambda: store.list_state("rows", int))


def misfit(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return failure(job(layout, fresh_storage(), lambda tally: tally.count.set("five")))  # type: ignore[arg-type]


def deep_misfit(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return failure(job(layout, fresh_storage(), lambda tally: tally.names.set(["a", 5])))  # type: ignore[list-item]


class Disk:
    """Writes files of state until `fails` says otherwise."""

    def __init__(self, patched: pytest.MonkeyPatch, layout: str, error: int, fails: Callable[[Disk], bool]) -> None:
        self.calls = self.written_bytes = 0
        write = LocalStore._write_beside

        def maybe(store: LocalStore, target: str, data: Any) -> str:
            if target.endswith(LAYOUTS[layout][2]):
                self.calls += 1
                if fails(self):
                    raise OSError(error, os.strerror(error))
                self.written_bytes += memoryview(data).nbytes
            return write(store, target, data)

        patched.setattr(LocalStore, "_write_beside", maybe)


def no_space(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patched:
        disk = Disk(patched, layout, errno.ENOSPC, lambda disk: disk.written_bytes > 10_000)
        said = failure(job(layout, f"file://{folder}"))
        assert disk.written_bytes > 10_000
    assert run_in_process(job(layout, f"file://{folder}", resume="latest")).status is JobStatus.FINISHED
    assert_exact()
    return said


def away_for_a_while(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Beside the first failure: with `tolerable_failures` the same job continues, in the same attempt."""
    with monkeypatch.context() as patched:
        disk = Disk(patched, layout, errno.EIO, lambda disk: 3 <= disk.calls < 7)
        result = run_in_process(job(layout, f"file://{folder}/tolerant", tolerable_failures=10))
    assert disk.calls >= 7
    assert (result.status, result.attempts) == (JobStatus.FINISHED, 1)
    assert_exact()
    forget_ledgers()
    with monkeypatch.context() as patched:
        Disk(patched, layout, errno.EIO, lambda disk: 3 <= disk.calls < 7)
        return failure(job(layout, f"file://{folder}/strict"))


def damaged(change: Callable[[bytes], bytes | None]) -> Callable[[str, Path, pytest.MonkeyPatch], str]:
    def case(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        storage = interrupted(layout)
        store, newest = open_store(storage), log_records(storage)[-1]
        assert newest.latest is not None
        slots = load_checkpoint(store, newest.latest).slots
        paths = [slot.file.path for slot in slots] + [
            file.path for slot in slots for state in slot.states for file in state.files
        ]
        path = max(
            (path for path in paths if path is not None and path.endswith(LAYOUTS[layout][2])),
            key=lambda path: len(store.get(path)),
        )
        put_instead(storage, path, change)
        return nothing_is_restored(layout, storage)

    return case


def damaged_metadata(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    storage = interrupted(layout)
    latest = log_records(storage)[-1].latest
    assert latest is not None
    put_instead(storage, latest.metadata_path, changed)
    return nothing_is_restored(layout, storage)


def damaged_log(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    storage = interrupted(layout)
    put_instead(storage, open_store(storage).list("job/log")[-1], changed)
    return nothing_is_restored(layout, storage)


def too_large(layout: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return failure(job(layout, "memory", name=layout.replace(" ", "-"), limits={"memory_state_limit_bytes": 500}))


def interrupted(layout: str) -> str:
    """The storage of a job whose only driver has died after its third checkpoint."""
    storage = fresh_storage()
    with pytest.raises(AllDriversDied):
        InProcessRun(job(layout, storage), 4, [Crash("driver.after-log", nth=3)], max_drivers=1).run()
    return storage


def nothing_is_restored(layout: str, storage: str) -> str:
    """Nothing newer than the checkpoint is committed; what belongs to it may be."""
    before = set(ledger("out").committed)
    try:
        result = run_in_process(job(layout, storage, resume="latest"))
        assert (result.status, result.attempts) == (JobStatus.FAILED, 1)
        said = str(result.error)
    except TidegateError as error:
        said = str(error)
    committed = ledger("out").committed
    assert before <= committed.keys()
    assert {int(name[:8]) for name in committed} <= {1, 2, 3}, "something was processed"
    return said


def put_instead(storage: str, path: str, change: Callable[[bytes], bytes | None]) -> None:
    store = open_store(storage)
    data = change(store.get(path))
    if data is None:
        store.delete(path)
    else:
        store.put(path, data)


def changed(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


ONCE = ("hashmap in full",)  #: where it does not matter how state is stored
CASES: dict[str, tuple[Callable[[str, Path, pytest.MonkeyPatch], str], tuple[str, ...]]] = {
    "a type that cannot be stored": (unstorable_type, ONCE),
    "a state declared twice with different types": (declared_twice, ONCE),
    "operator state asked for twice with different types": (asked_twice, ONCE),
    "a value of another type": (misfit, tuple(LAYOUTS)),
    "a part of a value of another type": (deep_misfit, tuple(LAYOUTS)),
    "storage without space": (no_space, tuple(LAYOUTS)),
    "storage that fails for a while": (away_for_a_while, tuple(LAYOUTS)),
    "a file of state that was changed": (damaged(changed), tuple(LAYOUTS)),
    "a file of state that was cut short": (damaged(lambda data: data[: len(data) // 3]), tuple(LAYOUTS)),
    "a file of state that is empty": (damaged(lambda data: b""), tuple(LAYOUTS)),
    "a file of state that is missing": (damaged(lambda data: None), tuple(LAYOUTS)),
    "a metadata file that was changed or cut short": (damaged_metadata, ONCE),
    "a record of the log that was changed or cut short": (damaged_log, ONCE),
    "state too large for the driver's memory": (too_large, ("hashmap in full", "rocksdb in full")),
}


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


def test_the_table_and_the_cases_are_the_same() -> None:
    assert list(table()) == list(CASES)
    assert all(table().values())


@pytest.mark.parametrize(
    ("what", "layout"), [(what, layout) for what, (_, layouts) in CASES.items() for layout in layouts]
)
def test_bad_input_says_what_the_table_says(
    what: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = CASES[what][0](layout, tmp_path, monkeypatch)
    print(said)

    assert any(says(said, sentence) for sentence in table()[what]), said
