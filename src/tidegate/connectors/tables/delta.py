"""Delta Lake tables by `deltalake`: no JVM, no Spark job. Driver and executors; imported when a Delta sink is used.

An epoch is one Delta transaction: its files as add actions, and a `txn` action with the writer as the app's id and the
checkpoint. Delta keeps the newest such number for each app and refuses two writers of one app at once; that number is the
evidence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.connectors.partition_names import Partition
from tidegate.connectors.tables.sink import TableFile, TableLog, TableSink
from tidegate.errors import ConfigurationError
from tidegate.extras import DELTA


class DeltaSink(TableSink):
    """Appends a typed stream to a Delta table, which is made when it is not there. Exactly-once.

    Files that a dead attempt has left are not part of the table; Delta's VACUUM removes them.
    Parameters as for all tables: path, partition_by, max_bytes, max_age.
    """

    def check_installed(self) -> None:
        DELTA.check()

    def log(self) -> TableLog:
        return DeltaLog(self.location)

    def file_path(self, name: str, folder: str) -> str:
        # Delta keeps the values of partitions in its log and needs no folders for them; their escapes are read in more
        # than one way.
        return name

    def check_partition(self, partition: Partition) -> None:
        """Values are in Delta's log, however long. There an empty text is how a missing value is written."""
        for name, value in partition:
            if value == "":
                raise ConfigurationError(
                    f"{self.store.location}: a record has {name}='', and Delta's readers would find None. Map it to another "
                    "value before the sink, or partition by another field."
                )

    def check_schema(self, schema: pa.Schema) -> None:
        module = DELTA.load()
        try:
            wanted = module.Schema.from_arrow(schema)
        except Exception as error:
            raise ConfigurationError(
                f"{self.store.location}: Delta cannot hold records of this type: {error}. Map them to other types before."
            ) from None
        if not module.DeltaTable.is_deltatable(self.location):
            return
        table = module.DeltaTable(self.location)
        there = {field.name: field.type for field in table.schema().fields}
        wrong = [field.name for field in wanted.fields if there.get(field.name) != field.type]
        missing = [
            field.name for field in table.schema().fields if not field.nullable and field.name not in schema.names
        ]
        if wrong or missing or table.metadata().partition_columns != self.partition_by:
            raise ConfigurationError(
                f"{self.store.location}: the stream does not fit the Delta table, which has the columns "
                f"{', '.join(f'{name} {type}' for name, type in there.items())}, partitioned by "
                f"{table.metadata().partition_columns}. Map the records to it, or write to another table."
            )


class DeltaLog(TableLog):
    def __init__(self, location: str) -> None:
        self._location = location

    def _table(self) -> Any | None:
        module = DELTA.load()
        return module.DeltaTable(self._location) if module.DeltaTable.is_deltatable(self._location) else None

    def newest(self, writer: str) -> int:
        table = self._table()
        return 0 if table is None else table.transaction_version(writer) or 0

    def append(self, writer: str, checkpoint: int, files: Sequence[TableFile], partition_by: Sequence[str]) -> None:
        module = DELTA.load()
        table = self._table()
        if table is None:
            table = module.DeltaTable.create(
                self._location, files[0].arrow_schema(), mode="ignore", partition_by=list(partition_by)
            )
        now = int(time.time() * 1000)
        adds = [
            module.transaction.AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values=dict(file.partition),
                modification_time=now,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        table.create_write_transaction(
            adds,
            mode="append",
            schema=table.schema(),
            partition_by=list(partition_by) or None,
            commit_properties=module.CommitProperties(
                app_transactions=[module.Transaction(app_id=writer, version=checkpoint)]
            ),
        )
