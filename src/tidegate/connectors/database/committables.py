"""What a database sink leaves in the checkpoint until it is committed. Version 1; bytes, never a pickle. Pure.

    {"kind": "prepared", "id": ..., "rows": 17, "table": "orders", "v": 1}
    {"kind": "rows", "id": ..., "rows": 17, "table": "orders", "columns": [...], "key": [...],
     "checkpoint": 3, "v": 1} LF Arrow IPC stream

The first names a transaction that the server has prepared. The second holds the records themselves. No address and no
password: whoever commits uses those of the sink as it is then.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

FORMAT_VERSION = 1


class PreparedEpoch(msgspec.Struct, frozen=True, tag_field="kind", tag="prepared", rename={"version": "v"}):
    """The server holds the records."""

    id: str  # names.TransactionName
    rows: int
    table: str
    version: int = FORMAT_VERSION


class KeptEpoch(msgspec.Struct, frozen=True, tag_field="kind", tag="rows", rename={"version": "v"}):
    """The checkpoint holds the records."""

    id: str
    rows: int
    table: str
    columns: list[str]
    key: list[str]  # not empty: a row with this key is replaced
    checkpoint: int
    version: int = FORMAT_VERSION


Epoch = PreparedEpoch | KeptEpoch


def encode(epoch: Epoch, batches: list[pa.RecordBatch] | None = None) -> bytes:
    header = msgspec.json.encode(epoch)
    if batches is None:
        return header
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return header + b"\n" + bytes(sink.getvalue())


def decode(data: bytes) -> Epoch:
    """:raises ValueError: when it is none of ours, or of a version that this release cannot read."""
    try:
        epoch: Epoch = msgspec.json.decode(data.split(b"\n", 1)[0], type=Epoch)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a committable of the database sink cannot be read ({error})") from None
    if epoch.version != FORMAT_VERSION:
        raise ValueError(
            f"a committable of the database sink has version {epoch.version}, this release reads {FORMAT_VERSION}; start "
            "the job with the release that wrote it"
        )
    return epoch


def batches_of(data: bytes) -> list[pa.RecordBatch]:
    """The records of a `KeptEpoch`."""
    return list(pa.ipc.open_stream(data.split(b"\n", 1)[1]))
