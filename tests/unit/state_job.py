"""A keyed operator at work, without a job: subtasks, their backends and keepers of files, and the life of checkpoints.

Everything that another thread or the driver would do is a step of its own, which comes when the test says: snapshots are
written late, in any order among the subtasks, or never; what the driver decides is heard later still. With `threads` the
writing runs in a thread while the task goes on.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from rocksdb_kit import RocksBackends, Room
from state_kit import MAX_PARALLELISM
from state_model import LIFETIME_S, STATES, Kind, function_with, kind_of, life_of
from storage_kit import Storage

from tidegate.ids import EVENT_TIMERS, CheckpointId
from tidegate.protocol.shared_state import SharedFile, SharedStateRegistry
from tidegate.savepoints.stored_sections import stored_sections
from tidegate.state import tiers
from tidegate.state.backend import bind_states
from tidegate.state.heap import HeapStateBackend
from tidegate.state.key_groups import key_group, key_group_range
from tidegate.state.keys import KeyType, key_type
from tidegate.state.timers import Timer, TimerQueue
from tidegate.storage.state_files import StateFiles
from tidegate.task.keyed_files import HeapFiles, KeyedFiles, RocksFiles, restore_files
from tidegate.testing.clock import ManualClock

Place = tuple[str, Any, bytes]  #: state, normalised key, namespace
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "int": (int, [*range(-12, 12), 1024, 2**63 - 1, -(2**63), 2**63, 2**70]),
    "str": (str, ["", "a", "ab", "key", "ключ", "a\x00b", *map(str, range(20))]),
    "tuple": (tuple[int, str], [(0, "a"), (1, "a"), (1, "b"), (-5, ""), *((at, "x") for at in range(16))]),
    "mixed": (None, [1, True, 1.0, "1", b"1", None, (1, "a"), (True, "a"), float("nan")]),
}
NAMESPACES = [b"", b"", b"", b"w", b"\x00\xff"]
RETAINED = 2
UNDER_WAY = 3
STATES_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What does not change in a run."""

    states: list[str]
    keys: str
    columnar: bool
    incremental: bool
    threads: bool = False


@dataclass
class Content:
    """The model: what the whole operator holds."""

    cells: dict[Place, Any] = field(default_factory=dict)
    timers: set[Timer] = field(default_factory=set)
    watermark: int = 0

    def copy(self) -> Content:
        return Content(dict(self.cells), set(self.timers), self.watermark)


@dataclass
class Checkpoint:
    id: CheckpointId
    content: Content
    now_ms: int
    parts: dict[int, Any]  #: by subtask: StateFiles or sections, None while it is not stored


class Subtask:
    def __init__(self, job: Job, index: int, parallelism: int) -> None:
        self.job = job
        self.index = index
        self.key_groups = key_group_range(index, parallelism, MAX_PARALLELISM)
        self.backend = job.new_backend(self.key_groups)
        self.function = function_with(job.setting.states)
        bind_states(self.function, self.backend, job.setting.columnar)
        self.timers = TimerQueue(self.backend, EVENT_TIMERS)
        self.files = self._keeper() if job.setting.incremental else None
        self.uploads: deque[tuple[CheckpointId, Any]] = deque()
        self.letters: deque[Callable[[KeyedFiles], None]] = deque()
        self.uploading: threading.Thread | None = None
        self.failure: BaseException | None = None
        self.steps = 0
        self.lately: list[Any] = []

    def _keeper(self) -> KeyedFiles:
        attempt, of = self.job.attempt, ("sum", self.index, self.key_groups, self.job.storage)

        def path_of(checkpoint: CheckpointId, name: str) -> str:
            return f"chk-{checkpoint}/a{attempt}/{self.index}/{name}"

        if isinstance(self.backend, HeapStateBackend):
            return HeapFiles(*of, path_of, backend=self.backend)
        return RocksFiles(*of, path_of)

    def at(self, key: Any, namespace: bytes) -> None:
        self.lately = [*self.lately[-5:], key]
        self.steps += 1
        if self.steps % 3 == 0:  # an operator says which keys are coming; nothing may depend on that
            self.backend.expect(self.lately)
        self.backend.set_current_key(key)
        self.backend.set_current_namespace(namespace)

    def upload(self, aborted: bool) -> None:
        """What the uploads thread does with its next snapshot."""
        self.join()
        checkpoint, snapshot = self.uploads.popleft()

        def run() -> None:
            try:
                stored = None if aborted else self._stored(checkpoint, snapshot)
                self.files.let_go(snapshot) if self.files is not None else snapshot.release()
                if stored is not None:
                    self.job.acknowledged(checkpoint, self.index, stored)
            except BaseException as error:
                self.failure = error

        self.uploading = threading.Thread(target=run)
        self.uploading.start()
        if not self.job.setting.threads:
            self.join()

    def _stored(self, checkpoint: CheckpointId, snapshot: Any) -> Any:
        return list(snapshot.sections()) if self.files is None else self.files.store(checkpoint, snapshot)

    def join(self) -> None:
        if self.uploading is not None:
            self.uploading.join()
            self.uploading = None
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.join()
        self.backend.close()


class Job:
    def __init__(self, setting: Setting, dice: random.Random, backends: RocksBackends, on_rocksdb: bool) -> None:
        self.setting = setting
        self.dice = dice
        self.backends = backends
        annotation, keys = KEYS[setting.keys]
        self.key_type: KeyType = key_type(annotation)
        self.keys = [self.key_type.normalise(key) for key in keys]
        self.clock = ManualClock()
        self.storage = Storage()
        self.registry = SharedStateRegistry()
        self.lock = threading.Lock()
        self.attempt = 0
        self.next_id = 1
        self.content = Content()
        self.under_way: dict[CheckpointId, Checkpoint] = {}
        self.retained: dict[CheckpointId, Checkpoint] = {}
        self.subtasks: list[Subtask] = []
        self.recent: deque[Place] = deque(maxlen=60)  #: where something was done
        self.on_rocksdb = on_rocksdb
        self.start(1)

    # -- backends ------------------------------------------------------------------------------------------------------

    def new_backend(self, key_groups: range) -> Any:
        if self.on_rocksdb:
            return self.backends.backend(self.key_type, key_groups, self.clock)
        incremental = self.setting.incremental
        return HeapStateBackend(self.key_type, key_groups, MAX_PARALLELISM, self.clock, incremental=incremental)

    def start(self, parallelism: int) -> None:
        for subtask in self.subtasks:
            subtask.close()
        self.attempt += 1
        self.under_way = {}
        self.subtasks = [Subtask(self, index, parallelism) for index in range(parallelism)]

    def of(self, key: Any) -> Subtask:
        group = key_group(self.key_type.hash(key), MAX_PARALLELISM)
        return next(subtask for subtask in self.subtasks if group in subtask.key_groups)

    @property
    def now_ms(self) -> int:
        return int(self.clock.now * 1000)

    # -- records -------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        place = self.dice.choice(self.setting.states), self.dice.choice(self.keys), self.dice.choice(NAMESPACES)
        self.recent.append(place)
        self._use(place, Kind.act)

    def glance(self) -> None:
        """A few reads of what was changed lately, of one state: snapshots have taken it over, and caches have forgotten it."""
        state = self.dice.choice(self.setting.states)
        places = [place for place in self.recent if place[0] == state]
        for place in self.dice.sample(places, min(6, len(places))):
            self._use(place, Kind.glance)

    def _use(self, place: Place, how: Callable[..., Any]) -> None:
        state, key, namespace = place
        subtask = self.of(key)
        subtask.at(key, namespace)
        handle, life = getattr(subtask.function, state), life_of(state, self.now_ms)
        use = getattr(kind_of(state), how.__name__)
        self._keep(place, use(self.dice, handle, self.content.cells.get(place), life))

    def act_on_many(self) -> None:
        states = [state for state in self.setting.states if kind_of(state).batches]
        if not states or self.setting.keys not in ("int", "str"):
            return
        subtask, state = self.dice.choice(self.subtasks), self.dice.choice(states)
        own = [key for key in self.keys if self.of(key) is subtask and key not in (2**63, 2**70)]
        keys = [self.dice.choice(own) for _ in range(self.dice.randrange(8))] if own else []
        if keys:
            kept = [self.content.cells.get((state, key, b"")) for key in keys]
            handle, life = getattr(subtask.function, state), life_of(state, self.now_ms)
            after = kind_of(state).act_on_many(self.dice, handle, pa.array(keys), kept, life)  # type: ignore[attr-defined]
            for key, cell in zip(keys, after, strict=True):
                self._keep((state, key, b""), cell)

    def _keep(self, place: Place, cell: Any) -> None:
        if cell is None:
            self.content.cells.pop(place, None)
        else:
            self.content.cells[place] = cell

    def read_all(self) -> None:
        for place in [(state, key, ns) for state in self.setting.states for key in self.keys for ns in set(NAMESPACES)]:
            state, key, namespace = place
            subtask = self.of(key)
            subtask.at(key, namespace)
            handle, life = getattr(subtask.function, state), life_of(state, self.now_ms)
            self._keep(place, kind_of(state).read(handle, self.content.cells.get(place), life))

    def time_passes(self) -> None:
        self.clock.advance(self.dice.choice([0.5, 3, 7]))
        for subtask in self.subtasks:
            subtask.backend.clean_up(self.dice.choice([1, 20, 10_000]))

    # -- timers --------------------------------------------------------------------------------------------------------

    def set_timer(self) -> None:
        key, moment = self.dice.choice(self.keys[:3]), self.content.watermark + self.dice.randrange(1, 6)
        subtask, timer = self.of(key), Timer(moment, key, self.dice.choice(NAMESPACES))
        if self.dice.randrange(2):
            subtask.timers.register(key, moment, timer.namespace)
            self.content.timers.add(timer)
        else:
            subtask.timers.delete(key, moment, timer.namespace)
            self.content.timers.discard(timer)

    def fire(self) -> None:
        watermark = self.content.watermark = self.content.watermark + self.dice.randrange(4)
        fired = []
        for subtask in self.subtasks:
            of_subtask = list(subtask.timers.due(watermark))
            assert [timer.timestamp for timer in of_subtask] == sorted(timer.timestamp for timer in of_subtask)
            fired += of_subtask
        expected = {timer for timer in self.content.timers if timer.timestamp <= watermark}
        assert len(fired) == len(expected)
        assert set(fired) == expected
        self.content.timers -= expected

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def take(self) -> None:
        if len(self.under_way) >= UNDER_WAY:
            return
        id = CheckpointId(self.next_id)
        self.next_id += 1
        parts = dict.fromkeys(range(len(self.subtasks)))
        self.under_way[id] = Checkpoint(id, self.content.copy(), self.now_ms, parts)
        for subtask in self.subtasks:
            subtask.backend.clear_current_key()
            subtask.uploads.append((id, subtask.backend.snapshot()))
        if self.dice.randrange(2):
            self.glance()

    def upload(self) -> None:
        waiting = [subtask for subtask in self.subtasks if subtask.uploads]
        if waiting:
            subtask = self.dice.choice(waiting)
            given_up = subtask.uploads[0][0] not in self.under_way
            subtask.upload(aborted=given_up and self.dice.random() < 0.5)  # the letter may come too late

    def acknowledged(self, id: CheckpointId, index: int, stored: Any) -> None:
        with self.lock:
            if isinstance(stored, StateFiles):
                files = [SharedFile(file.path, file.size, CheckpointId(file.checkpoint)) for file in stored.files]
                for path in self.registry.acknowledged(id, files):
                    self.storage.delete(path)
            if id in self.under_way:
                self.under_way[id].parts[index] = stored

    def complete(self) -> None:
        with self.lock:
            stored = [each for each in self.under_way.values() if all(part is not None for part in each.parts.values())]
            if not stored:
                return
            done = self.dice.choice(stored)
            self.under_way = {id: each for id, each in self.under_way.items() if id > done.id}
            self.retained[done.id] = done
            while len(self.retained) > RETAINED:
                del self.retained[min(self.retained)]
            for path in self.registry.completed(min(self.retained)):
                self.storage.delete(path)
        for subtask in self.subtasks:
            subtask.letters.append(lambda files: files.completed(done.id))

    def abort(self) -> None:
        with self.lock:
            if not self.under_way:
                return
            id = self.dice.choice(list(self.under_way))
            del self.under_way[id]
        for subtask in self.subtasks:
            subtask.letters.append(lambda files: files.aborted(id))

    def hear(self) -> None:
        waiting = [subtask for subtask in self.subtasks if subtask.letters]
        if waiting:
            subtask = self.dice.choice(waiting)
            letter = subtask.letters.popleft()
            if subtask.files is not None:
                letter(subtask.files)

    # -- restores ------------------------------------------------------------------------------------------------------

    def fail(self) -> None:
        """A new attempt, from any checkpoint that is retained, at any parallelism, perhaps with the other backend."""
        for subtask in self.subtasks:
            subtask.join()
        if not self.retained:
            return
        checkpoint = self.retained[self.dice.choice(list(self.retained))]
        self.retained = {id: each for id, each in self.retained.items() if id <= checkpoint.id}
        same = self.dice.random() < 0.5
        if not same:
            self.on_rocksdb = self.dice.random() < 0.7
        self.start(len(checkpoint.parts) if same else self.dice.randrange(1, 4))
        self.content = checkpoint.content.copy()
        for subtask in self.subtasks:
            self._restore(subtask, checkpoint)

    def _restore(self, subtask: Subtask, checkpoint: Checkpoint) -> None:
        if subtask.files is None:
            for part in checkpoint.parts.values():
                for section in part:
                    if section.key_group in subtask.key_groups:
                        subtask.backend.restore(section.state, section.kind, [section.rows])
            return
        states = [part for part in checkpoint.parts.values() if set(part.key_groups) & set(subtask.key_groups)]
        if restore_files(subtask.backend, self.storage, states):
            subtask.files.restored(checkpoint.id, states[0])

    def check_retained(self) -> None:
        """What a checkpoint holds, read into another backend that stands still at its moment."""
        if not self.retained:
            return
        checkpoint = self.retained[self.dice.choice(list(self.retained))]
        clock = ManualClock(checkpoint.now_ms / 1000)
        backend = HeapStateBackend(self.key_type, range(MAX_PARALLELISM), MAX_PARALLELISM, clock)
        function = function_with(self.setting.states)
        bind_states(function, backend)
        timers = TimerQueue(backend, EVENT_TIMERS)
        for part in checkpoint.parts.values():
            is_files = isinstance(part, StateFiles)
            for section in stored_sections(self.storage, part, backend.key_groups) if is_files else part:
                backend.restore(section.state, section.kind, [section.rows])
        for state in self.setting.states:
            for key in self.keys:
                for namespace in set(NAMESPACES):
                    backend.set_current_key(key)
                    backend.set_current_namespace(namespace)
                    cell = checkpoint.content.cells.get((state, key, namespace))
                    kind_of(state).read(getattr(function, state), cell, life_of(state, checkpoint.now_ms))
        assert set(timers.due(2**62)) == checkpoint.content.timers

    def everything_expires(self) -> None:
        self.clock.advance(LIFETIME_S)
        for subtask in self.subtasks:
            subtask.join()
            subtask.backend.snapshot().release()  # what it took over is written by the next read of all rows
            subtask.backend.clear_current_key()
            for state in self.setting.states:
                expected = sum(self.of(key) is subtask for name, key, _ in self.content.cells if name == state)
                assert len(list(subtask.backend.entries(state))) <= expected
            for _ in range(2):  # it goes on where it was: in the middle of a table
                subtask.backend.clean_up(100_000)
            for state in self.setting.states:
                assert "_" not in state or not list(subtask.backend.entries(state)), "clean-up has left something"

    def close(self) -> None:
        with ExitStack() as stack:
            for subtask in self.subtasks:
                stack.callback(subtask.close)


STEPS: dict[Callable[[Job], None], int] = {
    Job.act: 300,
    Job.glance: 10,
    Job.act_on_many: 40,
    Job.set_timer: 40,
    Job.fire: 6,
    Job.time_passes: 12,
    Job.take: 14,
    Job.upload: 24,
    Job.complete: 14,
    Job.abort: 3,
    Job.hear: 24,
    Job.fail: 3,
    Job.read_all: 2,
    Job.check_retained: 4,
}
#: Most have a cache that holds some of the keys and forgets them: what has left it is where mistakes are.
ROOMS = [
    Room(1 << 24, 1 << 24),
    Room(0, 0),
    Room(0, 1 << 24),
    *(Room(clean, 1 << 24) for clean in (4000, 6000, 8000, 10_000)),
    Room(8000, 8000),
    Room(4000, 4000),
]


def run(part: str, number: int, backends: RocksBackends, steps: int, on_rocksdb: bool, threads: bool = False) -> None:
    """Runs of one part that follow each other go over all states, a few at a time."""
    seed = f"{part} {number}"
    order = random.Random(part).sample(STATES, len(STATES)) * 2
    dice = random.Random(seed)
    first = number * STATES_AT_ONCE % len(STATES)
    setting = Setting(
        states=order[first : first + STATES_AT_ONCE],
        keys=dice.choice(list(KEYS)),
        columnar=dice.random() < 0.4,
        incremental=dice.random() < 0.7,
        threads=threads,
    )
    backends.room = dice.choice(ROOMS)
    at_once = tiers.AT_ONCE_ROWS
    if threads:
        tiers.AT_ONCE_ROWS = 0  # what is written ahead, and merged, is so in threads of their own, however little it is
    job = Job(setting, dice, backends, on_rocksdb)
    # Snapshots are rare or not, written late or very late.
    weights = STEPS | {Job.take: dice.choice([3, 14]), Job.upload: dice.choice([5, 24])}
    try:
        for step in dice.choices(list(weights), list(weights.values()), k=steps):
            step(job)
        job.read_all()
        job.everything_expires()
    except BaseException as error:
        error.add_note(f"seed {seed!r}: {setting}, {backends.room}, attempt {job.attempt}")
        raise
    finally:
        tiers.AT_ONCE_ROWS = at_once
        job.close()
