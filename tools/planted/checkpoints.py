"""Faults in the protocol and in what keeps state."""

from __future__ import annotations

from planted.kinds import Change, Mutant

ATTEMPT = "tests/protocol/test_attempt.py"
CHECKPOINTING = "tests/protocol/test_checkpointing.py"
CONNECTOR_TABLES = "tests/unit/test_connector_tables.py"
CONTROL_TLS = "tests/unit/test_control_tls.py"
CREDIT = "tests/protocol/test_credit.py"
DAMAGE_AND_TAKEOVER = "tests/protocol/test_damage_and_takeover.py"
EVOLUTION = "tests/protocol/test_evolution.py"
HEAP_INCREMENTS = "tests/unit/test_heap_increments.py"
INBOX = "tests/unit/test_inbox.py"
LIFECYCLE_AT_A_STOP = "tests/protocol/test_lifecycle_at_a_stop.py"
LOCAL_COPIES = "tests/unit/test_local_copies.py"
PLAN = "tests/unit/test_plan.py"
SAVEPOINT_JOBS = "tests/protocol/test_savepoint_jobs.py"
SEALED_FRAMES = "tests/unit/test_sealed_frames.py"
SHARED_STATE = "tests/protocol/test_shared_state.py"
SLOT = "tests/protocol/test_slot.py"
SLOT_MACHINE = "tests/protocol/test_slot_machine.py"
STATE_TTL = "tests/unit/test_state_ttl.py"
STOPPING = "tests/protocol/test_stopping.py"
STORAGE_LOG = "tests/unit/test_storage_log.py"
STORED_POSITIONS = "tests/protocol/test_stored_positions.py"
TAKING_OVER = "tests/unit/test_taking_over.py"
UNALIGNED_SLOT = "tests/protocol/test_unaligned_slot.py"
WIRE = "tests/unit/test_wire.py"

EDITS = ("tests/protocol/test_savepoint_edits.py",)

MUTANTS = (
    Mutant(
        "dropped-state-comes-back",
        "an operator that is added where one was dropped has its state",
        (Change("savepoints/editing.py", '        self._uids.pop(self._stored_uid(uid) or "", None)\n', ""),),
        EDITS,
    ),
    Mutant(
        "records-in-flight-to-other-key-groups",
        "keys are hashed again under records that are on their way to the subtasks of before",
        (Change("savepoints/editing.py", "                if table.kind == IN_FLIGHT:", "                if False:"),),
        ("tests/protocol/test_savepoint_tables.py",),
    ),
    Mutant(
        "a-position-stays-behind",
        "a source that is renamed goes on where it was before its position was set",
        (Change("savepoints/editing.py", "        self._positions = _moved(self._positions, old, new)\n", ""),),
        EDITS,
    ),
    Mutant(
        "one-savepoint-over-another",
        "the tables of a savepoint are written over before it is refused to stand there",
        (Change("savepoints/editing.py", 'if store.exists(f"{target}/{METADATA_NAME}"):', "if False:"),),
        EDITS,
    ),
    Mutant(
        "a-savepoint-in-its-own-way",
        "a request that was carried out twice has found a savepoint in its place",
        (Change("storage/savepoint_format.py", " and store.get(path) != data", ""),),
        EDITS,
    ),
    Mutant(
        "records-after-a-suspend",
        "slots continue after the savepoint of a stop",
        (
            Change(
                "protocol/checkpoint_events.py",
                "        return self in (Purpose.SUSPEND, Purpose.RESCALE)\n",
                "        return self is Purpose.RESCALE\n",
            ),
        ),
        (LIFECYCLE_AT_A_STOP,),
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
        (f"{SAVEPOINT_JOBS}::test_a_snapshot_is_never_given_the_id_of_a_savepoint",),
    ),
    Mutant(
        "savepoint-with-nothing-after-it",
        "a savepoint stands before a checkpoint commits what sinks have prepared for it",
        (
            Change(
                "protocol/checkpointing.py",
                " for each in uncovered if each.checkpoint < self.latest_completed]",
                " for each in uncovered]",
            ),
        ),
        (STOPPING,),
    ),
    Mutant(
        "stop-without-its-record",
        "the job continues without the stop, and what was to be its savepoint stays",
        (
            Change(
                "coordinator/job.py",
                "        if record.open_savepoint and not record.stopping:\n",
                "        if False:\n",
            ),
        ),
        (TAKING_OVER,),
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
        (
            f"{CONNECTOR_TABLES}::test_what_was_prepared_on_a_line_that_the_job_has_left_is_committed_when_it_comes_back",
        ),
    ),
    Mutant(
        "savepoint-swept-by-the-job",
        "files of a native savepoint are taken for the job's own",
        (Change("coordinator/attempt.py", "        if checkpoint in self._of_users:\n", "        if False:\n"),),
        (f"{SAVEPOINT_JOBS}::test_files_of_a_plain_native_savepoint_are_never_deleted_by_the_job",),
    ),
    Mutant(
        "built-on-another-type",
        "increments are built on files of a state that has evolved or was renamed",
        (Change("task/restore.py", " and uid not in start.changed\n", "\n"),),
        (f"{EVOLUTION}::test_nothing_is_built_on_files_of_a_state_that_has_changed",),
    ),
    Mutant(
        "no-holding-back",
        "frames after a barrier are processed before the other barriers have come",
        (Change("task/slot.py", "        if frame.sender in self._input.held_channels:\n", "        if False:\n"),),
        (SLOT,),
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
        (SLOT,),
    ),
    Mutant(
        "log-record-before-last-ack",
        "a checkpoint is stored when all but one slot have acknowledged",
        (
            Change(
                "protocol/checkpointing.py",
                "        if acked.snapshots.keys() != self.slots:\n            return []\n",
                "        if len(acked.snapshots) < len(self.slots) - 1:\n            return []\n",
            ),
        ),
        (CHECKPOINTING,),
    ),
    Mutant(
        "commit-before-log-record",
        "slots are told to commit before the log record is written",
        (
            Change(
                "coordinator/attempt.py",
                '                self._work.submit(f"storing checkpoint {action.checkpoint}"',
                "                self._tell_all(Complete(action.checkpoint))\n"
                '                self._work.submit(f"storing checkpoint {action.checkpoint}"',
            ),
        ),
        (ATTEMPT,),
    ),
    Mutant(
        "held-frames-before-barrier",
        "what was held back is processed before the snapshot is taken and the barrier forwarded",
        (
            Change(
                "task/slot.py",
                "                self._checkpoints.on(slot_events.BarrierTaken(",
                "                if self._input.held_channels | {frame.sender} == self._machine.channels:\n"
                "                    while len(self._input._held):\n"
                "                        self._process(self._input._held.pop())\n"
                "                        while self._work is not None:\n"
                "                            self._go_on()\n"
                "                self._checkpoints.on(slot_events.BarrierTaken(",
            ),
        ),
        (SLOT,),
    ),
    Mutant(
        "id-reused-after-rollback",
        "after a rollback ids continue from the checkpoint that was named",
        (
            Change(
                "storage/log.py",
                "            next_id = max(next_id, resume.id + 1)\n",
                "            next_id = resume.id + 1\n",
            ),
        ),
        (STORAGE_LOG,),
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
        (DAMAGE_AND_TAKEOVER,),
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
        (PLAN,),
    ),
    Mutant(
        "position-of-the-last-record",
        "a source notes where the last records began, not where they ended",
        (
            Change(
                "task/operators/source.py",
                "            polled = reader.poll(deadline)\n",
                "            noted = reader.splits()\n"
                "            polled = reader.poll(deadline)\n"
                "            self._noted = None if polled is None else noted\n",
            ),
            Change(
                "task/operators/source.py",
                "kept_splits(self._reader.snapshot(checkpoint), self._reader)",
                'kept_splits(getattr(self, "_noted", None) or self._reader.snapshot(checkpoint), self._reader)',
            ),
        ),
        (STORED_POSITIONS,),
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
        (CHECKPOINTING,),
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
        (INBOX,),
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
        (UNALIGNED_SLOT,),
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
        (UNALIGNED_SLOT,),
    ),
    Mutant(
        "after-the-barrier-in-the-cut",
        "records that came after a channel's barrier are in the cut",
        (
            Change(
                "task/capture.py",
                "frame.kind is Kind.RECORDS and (frame.sender in self.waiting or frame.sender == RESTORED):",
                "frame.kind is Kind.RECORDS:",
            ),
        ),
        (INBOX,),
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
        (UNALIGNED_SLOT,),
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
        (INBOX,),
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
        (INBOX,),
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
        (SLOT,),
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
        (SLOT,),
    ),
    Mutant(
        "abort-ends-older-checkpoint",
        "the abort of one checkpoint ends the alignment of another",
        (
            Change(
                "protocol/slot_machine.py",
                "        aborted = self._know(id)\n",
                "        aborted = self.checkpoints[self.aligning] if self.aligning else self._know(id)\n",
            ),
        ),
        (SLOT_MACHINE,),
    ),
    Mutant(
        "seal-not-checked",
        "frames of anybody are accepted",
        (
            Change(
                "wire/seal.py",
                "        except InvalidTag:\n            return None\n",
                "        except InvalidTag:\n            pass\n",
            ),
        ),
        (WIRE,),
    ),
    Mutant(
        "frames-in-any-order",
        "frames that were repeated or put into another order are accepted",
        (Change("wire/frame.py", "        if frame.sequence != due:\n", "        if frame.sequence < 0:\n"),),
        (SEALED_FRAMES,),
    ),
    Mutant(
        "one-key-for-all-channels",
        "a frame of one channel opens on another",
        (
            Change(
                "wire/seal.py",
                '            key = hmac.digest(self._key, _CHANNEL.pack(*place), "sha256")\n',
                "            key = self._key\n",
            ),
        ),
        (SEALED_FRAMES,),
    ),
    Mutant(
        "any-certificate",
        "a slot speaks to whoever answers at the coordinator's address",
        (
            Change(
                "wire/tls.py",
                "    return shown is not None and hmac.compare_digest(hashlib.sha256(shown).hexdigest(), fingerprint)\n",
                "    return shown is not None\n",
            ),
        ),
        (CONTROL_TLS,),
    ),
    Mutant(
        "a-second-worker-with-the-same-keys",
        "a slot that was lost may call again in its attempt, and seals other frames under the same numbers",
        (
            Change(
                "coordinator/server.py",
                "        self._called.add(slot)\n",
                "        self._called = {*self._writers, slot}\n",
            ),
        ),
        (CONTROL_TLS,),
    ),
    Mutant(
        "increment-over-an-unconfirmed-one",
        "a subtask builds an increment on a checkpoint that may never complete",
        (
            Change(
                "protocol/owned_state.py",
                "        self.pending[checkpoint] = owned\n",
                "        self.base = self.pending[checkpoint] = owned\n",
            ),
        ),
        (HEAP_INCREMENTS,),
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
        (SHARED_STATE,),
    ),
    Mutant(
        "expired-cell-is-live",
        "what has expired in RocksDB is stored and never swept",
        (
            Change(
                "state/rocksdb_rows.py",
                "    return cell if expiry_of(cell) > now_ms else None\n",
                "    return cell\n",
            ),
        ),
        (STATE_TTL,),
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
        (STATE_TTL,),
    ),
    Mutant(
        "partly-expired-row-swept-whole",
        "of a list in RocksDB elements are swept that have not expired",
        (
            Change(
                "state/rocksdb_lists.py",
                "                change.rewritten[part] = live\n",
                "                change.rewritten[part] = None\n",
            ),
        ),
        (STATE_TTL,),
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
        (ATTEMPT,),
    ),
    Mutant(
        "local-copy-not-checked",
        "a copy on the executor's disk is restored from as it is",
        (Change("task/local_copies.py", "            if verdict is Verdict.INTACT:\n", "            if True:\n"),),
        (LOCAL_COPIES,),
    ),
    Mutant(
        "old-local-copies-stay",
        "a completed checkpoint leaves the copies of older ones on the executor's disk",
        (Change("task/copy_folder.py", "int(found[1]) < checkpoint", "False"),),
        (LOCAL_COPIES,),
    ),
    Mutant(
        "credit-for-nobody",
        "what a receiver grants to a slot that has not called yet is lost",
        (
            Change(
                "protocol/credit.py",
                "            self._called[sender] = self._early.pop(sender)\n",
                "            del self._early[sender]\n",
            ),
        ),
        (CREDIT,),
    ),
)
