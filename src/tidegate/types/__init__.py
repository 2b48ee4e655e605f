"""Types of values and records: what users declare, how it becomes Arrow columns, and back without loss.

Pure; used on the driver (declarations) and on the executors (conversion). A type is declared once, with an annotation;
everything else (the wire, state files, savepoints, sinks) asks the DataType or RecordType made from it.
"""

from tidegate.types.annotations import data_type
from tidegate.types.base import DataType, Naive, NaiveDatetime
from tidegate.types.pickled import Pickled
from tidegate.types.records import UNTYPED, RecordType, field_type, record_type, stored_annotation
from tidegate.types.returns import return_annotation_of

__all__ = [
    "UNTYPED",
    "DataType",
    "Naive",
    "NaiveDatetime",
    "Pickled",
    "RecordType",
    "data_type",
    "field_type",
    "record_type",
    "return_annotation_of",
    "stored_annotation",
]
