"""Plants faults in a copy of the source, one at a time, and expects the tests to fail for each.

A fault is a text that must stand exactly once in its file, and what takes its place. The unchanged copy runs first and
must pass. The last line of the output is JSON; the exit status is 1 when a fault survives.

    python tools/mutants.py             all
    python tools/mutants.py NAME ...    these
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 2
TEST_TIMEOUT_S = 90  #: a fault may well make a test hang
RUN_TIMEOUT_S = 330

#: Quick ones first. Of the property test only some cases: with a fault in, few are needed.
TESTS = [
    "tests/unit/test_plan.py",
    "tests/unit/test_wire.py",
    "tests/unit/test_held.py",
    "tests/unit/test_inbox.py",
    "tests/unit/test_mailbox.py",
    "tests/unit/test_heap_increments.py",
    "tests/unit/test_local_copies.py",
    "tests/unit/test_state_ttl.py",
    "tests/unit/test_connector_tables.py::test_what_was_prepared_on_a_line_that_the_job_has_left_is_committed_when_it_comes_back",
    "tests/protocol/test_shared_state.py",
    "tests/protocol/test_alignment.py",
    "tests/protocol/test_checkpointing.py",
    "tests/protocol/test_attempt.py",
    "tests/protocol/test_credit.py",
    "tests/protocol/test_restarts.py",
    "tests/protocol/test_restoring.py",
    "tests/protocol/test_slot.py",
    "tests/protocol/test_unaligned_slot.py",
    "tests/protocol/test_scripted_source.py",
    "tests/protocol/test_damage_and_takeover.py",
    "tests/protocol/test_in_process_jobs.py",
    "tests/protocol/test_failing_storage_and_user_code.py",
    "tests/protocol/test_incremental_jobs.py::test_without_failures",
    "tests/protocol/test_exactly_once_property.py::test_each_record_is_applied_once[0]",
    "tests/protocol/test_exactly_once_property.py::test_each_record_is_applied_once[1]",
    "tests/protocol/test_lifecycle_at_a_stop.py",
    "tests/protocol/test_stopping.py",
    "tests/protocol/test_savepoint_jobs.py::test_a_snapshot_is_never_given_the_id_of_a_savepoint",
    "tests/protocol/test_savepoint_jobs.py::test_a_crash_at_each_step_of_a_stop_leaves_a_whole_job_or_a_whole_savepoint",
    "tests/protocol/test_savepoint_jobs.py::test_files_of_a_plain_native_savepoint_are_never_deleted_by_the_job",
    "tests/protocol/test_savepoint_jobs.py::test_a_claimed_native_savepoint_goes_when_no_checkpoint_needs_its_files",
    "tests/protocol/test_evolution.py::test_nothing_is_built_on_files_of_a_state_that_has_changed",
]


@dataclass(frozen=True, slots=True)
class Change:
    """In `file` (below src/tidegate), `new` instead of `old`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    what: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    passed: bool
    seconds: float
    caught_by: str  #: the test that failed first


MUTANTS = (
    Mutant(
        "records-behind-a-suspend",
        "slots go on behind the savepoint of a stop",
        (
            Change(
                "protocol/checkpoint_events.py",
                "        return self in (Purpose.SUSPEND, Purpose.RESCALE)\n",
                "        return self is Purpose.RESCALE\n",
            ),
        ),
    ),
    Mutant(
        "id-of-a-savepoint-again",
        "a new driver gives the id of a savepoint to a checkpoint",
        (
            Change(
                "storage/log.py",
                "                max(newest.next_checkpoint_id, newest.savepoint_ids_below),\n",
                "                newest.next_checkpoint_id,\n",
            ),
        ),
    ),
    Mutant(
        "savepoint-with-nothing-behind-it",
        "a savepoint stands before a checkpoint commits what sinks have prepared for it",
        (
            Change(
                "protocol/checkpointing.py",
                "for id, savepoint in self.uncovered.items() if id < self.latest_completed]",
                "for id, savepoint in self.uncovered.items()]",
            ),
        ),
    ),
    Mutant(
        "stop-without-its-record",
        "the job goes on without the stop, and what was to be its savepoint stays",
        (
            Change(
                "coordinator/job.py",
                "        if record.open_savepoint and not record.stopping:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "number-of-another-line",
        "a table takes the number of one attempt for that of all",
        (
            Change(
                "connectors/tables/sink.py",
                '    return f"tidegate:{job}:{uid}:{incarnation}:{attempt}"\n',
                '    return f"tidegate:{job}:{uid}:{incarnation}"\n',
            ),
        ),
    ),
    Mutant(
        "savepoint-swept-by-the-job",
        "files of a native savepoint are taken for the job's own",
        (Change("coordinator/attempt.py", "        if checkpoint in self._of_users:\n", "        if False:\n"),),
    ),
    Mutant(
        "built-on-another-type",
        "increments are built on files of a state that has evolved or was renamed",
        (Change("task/restore.py", " and uid not in start.changed\n", "\n"),),
    ),
    Mutant(
        "no-holding-back",
        "frames behind a barrier are processed before the other barriers have come",
        (Change("task/slot.py", "        if self._checkpoints.is_held(frame):\n", "        if False:\n"),),
    ),
    Mutant(
        "ack-before-upload",
        "a slot acknowledges, and then stores its file",
        (
            Change(
                "task/snapshots.py",
                "            file = store_snapshot(storage, self.path_of(checkpoint), *_written(writer, state), "
                "self.inline_limit_bytes)\n",
                "            path, (data, index) = self.path_of(checkpoint), _written(writer, state)\n"
                "            LATE.append(lambda: store_snapshot(storage, path, data, index, 0))\n"
                "            file = FileRef(size=memoryview(data).nbytes, path=path, sections=list(index))\n",
            ),
            Change(
                "task/snapshots.py",
                '        self.crash_points.reach("slot.after-ack", self.slot, checkpoint)\n',
                '        self.crash_points.reach("slot.after-ack", self.slot, checkpoint)\n'
                "        while LATE:\n            LATE.pop(0)()\n",
            ),
            Change(
                "task/snapshots.py",
                "from tidegate.storage.metadata import FileRef, SectionRef, SlotSnapshot",
                "LATE = []\nfrom tidegate.storage.metadata import FileRef, SectionRef, SlotSnapshot",
            ),
        ),
    ),
    Mutant(
        "log-record-before-last-ack",
        "a checkpoint is stored when all but one slot have acknowledged",
        (
            Change(
                "protocol/checkpointing.py",
                "        if pending.snapshots.keys() != self.slots:\n            return []\n",
                "        if len(pending.snapshots) < len(self.slots) - 1:\n            return []\n",
            ),
        ),
    ),
    Mutant(
        "commit-before-log-record",
        "slots are told to commit before the log record is written",
        (
            Change(
                "coordinator/attempt.py",
                "                self.storing.submit(lambda: self._store(action, triggered_at))\n",
                "                self._tell_all(Complete(action.checkpoint))\n"
                "                self.storing.submit(lambda: self._store(action, triggered_at))\n",
            ),
        ),
    ),
    Mutant(
        "held-frames-before-barrier",
        "what was held back is processed before the snapshot is taken and the barrier forwarded",
        (
            Change(
                "task/slot.py",
                "                self._checkpoints.barrier(frame)\n",
                "                waits = self._checkpoints\n"
                '                arrived = getattr(waits._aligner, "arrived", None)\n'
                "                if arrived is not None and arrived | {frame.sender} == waits.channels:\n"
                "                    held, waits._held = waits._held, waits.new_held()\n"
                "                    while len(held):\n"
                "                        self._process(held.pop())\n"
                "                        while self._work is not None:\n"
                "                            self._go_on()\n"
                "                waits.barrier(frame)\n",
            ),
        ),
    ),
    Mutant(
        "id-reused-after-rollback",
        "after a rollback ids go on from the checkpoint that was named",
        (
            Change(
                "storage/log.py",
                "            next_id = max(next_id, resume.id + 1)\n",
                "            next_id = resume.id + 1\n",
            ),
        ),
    ),
    Mutant(
        "fallback-to-older-checkpoint",
        "a damaged checkpoint is passed over, and an older one is taken",
        (
            Change(
                "storage/checkpoints.py",
                "    if xxhash.xxh3_128_hexdigest(data) != pointer.checksum:\n",
                "    others = [other for other in older if other != pointer]\n"
                "    if xxhash.xxh3_128_hexdigest(data) != pointer.checksum and others:\n"
                "        return load_checkpoint(store, others[-1], others[:-1])\n"
                "    if xxhash.xxh3_128_hexdigest(data) != pointer.checksum:\n",
            ),
        ),
    ),
    Mutant(
        "relay-by-round-robin",
        "a relaying slot is chosen in turn, not by edge and target",
        (
            Change(
                "graph/plan.py",
                "        return (edge.index + target) % width\n",
                "        return next(IN_TURN) % width\n",
            ),
            Change(
                "graph/plan.py",
                "MAX_LAYER_WIDTH = 128\n",
                'MAX_LAYER_WIDTH = 128\nIN_TURN = __import__("itertools").count()\n',
            ),
        ),
    ),
    Mutant(
        "position-of-the-last-record",
        "a source notes where the last records began, not where they ended",
        (
            Change(
                "task/operators/source.py",
                "            records = reader.poll(deadline)\n",
                "            noted = reader.splits()\n"
                "            records = reader.poll(deadline)\n"
                "            self._noted = None if records is None else noted\n",
            ),
            Change(
                "task/operators/source.py",
                "for split in self._reader.snapshot(checkpoint)]",
                'for split in getattr(self, "_noted", None) or self._reader.snapshot(checkpoint)]',
            ),
        ),
    ),
    Mutant(
        "foreign-ack-accepted",
        "an acknowledgement of another attempt counts",
        (
            Change(
                "protocol/checkpointing.py",
                "        if ack.attempt != self.attempt or ack.slot not in self.slots:\n",
                "        if ack.slot not in self.slots:\n",
            ),
        ),
    ),
    # The cut of an unaligned checkpoint.
    Mutant(
        "own-channel-not-in-the-cut",
        "frames that wait in the channel of the barrier that has come are left out of the cut",
        (
            Change(
                "task/inbox.py",
                "        for frame in self._frames:\n            capture.offer(frame)\n",
                "        for frame in self._frames:\n"
                "            if frame.kind == 3 and frame.value == capture.checkpoint:\n"
                "                capture.offer(frame)\n"
                "        for frame in self._frames:\n            capture.offer(frame)\n",
            ),
        ),
    ),
    Mutant(
        "rest-of-a-frame-not-in-the-cut",
        "what was not processed yet of the frame at hand is left out of the cut",
        (
            Change(
                "task/slot_checkpoints.py",
                "        if work is not None:\n            capture.offer(work.rest())\n",
                "",
            ),
        ),
    ),
    Mutant(
        "relayed-data-not-in-the-cut",
        "records that the slot only passes on are left out of the cut",
        (
            Change(
                "task/snapshots.py",
                "        under_way = in_flight_sections(self.plan, in_flight)\n",
                "        own = (each for each in in_flight if self.plan.edges[each.edge].to_layer == self.slot.layer)\n"
                "        under_way = in_flight_sections(self.plan, own)\n",
            ),
        ),
    ),
    Mutant(
        "behind-the-barrier-in-the-cut",
        "records that came behind a channel's barrier are in the cut",
        (
            Change(
                "task/capture.py",
                "frame.kind is Kind.RECORDS and (frame.sender in self.waiting or frame.sender == RESTORED):",
                "frame.kind is Kind.RECORDS:",
            ),
        ),
    ),
    Mutant(
        "restored-records-not-in-the-next-cut",
        "in-flight records of a restore that still wait are left out of the next cut",
        (
            Change(
                "task/capture.py",
                "(frame.sender in self.waiting or frame.sender == RESTORED):",
                "frame.sender in self.waiting:",
            ),
        ),
    ),
    Mutant(
        "cut-stored-before-it-is-whole",
        "an unaligned snapshot is stored with the records that have come so far",
        (
            Change(
                "task/inbox.py",
                "        if not capture.is_complete:\n            return []\n",
                "",
            ),
        ),
    ),
    Mutant(
        "inbox-without-an-end",
        "an opened inbox takes whatever comes",
        (
            Change(
                "task/inbox.py",
                "        if self._opened_for is not None and not fits:\n",
                "        if False:\n",
            ),
        ),
    ),
    # Beyond the ten that every release must name.
    Mutant(
        "barrier-before-its-records",
        "the barrier leaves before what was emitted ahead of it",
        (
            Change(
                "task/slot_checkpoints.py",
                "        for chain in self.chains:\n            chain.flush()\n"
                "        self.outbox.send_barrier(checkpoint, flags)\n",
                "        self.outbox.send_barrier(checkpoint, flags)\n"
                "        for chain in self.chains:\n            chain.flush()\n",
            ),
        ),
    ),
    Mutant(
        "committable-forgotten-early",
        "a committable leaves the snapshots when its commit is asked for, not when it has returned",
        (
            Change(
                "task/committing.py",
                "        self._busy = True\n",
                "        self._busy = True\n        for sink, due in work:\n            sink.forget(due)\n",
            ),
        ),
    ),
    Mutant(
        "abort-ends-older-checkpoint",
        "the abort of one checkpoint ends the alignment of another",
        (
            Change(
                "protocol/alignment.py",
                "        if self.aligning == checkpoint:\n            self._finish(checkpoint)\n",
                "        if self.aligning is not None and self.aligning <= checkpoint:\n"
                "            self._finish(checkpoint)\n",
            ),
        ),
    ),
    Mutant(
        "seal-not-checked",
        "frames of anybody are accepted",
        (
            Change(
                "wire/frame.py",
                "        return hmac.compare_digest(self.make(header, flags, payload), seal)\n",
                "        return True\n",
            ),
        ),
    ),
    Mutant(
        "increment-over-an-unconfirmed-one",
        "a subtask builds an increment on a checkpoint that may never complete",
        (
            Change(
                "task/keyed_files.py",
                "            self._pending[checkpoint] = _Stored(",
                "            self._base = self._pending[checkpoint] = _Stored(",
            ),
        ),
    ),
    Mutant(
        "shared-file-deleted-early",
        "a file that the oldest retained checkpoint refers to is deleted",
        (
            Change(
                "protocol/shared_state.py",
                "use.last_used < oldest_retained",
                "use.last_used <= oldest_retained",
            ),
        ),
    ),
    Mutant(
        "expired-cell-is-live",
        "what has expired in RocksDB is stored and never swept",
        (
            Change(
                "state/rocksdb_expiring.py",
                "    return cell if expiry_of(cell) > now_ms else None\n",
                "    return cell\n",
            ),
        ),
    ),
    Mutant(
        "expired-key-is-there",
        "a key all of whose list has expired in RocksDB is still walked over",
        (
            Change(
                "state/rocksdb_lists.py",
                "        return any(expiry_of(element) > now_ms for element in decode_elements(cell))\n",
                "        return True\n",
            ),
        ),
    ),
    Mutant(
        "partly-expired-row-swept-whole",
        "of a list in RocksDB elements are swept that have not expired",
        (
            Change(
                "state/rocksdb_lists.py",
                "        return live_elements(cell, now_ms)\n",
                "        kept, entries, expired = live_elements(cell, now_ms)\n"
                "        return (None if expired else kept), entries, expired\n",
            ),
        ),
    ),
    Mutant(
        "files-of-acknowledgements-not-noted",
        "the driver does not remember which files a checkpoint refers to",
        (
            Change(
                "coordinator/attempt.py",
                "                self._note_files(CheckpointId(checkpoint), snapshot)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "local-copy-not-checked",
        "a copy on the executor's disk is restored from as it is",
        (Change("task/local_copies.py", "            if verdict is Verdict.INTACT:\n", "            if True:\n"),),
    ),
    Mutant(
        "old-local-copies-stay",
        "a completed checkpoint leaves the copies of older ones on the executor's disk",
        (Change("task/copy_folder.py", "int(found[1]) < checkpoint", "False"),),
    ),
    Mutant(
        "credit-for-nobody",
        "what a receiver grants to a slot that has not called yet is lost",
        (
            Change(
                "protocol/credit.py",
                "            self._waiting[sender] = self._early.pop(sender)\n",
                "            del self._early[sender]\n",
            ),
        ),
    ),
)


@contextmanager
def copy_of_the_source() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tidegate-mutant-") as folder:
        copy = Path(folder)
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(ROOT / "src", copy / "src", ignore=ignore)
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", copy)
        yield copy


def plant(mutant: Mutant, copy: Path) -> None:
    """:raises SystemExit: when the text to replace is not there exactly once."""
    for change in mutant.changes:
        path = copy / "src" / "tidegate" / change.file
        text = path.read_text(encoding="utf-8")
        found = text.count(change.old)
        if found != 1:
            raise SystemExit(
                f"mutant {mutant.name}: the text to replace stands {found} times in src/tidegate/{change.file}, not once. "
                f"The code has changed: bring the mutant up to date.\n{change.old}"
            )
        path.write_text(text.replace(change.old, change.new), encoding="utf-8")


def run_tests(copy: Path) -> Outcome:
    environment = {name: value for name, value in os.environ.items() if name != "TIDEGATE_SEED"}
    environment |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    # The package of this checkout is installed too: make sure that the copy is what is tested.
    where = subprocess.run(
        [sys.executable, "-c", "import tidegate; print(tidegate.__file__)"],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if Path(where).resolve() != (copy / "src" / "tidegate" / "__init__.py").resolve():
        raise SystemExit(f"the tests would run against {where}, not against the copy in {copy}")
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not slow", f"--timeout={TEST_TIMEOUT_S}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *TESTS],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, time.monotonic() - began, f"did not end within {RUN_TIMEOUT_S} s")
    seconds = time.monotonic() - began
    if done.returncode not in (0, 1):  # 1: tests failed; anything else says nothing about the fault
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return Outcome(done.returncode == 0, seconds, failed[0].split(" ")[1] if failed else "")


def try_out(mutant: Mutant | None) -> Outcome:
    with copy_of_the_source() as copy:
        if mutant is not None:
            plant(mutant, copy)
        return run_tests(copy)


def chosen(names: list[str]) -> list[Mutant]:
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [mutant for mutant in MUTANTS if not names or mutant.name in names]


def main(names: list[str]) -> int:
    mutants = chosen(names)
    for mutant in mutants:  # what is out of date is said at once, not after minutes
        with copy_of_the_source() as copy:
            plant(mutant, copy)
    unchanged = try_out(None)
    if not unchanged.passed:
        print(f"the tests fail without any fault: {unchanged.caught_by}", file=sys.stderr)
        return 1
    print(f"{'unchanged':<30} passes {unchanged.seconds:6.0f} s", flush=True)
    survived = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, outcome in zip(mutants, pool.map(try_out, mutants), strict=True):
            if outcome.passed:
                survived.append(mutant.name)
            verdict = "SURVIVED" if outcome.passed else "caught"
            print(f"{mutant.name:<30} {verdict} {outcome.seconds:6.0f} s  {outcome.caught_by}", flush=True)
            if outcome.passed:
                print(f"    {mutant.what}", flush=True)
    print(json.dumps({"mutants": len(mutants), "caught": len(mutants) - len(survived), "survived": survived}))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
