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
        "a checkpoint keeps the position that the reader keeps changing",
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
    Mutant(
        "table-of-a-woken-driver",
        "a driver commits a table without another look at who holds the job",
        (Change("coordinator/driver_commits.py", "        check_held()\n", ""),),
        ("tests/protocol/test_woken_drivers.py",),
    ),
    Mutant(
        "word-of-a-woken-driver",
        "a driver tells its slots to commit without another look at who holds the job",
        (Change("coordinator/recording.py", "        self._check_held()\n", ""),),
        ("tests/protocol/test_woken_drivers.py",),
    ),
    Mutant(
        "savepoint-leads-out-of-its-folder",
        "a savepoint may name files anywhere, and the job deletes them",
        (Change("storage/savepoint_format.py", "        check_stored_path(path, uri)\n", "        pass\n"),),
        ("tests/protocol/test_foreign_paths.py",),
    ),
    Mutant(
        "claimed-with-all-it-names",
        "files elsewhere become the job's own with the checkpoint that names them",
        (Change("storage/checkpoints.py", '    return path.startswith(f"{folder}/")\n', "    return True\n"),),
        ("tests/protocol/test_foreign_paths.py",),
    ),
    Mutant(
        "input-forgotten-by-the-next-driver",
        "a new generation does not know where a DataFrame was written",
        (Change("storage/log.py", "            inputs=inputs,\n", ""),),
        ("tests/protocol/test_written_inputs.py",),
    ),
    Mutant(
        "input-of-a-superseded-start",
        "a DataFrame is read from where it was written, whether the log says so or not",
        (
            Change(
                "coordinator/inputs.py",
                "            self._name(operator.uid, path)  # 3\n",
                "            self._append = lambda record: None\n",
            ),
        ),
        ("tests/protocol/test_written_inputs.py",),
    ),
    Mutant(
        "input-of-dead-starts-stays",
        "rows of a start that died while it wrote are never removed",
        (Change("coordinator/inputs.py", "        self._delete(left)  # 4\n", ""),),
        ("tests/protocol/test_written_inputs.py",),
    ),
    Mutant(
        "partition-of-any-length",
        "a part is opened whose folder cannot be made when it is committed",
        (
            Change(
                "connectors/partition_names.py",
                "            if len(folder) > self._max_name_bytes:\n",
                "            if False:\n",
            ),
        ),
        ("tests/unit/test_connector_partitions.py",),
    ),
    Mutant(
        "partition-that-reads-as-none",
        "a text that stands for a missing value names a partition",
        (
            Change(
                "connectors/partition_names.py", "            if value == NULL_PARTITION:\n", "            if False:\n"
            ),
        ),
        ("tests/unit/test_connector_partitions.py",),
    ),
    Mutant(
        "committable-moves-any-file",
        "a committable of somebody else moves files that no sink has staged",
        (Change("connectors/file_sink.py", "        if not _stays_inside(part):\n", "        if False:\n"),),
        ("tests/unit/test_connector_partitions.py",),
    ),
    Mutant(
        "kafka-headers-of-any-kind",
        "headers that no committer can read become part of a checkpoint",
        (
            Change(
                "connectors/kafka_sink.py",
                "[checked_headers(sink.what, sink.headers(row)) for row in rows]",
                "[sink.headers(row) for row in rows]",
            ),
        ),
        ("tests/unit/test_kafka_checks.py",),
    ),
    Mutant(
        "kafka-partition-of-any-kind",
        "a partition that is not a number becomes part of a checkpoint",
        (
            Change(
                "connectors/kafka_sink.py",
                "[checked_partition(sink.what, sink.partition(row)) for row in rows]",
                "[sink.partition(row) for row in rows]",
            ),
        ),
        ("tests/unit/test_kafka_checks.py",),
    ),
    Mutant(
        "staged-file-with-a-name-at-once",
        "a worker that wakes up late leaves an empty file for ever",
        (
            Change(
                "connectors/staged_file.py",
                "        unnamed = _open_unnamed(os.path.dirname(path))\n",
                "        unnamed = None\n",
            ),
        ),
        ("tests/unit/test_connector_file_sink.py",),
    ),
    Mutant(
        "nobody-sweeps-after-the-end",
        "what a late worker staged stays when the job has finished",
        (Change("coordinator/job.py", "        self._tidy_up_sinks()\n", ""),),
        ("tests/unit/test_connector_file_sink.py",),
    ),
    Mutant(
        "kafka-asked-once",
        "a topic whose leader is not chosen yet ends the job at its start",
        (
            Change(
                "connectors/kafka_client.py",
                "            if time.monotonic() >= deadline or error.args[0].code() in _no_entry():\n",
                "            if True:\n",
            ),
        ),
        ("tests/unit/test_kafka_checks.py",),
    ),
)
