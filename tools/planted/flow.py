"""Faults in the order of what flows through a slot: cuts, restored records, aborts."""

from __future__ import annotations

from planted.kinds import Change, Mutant

RESTORED = ("tests/protocol/test_restored_records.py",)

MUTANTS = (
    Mutant(
        "cut-before-the-release",
        "an unaligned cut is taken before what an older checkpoint holds back is released",
        (
            Change(
                "task/slot_checkpoints.py",
                "        self._act(actions)\n        capture = self._unprocessed(checkpoint, arrived)\n",
                "        capture = self._unprocessed(checkpoint, arrived)\n        self._act(actions)\n",
            ),
        ),
        tests=("tests/protocol/test_unaligned_slot.py",),
    ),
    Mutant(
        "end-before-restored-records",
        "a chain ends while restored records wait for credit",
        (
            Change(
                "task/slot.py",
                "        if self._arrivals.has_restored:\n            return\n        for chain in self.chains:\n",
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
                " and self._work is None and not self._arrivals.has_restored\n",
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
                "task/slot_checkpoints.py",
                "        if unaligned_after_s is None and (self.postponed or self.restored_wait()):\n",
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
                "task/slot_checkpoints.py",
                "        if self.slot.layer > 0:\n            if unaligned_after_s is not None",
                "        if unaligned_after_s is not None:\n"
                "            self._cuts.turns_at(checkpoint, now + unaligned_after_s)\n"
                "        if self.slot.layer > 0:\n            if unaligned_after_s is not None",
            ),
        ),
        tests=("tests/protocol/test_unaligned_slot.py",),
    ),
    Mutant(
        "abort-ends-an-older-one",
        "at least once, the abort of a newer checkpoint ends the older ones",
        (
            Change(
                "protocol/alignment.py",
                "            self.pending.pop(checkpoint, None)\n            self.aborted.add(checkpoint)\n",
                "            self._pass(checkpoint)\n",
            ),
        ),
        tests=("tests/protocol/test_alignment.py",),
    ),
)
