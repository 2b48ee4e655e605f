"""`from_dataframe`: a Spark DataFrame as a bounded source, by way of Parquet files in the job's folder.

Where it runs: `write_to` on the driver, as a Spark job of its own before the stream: a running stream holds its slots, and
Spark refuses a job that mixes pipelined and regular shuffles. The files are then read on the executors, as
connectors/files_source.py reads any others. When they are written, and where: coordinator/inputs.py.

So a resumed job continues with the rows of its first start, whatever the DataFrame would give now.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.connectors.files_source import Files
from tidegate.connectors.local_paths import local_path, make_folder
from tidegate.errors import ConfigurationError, StorageError
from tidegate.spark.pipelined import check_has_jvm
from tidegate.storage.store import without_credentials

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class DataFrameSource(Source):
    """The rows of a DataFrame, as dicts of its columns; in order within each of its partitions.

    :raises ConfigurationError: for a column whose type Arrow does not have, or a DataFrame of Spark Connect.
    """

    bounded = True
    makes_new_records = True

    def __init__(self, frame: DataFrame, uid: str) -> None:
        check_has_jvm(frame.sparkSession)
        self._frame: DataFrame | None = frame  #: None on the executors
        self._uid = uid
        self._folder: str | None = None  #: None until it is known where the rows are
        self.record_type = _arrow_schema(frame)

    def check_storage(self, storage: str) -> None:
        """:raises ConfigurationError: for a storage that is not a folder of this machine or a shared mount."""
        _local_root(storage)

    def write_to(self, folder: str) -> None:
        """Driver, once in the life of a job. :raises StorageError: when the folder cannot be made."""
        assert self._frame is not None
        path = _local_root(folder)
        try:
            make_folder(os.path.dirname(path))
        except OSError as error:
            raise StorageError(
                f"the folder {path} for the rows of the DataFrame {self._uid!r} cannot be made ({error}). Give "
                "checkpointing(storage=...) a folder that the driver and all executors can write.",
                path=path,
            ) from error
        self._frame.write.parquet(f"file://{path}")

    def read_from(self, folder: str) -> None:
        self._folder = _local_root(folder)

    def discover_splits(self, parallelism: int) -> list[Split]:
        return self._files().discover_splits(parallelism)

    def reader(self, context: ReaderContext) -> SourceReader:
        return _OwnFilesReader(self._files().reader(context), self._files().paths[0], self._uid)

    def _files(self) -> Files:
        assert self._folder is not None, "the rows are written before anything is read"
        return Files(self._folder, "parquet", type=self.record_type)

    def __getstate__(self) -> dict[str, Any]:
        """Without the DataFrame, which lives in the driver alone."""
        return {**self.__dict__, "_frame": None}


class _OwnFilesReader(SourceReader):
    """Reads files, and refuses those of another materialisation: read next to our own, every row would come twice."""

    def __init__(self, files: SourceReader, folder: str, uid: str) -> None:
        self._files = files
        self._folder = folder
        self._uid = uid

    def add_splits(self, splits: Sequence[Split]) -> None:
        for split in splits:
            if os.path.dirname(split.id) != self._folder:
                raise ConfigurationError(
                    f"the checkpoint continues {split.id}, but the DataFrame {self._uid!r} of this job was written to "
                    f"{self._folder}: a checkpoint of another job holds positions in that job's rows. Resume under the "
                    "old job's name and storage, or read its files with Files(...).",
                    split=split.id,
                )
        self._files.add_splits(splits)

    def poll(self, deadline: float) -> list[Any] | pa.RecordBatch | None:
        return self._files.poll(deadline)

    def splits(self) -> list[Split]:
        return self._files.splits()

    def close(self) -> None:
        self._files.close()


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        # Spark's instants are UTC microseconds, whatever time zone the session shows them in.
        return to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    except PySparkException as error:
        raise ConfigurationError(
            f"the DataFrame has a column that cannot be a column of a stream ({error}). Cast it before, or select the "
            "others."
        ) from error


def _local_root(storage: str) -> str:
    try:
        return local_path(storage)
    except ConfigurationError:
        raise ConfigurationError(
            f"from_dataframe writes the rows into the job's storage, and can do so in a local folder or a shared mount "
            f"only (file:///path), not in {without_credentials(storage)}. Write the DataFrame to files yourself and read "
            "them with from_source(Files(...)).",
            storage=without_credentials(storage),
        ) from None
