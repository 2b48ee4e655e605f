"""Faults in keyed state: what a read sees, what a snapshot holds, who lets go of what and when."""

from __future__ import annotations

from planted.kinds import Change, Mutant

_UNSETTLED = ("tests/unit/test_rocksdb_unsettled.py",)
_THREADS = ("tests/unit/test_heap_increment_threads.py",)
_TIMERS = ("tests/unit/test_timer_queue.py",)
_SIZES = ("tests/unit/test_state_section_sizes.py",)
_RESTORED_RUNS = ("tests/unit/test_runs.py", "tests/unit/test_runs_model.py")
_RUNS = ("tests/unit/test_runs.py",)
_BACKEND = ("tests/unit/test_rocksdb_backend.py",)
_RUNS = ("tests/unit/test_runs.py",)
_MODEL = ("tests/unit/test_state_model.py",)

MUTANTS = (
    Mutant(
        "values-as-they-were-given",
        "state gives what it was given, and after a restore what its type has made of it",
        (
            Change(
                "state/fitting.py",
                "_check_of(data_type) if expected in _PARTLY else data_type.settled\n",
                "_check_of(data_type) if expected in _PARTLY else data_type.copy\n",
            ),
        ),
        ("tests/unit/test_settled_values.py",),
    ),
    Mutant(
        "zones-of-moments-kept",
        "a moment in state has its zone until the next restore",
        (Change("state/fitting.py", "_LOOKED_AT = (*_PARTLY, datetime)", "_LOOKED_AT = _PARTLY"),),
        ("tests/unit/test_settled_values.py",),
    ),
    Mutant(
        "text-not-looked-at",
        "text that no encoder takes gets into state, where every checkpoint will fail by it",
        (Change("state/fitting.py", "_PARTLY = (int, str)", "_PARTLY = (int,)"),),
        ("tests/unit/test_state_text.py",),
    ),
    Mutant(
        "looked-up-in-two-looks",
        "a map's entry is asked for and then read, and may expire in between",
        (
            Change(
                "state/handles.py",
                '        found = self.get(key, cast("V", _NOTHING))\n        if found is _NOTHING:\n'
                "            raise KeyError(key)\n",
                "        if not self.contains(key):\n            raise KeyError(key)\n        found = self.get(key)\n",
            ),
        ),
        ("tests/unit/test_state_ttl.py",),
    ),
    Mutant(
        "passed-over-and-written",
        "a key whose number is null is written all the same: its time begins anew, its default becomes an entry",
        (
            Change(
                "state/value_handles.py",
                "        self._write_many(changed.items())\n",
                "        self._write_many(item for item in totals.items() if item[1] is not None)\n",
            ),
        ),
        ("tests/unit/test_state_ttl.py",),
    ),
    Mutant(
        "default-is-shared",
        "a default that can change is given out as it is declared, to all keys",
        (
            Change(
                "state/value_handles.py",
                "        return default if default is None or default is ABSENT else"
                " self._declaration.value_type.copy(default)\n",
                "        return default\n",
            ),
        ),
        ("tests/unit/test_state_contract.py",),
    ),
    Mutant(
        "operator-state-changed-under-a-snapshot",
        "what is added to a list of operator state gets into the snapshot that shares it",
        (
            Change(
                "state/operator_state.py",
                "        if self.is_shared:\n            self.replace(at, self.elements + kept)\n",
                "        if False:\n            self.replace(at, self.elements + kept)\n",
            ),
        ),
        ("tests/unit/test_operator_state.py",),
    ),
    Mutant(
        "broadcast-state-changed-under-a-snapshot",
        "the same for a map",
        (
            Change(
                "state/operator_state.py",
                "        if self.is_shared:\n            self.entries,",
                "        if False:\n            self.entries,",
            ),
        ),
        ("tests/unit/test_operator_state.py",),
    ),
    Mutant(
        "kind-in-other-rows",
        "reducing state is read from RocksDB's files as if its rows were those of a map",
        (Change("state/declarations.py", '    "reducing": "value",\n', '    "reducing": "map",\n'),),
        ("tests/unit/test_state_ttl.py",),
    ),
    Mutant(
        "swept-under-a-snapshot",
        "what has expired is swept, though a snapshot has taken over something newer that is not written",
        (
            Change(
                "state/hot_table.py",
                "            newer = [self.dirty, *(changed.known for changed in self.cold.pending)]  # before the runs\n",
                "            newer = [self.dirty]\n",
            ),
        ),
        _MODEL,
    ),
    Mutant(
        "older-snapshot-forgotten",
        "of several heap snapshots only the newest is kept as it was",
        (
            Change(
                "state/heap_tables.py",
                "        for snapshot in self._snapshots:\n",
                "        for snapshot in self._snapshots[-1:]:\n",
            ),
        ),
        _MODEL,
    ),
    Mutant(
        "rows-past-a-snapshot",
        "lists and maps are read from the runs, though a snapshot has not written what is newest of them",
        (
            Change(
                "state/hot_table.py",
                "        changes = [self.dirty, *(changed.known for changed in self.cold.pending)]\n",
                "        changes = [self.dirty]\n",
            ),
        ),
        _UNSETTLED,
    ),
    Mutant(
        "value-past-a-snapshot",
        "a value is read from the rows, though a snapshot has not written the newest one",
        (
            Change(
                "state/rocksdb_values.py",
                "            found = self._pending(key) if self.cold.pending else MISSING\n",
                "            found = MISSING\n",
            ),
        ),
        _UNSETTLED,
    ),
    Mutant(
        "values-past-a-snapshot",
        "the same for the values of many keys",
        (
            Change(
                "state/rocksdb_values.py",
                "            unknown |= found\n            stored = [key for key in stored if key not in found]\n",
                "",
            ),
        ),
        _UNSETTLED,
    ),
    Mutant(
        "joined-lists-without-bound",
        "lists that are written again as one are not counted as unwritten",
        (
            Change(
                "state/rocksdb_lists.py",
                "            self._change(key, ListChange(self._new_part(), True, list(elements)))\n",
                "            self.dirty[key] = ListChange(self._new_part(), True, list(elements))\n",
            ),
        ),
        _UNSETTLED,
    ),
    Mutant(
        "read-ahead-and-never-forgotten",
        "what was read ahead of a list or map is taken for all of it, though it has changed since, and that is written",
        (Change("state/hot_table.py", "            del self._ahead[key]\n", "            pass\n"),),
        _BACKEND,
    ),
    Mutant(
        "written-ahead-out-of-order",
        "of several sets of changes that are to be written the newest is written first",
        (
            Change(
                "state/cold.py",
                "                self._write(self.pending[-1])\n",
                "                self._write(self.pending[0])\n",
            ),
            Change(
                "state/cold.py",
                "            self.pending = self.pending[:-1]\n",
                "            self.pending = self.pending[1:]\n",
            ),
        ),
        _RUNS,
    ),
    Mutant(
        "lost-with-what-is-older",
        "what is to be written ahead is nowhere when the disk refuses what was handed over before",
        (
            Change(
                "state/cold.py",
                "        try:\n            self.settle()\n        finally:\n            self._add(changed)\n",
                "        self.settle()\n        self._add(changed)\n",
            ),
        ),
        _RUNS,
    ),
    Mutant(
        "closed-and-stored-without-changes",
        "a snapshot that is written while its state is closed has none of the changes that led to it",
        (
            Change(
                "state/cold.py",
                "        self.failed = self.failed or ProtocolViolation("
                'f"state {self._state!r} was used after it was closed")\n',
                "        self.pending = ()\n",
            ),
        ),
        _RUNS,
    ),
    Mutant(
        "long-rows-read-ahead",
        "how many rows are read ahead is bounded, and not how long they are",
        (
            Change("state/cold.py", " & (sizes <= max_bytes)\n", "\n"),
            Change("state/cold.py", "        few &= np.cumsum(np.where(few, sizes, 0)) <= max_bytes\n", ""),
        ),
        _RUNS,
    ),
    Mutant(
        "long-rows-walked-at-once",
        "a map of a few thousand entries is read at once, however long they are",
        (Change("state/cold.py", " and self._size_of(pieces) <= self.part_bytes:\n", ":\n"),),
        _RUNS,
    ),
    Mutant(
        "timer-lost-on-a-full-disk",
        "a timer is written to the disk before it is put among those that are next, which it is not when the disk is full",
        (
            Change(
                "state/rocksdb_timers.py",
                "        self._dirty_bytes += ENTRY_BYTES\n",
                "        self._dirty_bytes += ENTRY_BYTES\n        self._bound()\n",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "base-released-while-compared",
        "the base of an increment is let go when the next checkpoint completes, though it is being compared with",
        (
            Change(
                "task/keyed_files.py", "                self._shared.hold(base.snapshot)\n", "                pass\n"
            ),
            Change(
                "task/keyed_files.py", "                self._shared.let_go(base.snapshot)\n", "                pass\n"
            ),
        ),
        _THREADS,
    ),
    Mutant(
        "given-up-and-kept",
        "a snapshot that was given up before it was stored stays in memory",
        (
            Change(
                "protocol/owned_state.py",
                "        if checkpoint <= self._base_id or checkpoint in self._given_up:\n",
                "        if checkpoint <= self._base_id:\n",
            ),
        ),
        _THREADS,
    ),
    Mutant(
        "blocks-without-a-bound",
        "rows are joined to be sorted however large they are",
        (
            Change(
                "state/section_writer.py",
                "        if self._block_bytes + size > self._section_bytes:\n",
                "        if False:\n",
            ),
        ),
        _SIZES,
    ),
    Mutant(
        "section-for-each-key-group",
        "all rows of a key group are joined to one section however large they are",
        (Change("state/section_writer.py", "        if taken and size > most_bytes:\n", "        if False:\n"),),
        _SIZES,
    ),
    Mutant(
        "parts-are-not-halved",
        "values that make no column together fail the snapshot",
        (Change("state/section_writer.py", "            if stop - start == 1:\n", "            if True:\n"),),
        _SIZES,
    ),
    Mutant(
        "rocksdb-section-for-each-key-group",
        "all rows of a key group in RocksDB are joined to one section however large they are",
        (
            Change(
                "state/rocksdb_sections.py",
                "        if waiting and size + batch.nbytes > section_bytes:\n",
                "        if False:\n",
            ),
        ),
        _SIZES,
    ),
    Mutant(
        "list-cut-in-two",
        "a list of RocksDB whose rows are in two pieces is stored as two lists",
        (
            Change(
                "state/rocksdb_sections.py",
                "        if piece and is_full and not (is_list and row[0].startswith(address_in(piece[-1][0]))):\n",
                "        if piece and is_full:\n",
            ),
        ),
        _SIZES,
    ),
    Mutant(
        "dead-timers-stay",
        "the entries of deleted timers stay in memory until their time",
        (
            Change(
                "state/heap_timers.py",
                "            self._dead.add(filed)\n        self._move_some()\n",
                "            self._dead.add(filed)\n",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "revived-timer-is-dead",
        "a timer that is deleted and set again is still taken for deleted",
        (
            Change(
                "state/heap_timers.py",
                "        if filed in self._dead:\n            self._dead.remove(filed)\n            return\n",
                "        if filed in self._dead:\n            return\n",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "unwritten-timers-not-read",
        "the first timers of a key group in RocksDB are read without those that are not written yet",
        (
            Change(
                "state/rocksdb_timers.py",
                "            for changes in (self.handed_over, self._dirty)\n            for row_key, cell in",
                "            for changes in (self.handed_over,)\n            for row_key, cell in",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "handed-over-timers-not-read",
        "the first timers of a key group in RocksDB are read without those that a snapshot has taken over",
        (
            Change(
                "state/rocksdb_timers.py",
                "            for changes in (self.handed_over, self._dirty)\n            for row_key, cell in",
                "            for changes in (self._dirty,)\n            for row_key, cell in",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "timers-out-of-reach",
        "when too many timers are near, the others are forgotten until they are read anew",
        (
            Change(
                "state/rocksdb_timers.py",
                "            self.reach = self.near[READ_AT_ONCE]\n",
                "",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "group-that-is-empty-stays-so",
        "a key group whose timers in memory have all fired is not looked at again",
        (
            Change(
                "state/rocksdb_timers.py",
                "            if not group.near and group.reach is not None:\n                self._read(number, group)\n",
                "",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "heads-are-kept",
        "entries of first timers that are first no more stay in memory",
        (
            Change(
                "state/rocksdb_timers.py",
                "        if len(self._heads) > 2 * len(self._groups) + _FEW_HEADS:\n",
                "        if len(self._heads) > 1 << 40:\n",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "timer-of-another-namespace",
        "a timer fires without its namespace",
        (
            Change(
                "state/timers.py",
                "            if timer.namespace:\n                backend.set_current_namespace(timer.namespace)\n",
                "",
            ),
        ),
        _TIMERS,
    ),
    Mutant(
        "sequence-begins-again",
        "after a rescale what is added to a list in RocksDB is numbered from the beginning",
        (Change("state/rocksdb.py", "        self._store.raise_sequence(states.sequence)\n", ""),),
        ("tests/unit/test_rocksdb_backend.py",),
    ),
    Mutant(
        "gone-keys-come-back",
        "a merge forgets that a key is gone, though an older run has it",
        (Change("state/tiers.py", "is_oldest = due[-1] is self.runs[-1]", "is_oldest = True"),),
        _RUNS,
    ),
    Mutant(
        "foreign-rows-come-back",
        "a file that was taken over at a rescale counts with the rows of other subtasks' key groups",
        (
            Change(
                "state/run_files.py",
                "    within = columns.within(*order_range(groups, max_parallelism)) if groups else columns.slice(0, 0)\n",
                "    within = columns\n",
            ),
        ),
        _RUNS,
    ),
    Mutant(
        "two-merges-at-a-time",
        "what is written while runs are merged is merged at once, and both take the same run",
        (
            Change(
                "state/tiers.py",
                "        runs = tuple(takewhile(lambda run: run not in taken, self.runs))\n",
                "        runs = self.runs\n",
            ),
        ),
        _RUNS,
    ),
    Mutant(
        "one-hash-one-key",
        "of two keys with one hash the second is not found",
        (Change("state/runs.py", "            sought = sought[~same]  #", "            break  #"),),
        _RUNS,
    ),
    Mutant(
        "read-ahead-is-stale",
        "a value that was read ahead hides what was written since",
        (
            Change(
                "state/rocksdb_values.py",
                "            if self._ahead:\n",
                "            if False:\n",
            ),
        ),
        ("tests/unit/test_rocksdb_backend.py",),
    ),
    Mutant(
        "rows-of-others-come-back",
        "the next checkpoint says of a file that was taken over in part that all of it counts",
        (
            Change(
                "state/runs.py",
                "        return self.name if counting is None else (self.name, counting.start, counting.stop - 1)\n",
                "        return self.name\n",
            ),
        ),
        _RESTORED_RUNS,
    ),
    Mutant(
        "one-name-for-two-files",
        "files that two old subtasks bring keep their names, which may be the same",
        (Change("state/run_files.py", "(name if keep_names else new_name())", "name"),),
        _RESTORED_RUNS,
    ),
    Mutant(
        "merge-in-steps-of-one-run",
        "how much is merged at once is measured in one of the runs, and others have their rows elsewhere",
        (
            Change(
                "state/runs.py",
                "chain.from_iterable(_every(apart, run) for run in runs)",
                "_every(apart, max(runs, key=lambda run: run.rows))",
            ),
        ),
        _RUNS,
    ),
    Mutant(
        "two-zeros-two-keys",
        "windows over columns take 0.0 and -0.0 for two keys",
        (Change("state/key_columns.py", '    if key_type.name == "float":\n', "    if False:\n"),),
        ("tests/unit/test_column_windows.py",),
    ),
)
