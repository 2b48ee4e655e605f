"""Faults in sources and sinks, and in what a checkpoint keeps of them."""

from __future__ import annotations

from planted.kinds import Change, Mutant

POSITIONS = ("tests/protocol/test_stored_positions.py", "tests/unit/test_json_values.py")

MUTANTS = (
    Mutant(
        "positions-as-they-come",
        "positions that JSON changes are stored all the same",
        (Change("storage/json_values.py", "    if not same:\n", "    if False:\n"),),
        POSITIONS,
    ),
    Mutant(
        "positions-equal-but-not-the-same",
        "1, 1.0 and True are taken for one position",
        (
            Change(
                "storage/json_values.py",
                "same = marshal.dumps(value, 2) == marshal.dumps(copy, 2)",
                "same = value == copy",
            ),
        ),
        POSITIONS,
    ),
    Mutant(
        "position-that-moves-on",
        "a checkpoint keeps the position that the reader goes on changing",
        (
            Change(
                "connectors/split_check.py",
                "    return [SplitState(id, position, split.finished) for (id, position), split",
                "    return [SplitState(split.id, split.position, split.finished) for (id, position), split",
            ),
        ),
        POSITIONS,
    ),
    Mutant(
        "file-name-of-any-bytes",
        "a file whose name no checkpoint can hold is taken as a split",
        (
            Change(
                "connectors/local_paths.py",
                "    return [check_name(file) for file in _expanded(path)]\n",
                "    return _expanded(path)\n",
            ),
        ),
        ("tests/unit/test_connector_files.py",),
    ),
)
