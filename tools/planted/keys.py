"""Faults in keys, in what is known about them, and in how records reach the subtasks that ask for them."""

from __future__ import annotations

from planted.kinds import Change, Mutant

_KEYS = "tests/protocol/test_keys_property.py"
_AS_RECEIVED = "tests/protocol/test_keys_as_received.py"

MUTANTS = (
    Mutant(
        "keys-as-sent",
        "records are routed by the keys that they have before columns are made of them",
        (Change("task/edges.py", "        if not self._changes:\n", "        if True:\n"),),
        tests=(_AS_RECEIVED,),
    ),
    Mutant(
        "keys-as-sent-before-the-shuffle",
        "windows that are combined before the shuffle take the keys of records before columns are made of them",
        (
            Change(
                "task/operators/local_slices.py",
                "        return batch if batch.type.come_back(self._selector.fields) else batch.as_received()\n",
                "        return batch\n",
            ),
        ),
        tests=(_AS_RECEIVED,),
    ),
    Mutant(
        "keys-of-a-batch-as-one-column",
        "pyarrow makes one type of the keys of a batch, so that ints beside a float become floats",
        (
            Change(
                "task/operators/column_keys.py",
                "    if len(different) == 1:\n",
                "    if {*different} <= {int, float}:\n        return [(None, pa.array(plain))]\n    if len(different) == 1:\n",
            ),
        ),
        tests=(_KEYS,),
    ),
    Mutant(
        "joined-by-different-types",
        "connected streams with keys of different types are taken for joined",
        (Change("api/keys.py", "    if common is None:\n", "    if common is None and False:\n"),),
        tests=(_KEYS,),
    ),
    Mutant(
        "joined-by-their-own-types",
        "each of two connected streams brings its keys into a form of its own",
        (
            Change(
                "api/keys.py",
                "    return replace(first, key_annotation=common), replace(second, key_annotation=common)\n",
                "    return first, second\n",
            ),
        ),
        tests=(_KEYS,),
    ),
    Mutant(
        "text-of-keys-unseen",
        "a key with a lone surrogate is taken, and then no checkpoint can hold it",
        (
            Change(
                "state/key_codec.py",
                "        if not joined.isascii():\n            joined.encode()\n",
                "        if False:\n            joined.encode()\n",
            ),
        ),
        tests=(_KEYS,),
    ),
    Mutant(
        "keys-worked-out-from-used-records",
        "the key of a record is asked for after the function has had the records before it, and again to sample it",
        (
            Change(
                "task/operators/process.py",
                "            self.hot_keys.note(normalised_keys)\n",
                "            self.hot_keys.note(normalise_many(list(map(row_key, rows))))\n",
            ),
        ),
        tests=("tests/unit/test_hot_keys.py",),
    ),
    Mutant(
        "sampling-fails-the-job",
        "a key that cannot be sampled fails the job",
        (
            Change(
                "task/hot_keys.py",
                '            log.debug("the hottest keys were not sampled", exc_info=True)\n            return\n',
                "            raise\n",
            ),
        ),
        tests=("tests/unit/test_hot_keys.py",),
    ),
    Mutant(
        "union-by-the-first",
        "all streams of a union are partitioned as the first is",
        (
            Change(
                "api/streams.py",
                "        inputs = [i for stream in (self, *others) for i in stream._inputs]\n",
                "        way = self._inputs[0].partitioning\n"
                "        inputs = [replace(i, partitioning=way) for stream in (self, *others) for i in stream._inputs]\n",
            ),
        ),
        tests=("tests/protocol/test_partitioning.py",),
    ),
    Mutant(
        "global-is-forward",
        "records for one subtask continue where they are",
        (
            Change(
                "task/edges.py",
                "            case Partitioning.GLOBAL:\n                self._append(0, batch)\n",
                "            case Partitioning.GLOBAL:\n"
                "                self._append(self._origin % len(self._buffers), batch)\n",
            ),
        ),
        tests=("tests/protocol/test_partitioning.py",),
    ),
    Mutant(
        "dictionaries-on-the-wire",
        "streams hold dictionaries, which a frame has no place for",
        (
            Change(
                "types/dictionaries.py",
                "    return pa.schema([plain_field(field) for field in schema], metadata=schema.metadata)\n",
                "    return schema\n",
            ),
        ),
        tests=("tests/protocol/test_dictionary_columns.py",),
    ),
    Mutant(
        "columns-as-a-source-has-them",
        "a source's batch is taken for what the stream is declared as",
        (
            Change(
                "task/operators/source.py",
                "columns=self.output_type.conformed(records))\n",
                "columns=records)\n",
            ),
        ),
        tests=("tests/protocol/test_dictionary_columns.py",),
    ),
    Mutant(
        "classes-of-the-program-by-value",
        "a worker does not find the classes of the main program, and pickles them whole",
        (
            Change(
                "types/main_program.py",
                "            setattr(main, name, cls)\n",
                "            pass\n",
            ),
        ),
        tests=("tests/unit/test_main_program.py",),
    ),
    Mutant(
        "classes-that-pickle-does-not-find",
        "records of a class that no module has cannot travel",
        (Change("types/pickled.py", "        return _by_value(value)\n", "        raise\n"),),
        tests=("tests/unit/test_main_program.py",),
    ),
)
