"""Faults in asynchronous functions, failed records, joins and aligned sources."""

from __future__ import annotations

from planted.kinds import Change, Mutant

ASYNC = ("tests/protocol/test_async_jobs.py", "tests/unit/test_async_harness.py")
JOINS = ("tests/protocol/test_joins.py",)
LOOKUPS = ("tests/unit/test_lookup_join.py",)

MUTANTS = (
    Mutant(
        "answers-as-they-were-given",
        "an answer leaves as it was given, and after a restore as its type has made of it",
        (
            Change(
                "task/operators/async_calls.py",
                "        self._copy_out = self.output_type.settled\n",
                "        self._copy_out = self.copy or (lambda answer: answer)\n",
            ),
        ),
        ("tests/unit/test_async_harness.py",),
    ),
    Mutant(
        "answers-are-not-stored",
        "a checkpoint holds the records in flight, and not the answers that have come",
        (
            Change(
                "task/operators/async_calls.py",
                "InFlightRow(each.timestamp, each.value, each.rows, each.key)",
                "InFlightRow(each.timestamp, each.value, None, each.key)",
            ),
        ),
        ASYNC,
    ),
    Mutant(
        "a-watermark-passes-records-in-flight",
        "a watermark leaves an asynchronous operator before the records that came before it",
        (
            Change(
                "task/operators/async_calls.py",
                "            self._queue.fence(watermark)\n",
                "            super().run_watermark(watermark)\n",
            ),
        ),
        ASYNC,
    ),
    Mutant(
        "input-ends-with-calls-in-flight",
        "a chain ends while an asynchronous operator waits for answers",
        (Change("task/chains.py", "            if operator.is_pending:\n                return False\n", ""),),
        ASYNC,
    ),
    Mutant(
        "a-full-slot-takes-input",
        "a slot whose calls are at their most goes on to take records",
        (Change("task/slot.py", "is_full = self._answers.room <= 0 and", "is_full = False and"),),
        ASYNC,
    ),
    Mutant(
        "a-barrier-waits-for-a-call",
        "an aligned checkpoint of a full slot does not turn unaligned",
        (Change("task/answers.py", "return TURNS_AFTER_S if self._operators else None", "return None"),),
        ASYNC,
    ),
    Mutant(
        "a-savepoint-turns-unaligned",
        "a full slot puts what stands before a savepoint's barriers into it, and no other program can continue from it",
        (Change("protocol/slot_machine.py", "if told.order is None and not told.halts:", "if True:"),),
        ("tests/protocol/test_slot_machine.py", *ASYNC[:1]),
    ),
    Mutant(
        "a-function-that-cannot-be-opened-fails-its-records",
        "what async_open raises is taken for the failure of a record",
        (
            Change(
                "task/operators/async_calls.py",
                "            raise OperatorFailed(self, self._broken) from self._broken\n",
                "            self._failures.note(None, None, self._broken)\n",
            ),
        ),
        ASYNC[1:],
    ),
    Mutant(
        "a-keyed-call-keeps-no-operator-state",
        "the operator state of a keyed asynchronous function is in no checkpoint",
        (
            Change(
                "task/operators/async_state.py", "self.keeper = keeper_for(calls.owner, backend)", "self.keeper = None"
            ),
        ),
        ASYNC[1:],
    ),
    Mutant(
        "who-waits-for-anothers-lookup-gives-up-with-it",
        "a record that waits for what another has asked is cancelled when that one's time is over",
        (
            Change(
                "functions/lookups.py",
                "if not future.cancelled() or _is_being_cancelled():",
                "if True:",
            ),
        ),
        LOOKUPS,
    ),
    Mutant(
        "two-queries-on-one-connection",
        "a lookup does not wait for the thread of one that was given up",
        (
            Change(
                "connectors/database/table_lookup.py",
                "            await self._is_idle()\n            self._running",
                "            self._running",
            ),
        ),
        LOOKUPS,
    ),
    Mutant(
        "a-record-is-in-two-pairs",
        "the function of a join is given the same object for several pairs",
        (Change("types/copying.py", "copy(row) if id(row) in seen else", "row if id(row) in seen else"),),
        JOINS,
    ),
    Mutant(
        "a-moment-by-way-of-a-float",
        "the milliseconds of a datetime are reckoned with seconds as a float",
        (
            Change(
                "functions/watermarks.py",
                "    return (plain - datetime(1970, 1, 1)) // timedelta(milliseconds=1)\n",
                "    return int((plain - datetime(1970, 1, 1)).total_seconds() * 1000)\n",
            ),
        ),
        ("tests/unit/test_durations.py",),
    ),
    Mutant(
        "idleness-swallows-a-watermark",
        "who says how far it is, and then that it is idle, has said the latter alone",
        (
            Change(
                "task/operators/timestamps.py",
                "[] if output.watermark is None else [output.watermark]",
                "[] if output.watermark is None or output.idle else [output.watermark]",
            ),
        ),
        ("tests/protocol/test_watermark_generators.py",),
    ),
    Mutant(
        "a-failing-call-has-emitted",
        "what a function gave to a side output before it raised leaves all the same",
        (
            Change(
                "task/operators/failing.py",
                "                del rows[stop:], stamps[stop:]\n",
                "                del rows[len(rows) :], stamps[len(rows) :]\n",
            ),
        ),
        ("tests/protocol/test_failed_records.py",),
    ),
    Mutant(
        "an-outer-join-lets-time-run",
        "the watermark after an outer join is ahead of records that leave without a partner",
        (Change("functions/joins.py", "hold_ms = max(0, ", "hold_ms = 0 * max(0, "),),
        JOINS,
    ),
    Mutant(
        "a-partner-leaves-alone-too",
        "an outer join forgets which records have met somebody",
        (Change("functions/joins.py", "if keeps_left and not was_met:", "if keeps_left:"),),
        JOINS,
    ),
    Mutant(
        "the-valid-version-is-pruned",
        "a temporal join drops the newest version that the watermark has passed",
        (Change("functions/joins.py", "                if at != newest:\n", "                if at == newest:\n"),),
        JOINS,
    ),
    Mutant(
        "a-hash-is-a-key",
        "a join over columns takes keys of one hash for one key",
        (Change("task/rows/joins.py", "            if not same.all():\n", "            if False:\n"),),
        ("tests/unit/test_column_joins.py",),
    ),
    Mutant(
        "stored-records-have-met-nobody",
        "a join over columns forgets by a restore which records have met somebody",
        (
            Change(
                "task/rows/joins.py",
                "        met = rows.column(MET).to_numpy().astype(np.bool_)\n",
                "        met = np.zeros(rows.num_rows, np.bool_)\n",
            ),
        ),
        ("tests/unit/test_column_joins.py",),
    ),
    Mutant(
        "a-window-forgets-the-side",
        "a window of two streams takes records of the right for records of the left",
        (Change("functions/window_joins.py", "return ([], [row]) if side else ([row], [])", "return ([row], [])"),),
        ("tests/unit/test_window_joins.py",),
    ),
    Mutant(
        "a-source-that-is-ahead-reads-on",
        "alignment holds no source",
        (
            Change(
                "task/source_turns.py",
                "        if id(chain) not in self._aligned:\n            return True\n",
                "        return True\n",
            ),
        ),
        ("tests/protocol/test_alignment.py",),
    ),
)
