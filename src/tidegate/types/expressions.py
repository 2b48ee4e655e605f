"""Arrow expressions over a batch. Pure; both sides: on the driver over no rows, which tells the types that come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def projected(batch: pa.RecordBatch, names: Sequence[str], expressions: Sequence[Any]) -> pa.RecordBatch:
    """A column for each expression, row for row.

    :raises pyarrow.ArrowInvalid: and its kin, for what the columns do not allow.
    """
    import pyarrow.acero as acero  # here, because it takes a third of a second, and most jobs have no expression

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
    project = acero.Declaration("project", acero.ProjectNodeOptions(list(expressions), list(names)))
    made = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    batches = made.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], made.schema)
