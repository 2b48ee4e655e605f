"""A failure as Flink's Java client can read it: a serialised org.apache.flink.util.SerializedThrowable. Driver; pure.

The client unpacks the bytes with Java's own deserialisation and prints the message; there is no other way to tell it why a
savepoint has failed. The layout is that of the Java Object Serialization Specification: a class is described by its name,
serialVersionUID, flags, fields and superclass; then the values follow, those of the superclass first.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass

_STREAM_HEADER = b"\xac\xed\x00\x05"
_OBJECT, _CLASS, _STRING, _NULL, _END_OF_BLOCK = b"\x73", b"\x72", b"\x74", b"\x70", b"\x78"
_SERIALIZABLE, _WITH_WRITE_METHOD = 2, 3
_STRING_TYPE, _BYTES_TYPE = "Ljava/lang/String;", "[B"
_MAX_TEXT = 16_000  #: characters; a string's length has two bytes, a character at most three


@dataclass(frozen=True, slots=True)
class _JavaClass:
    name: str
    uid: int
    flags: int
    fields: tuple[tuple[str, str], ...]  #: (name, type), objects and arrays only
    parent: _JavaClass | None

    def description(self) -> bytes:
        parts = [_CLASS, _utf(self.name), struct.pack(">qBH", self.uid, self.flags, len(self.fields))]
        for name, kind in self.fields:
            parts += [kind[:1].encode(), _utf(name), _STRING, _utf(kind)]
        parts += [_END_OF_BLOCK, _NULL if self.parent is None else self.parent.description()]
        return b"".join(parts)


_THROWABLE = _JavaClass(
    "java.lang.Throwable", -3042686055658047285, _WITH_WRITE_METHOD, (("detailMessage", _STRING_TYPE),), None
)
_EXCEPTION = _JavaClass("java.lang.Exception", -3387516993124229948, _SERIALIZABLE, (), _THROWABLE)
_SERIALIZED_THROWABLE = _JavaClass(
    "org.apache.flink.util.SerializedThrowable",
    7284183123441947635,
    _SERIALIZABLE,
    (
        ("fullStringifiedStackTrace", _STRING_TYPE),
        ("originalErrorClassName", _STRING_TYPE),
        ("serializedException", _BYTES_TYPE),
    ),
    _EXCEPTION,
)


def failure_cause(class_name: str, message: str, stack_trace: str) -> dict[str, str]:
    """What Flink's answers hold under `failure-cause`."""
    values = [
        _STRING + _utf(message),  # of Throwable,
        _END_OF_BLOCK,  # which writes itself, and ends here
        _STRING + _utf(stack_trace),
        _STRING + _utf(class_name),
        _NULL,  # the original exception is not sent along
    ]
    blob = _STREAM_HEADER + _OBJECT + _SERIALIZED_THROWABLE.description() + b"".join(values)
    return {
        "class": class_name,
        "stack-trace": stack_trace,
        "serialized-throwable": base64.b64encode(blob).decode(),
    }


def _utf(text: str) -> bytes:
    """Java's modified UTF-8, for what it shares with ours: no NUL, nothing beyond the basic plane, no lone surrogate."""
    plain = "".join(c if 0 < ord(c) < 0x10000 and not 0xD800 <= ord(c) < 0xE000 else "?" for c in text[:_MAX_TEXT])
    data = plain.encode()
    return struct.pack(">H", len(data)) + data
