"""Faults in the order of what flows through a slot: cuts, restored records, aborts."""

from __future__ import annotations

from planted.kinds import Change, Mutant

RESTORED = ("tests/protocol/test_restored_records.py",)
ARROW_ROWS = ("tests/unit/test_arrow_rows.py",)

MUTANTS = (
    Mutant(
        "cut-before-the-release",
        "an unaligned cut is taken before what an older checkpoint holds back is released",
        (
            Change(
                "protocol/slot_machine.py",
                "        return actions + self._take(known, now, BarrierKind.UNALIGNED, cut=waiting)\n",
                "        begin, *rest = self._take(known, now, BarrierKind.UNALIGNED, cut=waiting)\n"
                "        return [begin, *actions, *rest]\n",
            ),
        ),
        tests=("tests/protocol/test_slot_machine.py", "tests/protocol/test_unaligned_slot.py"),
    ),
    Mutant(
        "a-cut-behind-a-shut-inbox",
        "the barrier of a checkpoint that has turned unaligned at another slot lets no other barrier in",
        (Change("task/mailbox.py", "                if is_unaligned:\n", "                if False:\n"),),
        tests=("tests/protocol/test_unaligned_slot.py",),
    ),
    Mutant(
        "all-layers-send-at-once",
        "the slots of a layer send at the moments of the layer before, so that what has just come waits for a whole interval",
        (Change("task/send_times.py", "self._interval_s / 2 * (layer % 2)", "0.0"),),
        tests=("tests/unit/test_send_times.py",),
    ),
    Mutant(
        "a-slot-sends-when-it-has-something",
        "an idle slot sends each record by itself",
        (Change("task/send_times.py", "return now >= self._idle_at if idle else", "return True if idle else"),),
        tests=("tests/unit/test_send_times.py",),
    ),
    Mutant(
        "a-lone-record-goes-elsewhere",
        "a record that is written alone goes to another subtask than among others",
        (
            Change(
                "task/edges.py",
                "self._append(subtask_of(key_group(hash, max_parallelism), receivers, max_parallelism), batch)",
                "self._append(hash % receivers, batch)",
            ),
        ),
        tests=("tests/unit/test_edges.py",),
    ),
    Mutant(
        "two-frames-read-as-one",
        "the second frame of an Arrow message begins where the first one does",
        (Change("spark/arrow_rows.py", "            begin = end\n", "            begin = begin or end\n"),),
        tests=ARROW_ROWS,
    ),
    Mutant(
        "an-empty-row-is-a-frame",
        "the empty rows that follow frames are taken for frames",
        (Change("spark/arrow_rows.py", "            if end > begin:\n", "            if end >= begin:\n"),),
        tests=ARROW_ROWS,
    ),
    Mutant(
        "rows-wait-in-a-buffer",
        "what a slot sends stays in the worker's buffer until more is sent",
        (
            Change(
                "spark/arrow_rows.py",
                "schema=OUT_SCHEMA).serialize()))\n        self._stream.flush()\n",
                "schema=OUT_SCHEMA).serialize()))\n",
            ),
        ),
        tests=ARROW_ROWS,
    ),
    Mutant(
        "a-stopped-slot-takes-frames",
        "a slot that was stopped turns for frames and throws them away, although the stop may still fail",
        (Change("task/slot.py", "winds_down = self._finish_requested and (", "winds_down = ("),),
        tests=("tests/protocol/test_slot.py",),
    ),
    Mutant(
        "a-simulation-reads-in-an-order-of-its-own",
        "where a simulation wants so many records, the parts of a list are read in turn, and some are late by that alone",
        (Change("testing/simulation/sources.py", "if isinstance(part.reader, OneByOneReader):", "if False:"),),
        tests=("tests/unit/test_simulate.py",),
    ),
    Mutant(
        "end-before-restored-records",
        "a chain ends while restored records wait for credit",
        (
            Change(
                "task/slot.py",
                "        if self._input.has_restored:\n            return\n        for chain in self.chains:\n",
                "        for chain in self.chains:\n",
            ),
        ),
        tests=RESTORED,
    ),
    Mutant(
        "time-before-restored-records",
        "timers, the restored watermark and idleness go round restored records",
        (
            Change(
                "task/slot.py",
                " and self._work is None and not self._input.has_restored\n",
                " and self._work is None\n",
            ),
        ),
        tests=RESTORED,
    ),
    Mutant(
        "barrier-before-restored-records",
        "an aligned checkpoint of the first layer does not wait for restored records",
        (
            Change(
                "protocol/slot_machine.py",
                "        if after_s is None and (older or restored_wait):\n",
                "        if False:\n",
            ),
        ),
        tests=RESTORED,
    ),
    Mutant(
        "earlier-edge-first",
        "of two edges inside a chain, what was under way on the earlier one is restored first",
        (Change("task/restore.py", "key=lambda uid: (-places[uid], uid)", "key=lambda uid: (places[uid], uid)"),),
        tests=RESTORED,
    ),
    Mutant(
        "idle-under-back-pressure",
        "a source that may not send is called idle",
        (
            Change(
                "task/operators/timestamps.py",
                "        self._last_record = dict.fromkeys(self._last_record, now)\n",
                "        del now\n",
            ),
        ),
        tests=RESTORED,
    ),
    Mutant(
        "a-source-turns-unaligned",
        "a source waits for a checkpoint to turn unaligned, of which it has sent the barrier: it spins until that is complete",
        (
            Change(
                "protocol/slot_machine.py",
                "        if not self.channels:\n            return self._triggered_at_source(",
                "        if not self.channels:\n            told.turns_at = None if after_s is None else now + after_s\n"
                "            return self._triggered_at_source(",
            ),
            Change(
                "protocol/slot_machine.py",
                "if each.turns_at is not None and each.state in WAITING]",
                "if each.turns_at is not None]",
            ),
        ),
        tests=("tests/protocol/test_slot_machine.py", "tests/protocol/test_unaligned_slot.py"),
    ),
    Mutant(
        "abort-ends-an-older-one",
        "at least once, the abort of a newer checkpoint ends the older ones",
        (
            Change(
                "protocol/slot_machine.py",
                "            actions += self._end(aborted)\n        if self.halted_by == id:\n",
                "            actions += self._end(aborted)\n            self._pass(id)\n        if self.halted_by == id:\n",
            ),
        ),
        tests=("tests/protocol/test_slot_machine.py",),
    ),
)
