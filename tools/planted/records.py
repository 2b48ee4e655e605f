"""Faults in who owns a record."""

from __future__ import annotations

from planted.kinds import Change, Mutant

OWNERS = ("tests/protocol/test_who_owns_a_record.py",)

MUTANTS = (
    Mutant(
        "one-record-for-two-readers",
        "two functions that read one stream are given the same objects",
        (
            Change(
                "task/operators/base.py",
                "            target(batch.copied(copy))\n",
                "            target(batch)\n",
            ),
        ),
        OWNERS,
    ),
    Mutant(
        "rows-shared-beside-columns",
        "a second reader of columns is given the rows that the first has made of them",
        (
            Change(
                "batch.py",
                "            twin = Batch(self.type, columns=self._columns, timestamps=self.timestamps)\n",
                "            twin = self\n",
            ),
        ),
        OWNERS,
    ),
    Mutant(
        "emitted-record-not-copied",
        "what a process function has emitted changes with the object that it keeps",
        (
            Change(
                "task/operators/process.py",
                '        """Every record, without a key."""\n        stamps, copy = batch.timestamps, self.copy\n',
                '        """Every record, without a key."""\n        stamps, copy = batch.timestamps, None\n',
            ),
        ),
        OWNERS,
    ),
    Mutant(
        "nested-list-shared",
        "the copy of a dict shares the lists in it",
        (
            Change(
                "types/copying.py",
                "    if _all_unchangeable(map(type, value.values())):\n",
                "    if True:\n",
            ),
        ),
        ("tests/unit/test_copying.py", *OWNERS),
    ),
)
