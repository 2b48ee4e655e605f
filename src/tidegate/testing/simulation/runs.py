"""One run of a job in its simulated outside: from its first driver to its end, whatever happens to it. Driver; one thread."""

from __future__ import annotations

import copy
import errno
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from tidegate.api.environment import StreamEnvironment
from tidegate.config import JobConfig, RestartSettings
from tidegate.connectors import file_sink
from tidegate.connectors.contract import Sink, Source
from tidegate.connectors.database.names import sink_id
from tidegate.connectors.database.sink import DatabaseSink, DatabaseUpsertSink
from tidegate.coordinator.job import JobRun
from tidegate.coordinator.observing import AttemptStarted, JobEvent, JobStatus
from tidegate.errors import ConfigurationError, ConnectorError, JobFolderInUse, TidegateError
from tidegate.graph.logical import LogicalGraph
from tidegate.graph.specs import SinkSpec, SourceSpec
from tidegate.launch import check_shippable
from tidegate.settings.choices import RestartKind
from tidegate.storage import memory_store
from tidegate.storage.store import open_store
from tidegate.testing.ledger_sink import forget_ledgers
from tidegate.testing.runner import InProcessRun, Stuck
from tidegate.testing.simulation.comparing import Rows, counted
from tidegate.testing.simulation.databases import modelled_databases
from tidegate.testing.simulation.misfortunes import Misfortune, StorageFails
from tidegate.testing.simulation.outside import Outside, ToldCrashPoints, ToldStore, opened, replaced
from tidegate.testing.simulation.sinks import Door, door, failing_calls, folder_of, instead, outside_in_words, watched
from tidegate.testing.simulation.sources import RECORDS, SlowSource, given_input, needs_input

MAX_DRIVERS = 40
MAX_STARTS = 12  #: by whoever starts the program again when it has failed for want of its storage
MAX_ACTIONS = 3_000_000


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it."""

    rows: dict[str, Rows]  #: what each sink has at the end, by uid
    trouble: str = ""  #: it did not end as it should
    story: Sequence[str] = ()
    happened: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0


class SimulatedJob:
    """A job as its program has built it; can be run again and again.

    :param records: how many records of each source are read; None: all, and RECORDS of one without an end.
    :param inputs: files of records in place of sources, by their uids.
    :param instead: uids of sinks in whose place a model of a transactional outside is put.
    :raises ConfigurationError: naming what there is no model for, and what to do.
    """

    def __init__(
        self,
        env: StreamEnvironment,
        config: JobConfig,
        records: int | None = None,
        inputs: Mapping[str, str] | None = None,
        instead: Sequence[str] = (),
    ) -> None:
        self.env = env
        self.config = config
        self.records = records
        self.inputs = dict(inputs or {})
        self.instead = frozenset(instead)
        self.sources: dict[str, Source] = {}
        self.sinks: dict[str, Sink] = {}
        for uid, operator in env._graph.operators.items():
            if isinstance(operator.spec, SourceSpec):
                self.sources[uid] = operator.spec.source
            if isinstance(operator.spec, SinkSpec):
                self.sinks[uid] = operator.spec.sink
        env._graph.validate()
        self._check()
        # A copy for each driver: it has built its job anew, and remembers nothing of the one before.
        graph = copy.copy(env._graph)
        graph.operators = {
            uid: replace(
                operator,
                uid_given=True,
                spec=SourceSpec(given_input(self.sources[uid], self.inputs[uid]))
                if uid in self.inputs
                else operator.spec,
            )
            for uid, operator in graph.operators.items()
        }
        check_shippable(graph)
        self._graph = cloudpickle.dumps(graph)

    def _check(self) -> None:
        for option, named, there in (("--input", self.inputs, self.sources), ("--instead", self.instead, self.sinks)):
            for uid in named:
                if uid not in there:
                    raise ConfigurationError(
                        f"{option} {uid}: the job has no such operator; it has {', '.join(there)}."
                    )
        for uid, source in self.sources.items():
            if uid not in self.inputs and (why := needs_input(source)):
                raise ConfigurationError(
                    f"{why}: give the records of {uid!r} as a file, --input {uid}=records.jsonl (.csv, .parquet, .txt)."
                )
        for uid, sink in self.sinks.items():
            if uid not in self.instead and not outside_in_words(sink):
                raise ConfigurationError(
                    f"simulate has no model of {type(sink).__name__}, the sink {uid!r}: every run would write to the real "
                    "outside. Give its class at_place(folder), which gives the same sink in that folder, and "
                    f"read_back(), which gives what a reader finds there; or leave it out with --instead {uid}: its records "
                    "go to a transactional sink in memory then, and none of its own code runs."
                )

    def calls(self) -> dict[str, Sequence[str]]:
        """What can fail in the models, by sink."""
        return {uid: () if uid in self.instead else failing_calls(sink) for uid, sink in self.sinks.items()}

    def outsides(self) -> dict[str, str]:
        """What stands in for that of each sink, in words."""
        return {
            uid: "left out: a transactional sink in memory" if uid in self.instead else outside_in_words(sink)
            for uid, sink in self.sinks.items()
        }

    def run(self, order: int, misfortunes: Sequence[Misfortune] = ()) -> Ran:
        """`order`: what happens first, of all that may."""
        folder = tempfile.mkdtemp(prefix="tidegate-simulated-")
        try:
            with (
                opened(folder, misfortunes) as outside,
                modelled_databases(outside, self._by_sink_id()),
                _failing_links(outside, self._file_sinks(outside)),
            ):
                return _Life(self, outside, order).live()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            forget_ledgers(folder)

    def _by_sink_id(self) -> dict[str, str]:
        return {
            sink_id(self.env.name, uid, sink.url.database, sink.table): uid
            for uid, sink in self.sinks.items()
            if isinstance(sink, DatabaseSink | DatabaseUpsertSink)
        }

    def _file_sinks(self, outside: Outside) -> dict[str, str]:
        """By their folders in this run."""
        return {
            f"{folder_of(uid, outside)}/": uid
            for uid, sink in self.sinks.items()
            if isinstance(sink, file_sink.FileSink)
        }

    def graph(self, outside: Outside, few: int) -> tuple[LogicalGraph, dict[str, Door]]:
        """A new one, with its sinks in this outside."""
        graph: LogicalGraph = cloudpickle.loads(self._graph)
        doors: dict[str, Door] = {}
        for uid, operator in graph.operators.items():
            match operator.spec:
                case SourceSpec(source):
                    limit = self.records if self.records is not None or source.bounded else RECORDS
                    slow = SlowSource(source, few, limit, outside.name)
                    graph.operators[uid] = replace(operator, spec=SourceSpec(slow))
                case SinkSpec(sink):
                    (edge, *_) = graph.inputs_of(uid)
                    record_type = graph.operators[edge.upstream].outputs[edge.tag]
                    real = instead(folder_of(uid, outside)) if uid in self.instead else sink
                    doors[uid] = door(real, uid, record_type, outside)
                    graph.operators[uid] = replace(operator, spec=SinkSpec(watched(doors[uid], uid, outside)))
        return graph, doors


class _Life:
    """Of one run."""

    def __init__(self, job: SimulatedJob, outside: Outside, order: int) -> None:
        self._job = job
        self._outside = outside
        self._order = order
        rng = random.Random(f"shape {order}")
        self._few = rng.choice([1, 1, 2, 5])
        self._doors: dict[str, Door] = {}
        self._last: _DriversRun  #: of the newest start
        self._storage = f"memory://{outside.name}"
        self._store = ToldStore(open_store(self._storage), outside)
        self._fails = any(isinstance(each, StorageFails) for each in outside.misfortunes)
        self._config = replace(
            job.config,
            interval_s=rng.choice([0.01, 0.01, 0.02, 0.05]),
            min_pause_s=0.0,
            timeout_s=600.0,
            storage=self._storage,
            resume=None,
            tolerable_failures=1_000_000,
            restart=RestartSettings(kind=RestartKind.FIXED_DELAY, delay_s=0.0, attempts=1_000_000)
            if outside.misfortunes
            else RestartSettings(kind=RestartKind.NONE),
            rest=False,
            local_recovery=False,
            state_folder=outside.folder,
        )

    def live(self) -> Ran:
        try:
            trouble = self._starts()
            rows = {} if trouble else self._read()
        finally:
            memory_store.forget(self._outside.name)
            memory_store.forget(f"{self._outside.name}-sinks")
        checkpoints = self._last.world.view.completed
        return Ran(rows, trouble, self._outside.story, self._outside.happened, checkpoints)

    def _starts(self) -> str:
        """Start by start, as long as it fails because its storage did. What is wrong, if it is; "" at a good end."""
        trouble = ""
        for start in range(MAX_STARTS):
            config = replace(self._config, resume="latest") if start and _has_log(self._storage) else self._config
            run = _DriversRun(self, config, self._order * 100 + start)
            if start:
                run.world.collected = self._last.world.collected
            self._last = run
            run.world.view.subscribe(self._tell)
            try:
                result = run.run()
            except JobFolderInUse as error:
                if start and error.context.get("finished"):
                    return ""
                trouble = str(error)
            except (Stuck, TidegateError) as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if result.status is JobStatus.FINISHED:
                    return ""
                trouble = f"the job ended {result.status.value}: {result.error}"
            if not self._fails:
                return trouble
            self._outside.story.append("the program is started again")
        return trouble or "the job never came to its end"

    def _tell(self, event: JobEvent) -> None:
        if isinstance(event, AttemptStarted) and self._outside.story:
            of = "from the beginning" if not event.restored_from else f"from checkpoint {event.restored_from}"
            self._outside.story.append(f"attempt {event.attempt} continues {of}")

    def _read(self) -> dict[str, Rows]:
        collected = self._last.world.collected
        return {uid: counted(each.read_back(self._outside, collected)) for uid, each in self._doors.items()}

    def new_graph(self) -> LogicalGraph:
        graph, self._doors = self._job.graph(self._outside, self._few)
        return graph


class _DriversRun(InProcessRun):
    """Each driver has a job of its own, as its program has built it."""

    def __init__(self, life: _Life, config: JobConfig, seed: int) -> None:
        env: Any = copy.copy(life._job.env)
        env._graph = life.new_graph()
        self._life = life
        super().__init__(
            env,
            seed,
            config=config,
            store=life._store,
            crash_points=ToldCrashPoints(life._outside),
            max_drivers=MAX_DRIVERS,
            max_actions=MAX_ACTIONS,
        )

    def new_driver(self, config: JobConfig) -> JobRun:
        self._env._graph = self._life.new_graph()
        return super().new_driver(config)


def _has_log(storage: str) -> bool:
    return any("/log/" in path for path in open_store(storage).list(""))


def _failing_links(outside: Outside, sinks: Mapping[str, str]) -> AbstractContextManager[None]:
    """Inside, the publishing link of a file sink may fail, or be there with its answer lost. `sinks`: uids by folder."""
    real = file_sink._link

    def link(staged: str, final: str) -> None:
        uid = next((uid for folder, uid in sinks.items() if final.startswith(folder)), "")
        try:
            outside.failing(uid, "link", lambda: real(staged, final))
        except ConnectorError as error:
            raise OSError(errno.EIO, error.message) from None

    return replaced(file_sink, "_link", link)
