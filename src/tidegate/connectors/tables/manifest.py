"""A folder of Parquet files with a manifest: a table for whoever has no table format. Driver and executors.

    <table>/_data/<partition>/part-<sink>-<attempt>-<subtask>-<n>-<nonce>.parquet    hidden: readers go by the manifests
    <table>/_manifest/<writer>/<checkpoint, 12 digits>.json                          created only if absent

A manifest names the files of one checkpoint of one attempt of a sink. The table is what all manifests name; `read_manifest`
lists it. The newest number of a writer is the evidence of its commits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import xxhash

from tidegate.connectors.tables.sink import TableFile, TableLog, TableSink, attempt_of_file, decode_file, owner_prefix
from tidegate.errors import ConfigurationError, ConnectorError
from tidegate.ids import AttemptId
from tidegate.storage.store import ObjectStore, open_store

MANIFESTS = "_manifest"
DATA = "_data"


class Manifest(msgspec.Struct, frozen=True, rename={"version": "v", "writer": "app"}):
    """The files of one checkpoint. JSON."""

    writer: str
    checkpoint: int
    files: list[TableFile]
    version: int = 1


class ParquetTableSink(TableSink):
    """Writes Parquet files and a manifest for each checkpoint. Exactly-once; `read_manifest(path)` lists the files.

    Parameters as for all tables: path, partition_by, max_bytes, max_age.
    """

    def log(self) -> ManifestLog:
        return ManifestLog(self.store)

    def check_schema(self, schema: pa.Schema) -> None:
        there = table_schema(self.location)
        if there is not None and there != schema:
            raise ConfigurationError(
                f"{self.store.location}: the stream does not fit the table, whose files have the columns "
                f"{', '.join(f'{field.name} {field.type}' for field in there)}. Map the records to them, or write to another "
                "table."
            )

    def file_path(self, name: str, folder: str) -> str:
        return f"{DATA}/{super().file_path(name, folder)}"

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        owner, kept = owner_prefix(job, uid), {decode_file(data).path for data in uncommitted}
        old = [path for path in self.store.list(DATA) if _is_before(path, owner, attempt) and path not in kept]
        for path in set(old) - self.log().holds(set(old)):
            self.store.delete(path)


def _is_before(path: str, owner: str, attempt: AttemptId) -> bool:
    wrote = attempt_of_file(path.rpartition("/")[2], owner)
    return wrote is not None and wrote < attempt


class ManifestLog(TableLog):
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def newest(self, writer: str) -> int:
        return max(
            (_checkpoint_of(path) for path in self._store.list(_folder(writer)) if _is_manifest(path)), default=0
        )

    def append(self, writer: str, checkpoint: int, files: Sequence[TableFile], partition_by: Sequence[str]) -> None:
        manifest = msgspec.json.encode(Manifest(writer, checkpoint, sorted(files, key=lambda file: file.path)))
        path = f"{_folder(writer)}/{checkpoint:012d}.json"
        if not self._store.create(path, manifest) and self._store.get(path) != manifest:
            raise ConnectorError(
                f"{self._store.uri(path)} exists and names other files: two jobs share this table. Give each its own."
            )

    def holds(self, paths: set[str]) -> set[str]:
        """Those of the files that are part of the table."""
        return paths & {file.path for file in manifest_files(self._store)}


def manifest_files(store: ObjectStore) -> list[TableFile]:
    """All files of the table."""
    found = []
    for path in store.list(MANIFESTS):
        if _is_manifest(path):
            found += msgspec.json.decode(store.get(path), type=Manifest).files
    return found


def read_manifest(path: str) -> list[str]:
    """The files of a table, as paths or URIs that pyarrow and Spark take."""
    store = open_store(path)
    uris = [store.uri(file.path) for file in manifest_files(store)]
    return [uri.removeprefix("file://") for uri in uris]


def table_schema(path: str) -> pa.Schema | None:
    """Of the records, with the columns of the partitions; None for an empty table. The newest files tell."""
    store = open_store(path)
    for name in sorted(filter(_is_manifest, store.list(MANIFESTS)), key=_checkpoint_of, reverse=True):
        if files := msgspec.json.decode(store.get(name), type=Manifest).files:
            return files[0].arrow_schema()
    return None


def _folder(writer: str) -> str:
    return f"{MANIFESTS}/{xxhash.xxh3_64_hexdigest(writer.encode('utf-8', 'surrogatepass'))}"


def _is_manifest(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".json") and name[:-5].isdigit()


def _checkpoint_of(path: str) -> int:
    return int(path.rpartition("/")[2][:-5])
