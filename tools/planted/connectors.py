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
        "the-first-row-of-a-key-says-when",
        "an upsert writes the newest row of a key where its first stood, before rows that the database takes for the same key",
        (Change("connectors/database/rows.py", "        newest.pop(values, None)\n", ""),),
        ("tests/unit/test_database_names.py",),
    ),
    Mutant(
        "keys-that-are-half-of-an-index",
        "the columns of a unique index that may not be null are taken for a key without the others",
        (
            Change(
                "connectors/database/mysql.py",
                "        for index in {index for index, _, is_plain in rows if not is_plain}:\n            del keys[index]\n",
                "",
            ),
        ),
        ("tests/databases/test_table_source.py",),
    ),
    Mutant(
        "two-splits-of-one-name",
        "of two splits with one id the second is not read",
        (
            Change(
                "connectors/split_check.py",
                "    if len({split.id for split in splits}) < len(splits):",
                "    if False:",
            ),
        ),
        POSITIONS,
    ),
    Mutant(
        "what-follows-is-left-out",
        "two storages that differ only after a # are one",
        (Change("storage/store.py", '    if "#" in uri:', "    if False:"),),
        ("tests/unit/test_storage_store.py",),
    ),
    Mutant(
        "the-same-bytes-are-the-same",
        "of two committables with the same bytes the one that was told to wait is forgotten with the other",
        (
            Change(
                "task/operators/sink.py",
                "for committable in self._uncommitted if id(committable) not in gone]",
                "for committable in self._uncommitted if committable not in committed]",
            ),
        ),
        ("tests/protocol/test_uncommitted_bound.py",),
    ),
    Mutant(
        "the-row-of-another-key",
        "MySQL writes a record over the row that another unique index finds",
        (Change("connectors/database/sink.py", "        if why is not None:\n", "        if False:\n"),),
        ("tests/databases/test_sink_steps.py",),
    ),
    Mutant(
        "what-the-clock-showed",
        "a moment goes to MySQL as the clock of the stream's zone showed it",
        (Change("connectors/database/rows.py", 'column.type.tz not in (None, "UTC")', "False"),),
        ("tests/databases/test_sink_steps.py",),
    ),
    Mutant(
        "a-carriage-return-ends-a-record",
        "a csv field with a carriage return is not quoted",
        (Change("connectors/formats/csv.py", '    ENDS_WITH = "\\r\\n"\n', '    ENDS_WITH = "\\n"\n'),),
        ("tests/unit/test_connector_file_sink.py",),
    ),
    Mutant(
        "the-last-of-two-columns",
        "a csv file with two columns of one name is read, and one of them is dropped",
        (
            Change(
                "connectors/formats/csv.py",
                "if twice := sorted({name for name in read if self._header.count(name) > 1}):",
                "if twice := []:",
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
