"""What a part of the world looks like, and the way back to it: one walk over the real objects gives both.

    picture = take_picture(root, is_elsewhere)
    picture.digest          equal exactly where everything that a decision could depend on is equal
    picture.restore()       writes the contents back into the very same objects, so that closures keep their meaning

A kind of object that the walk does not know is an error, never a gap. What is left out stands in LEFT_OUT, with the reason.
Moments (the manual clock begins at EPOCH) are compared as distances from now.
"""

from __future__ import annotations

import enum
import marshal
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import xxhash

from tidegate.ids import SlotId

EPOCH = 1e6  #: where the manual clock begins; no duration of a job in a test comes near it

#: Class name -> attributes that no decision depends on: they are told to people, or never change while an attempt runs.
LEFT_OUT: dict[str, frozenset[str]] = {
    "CheckpointScheduler": frozenset(
        {"story", "last_completion", "slots"}
    ),  # there is no pause between checkpoints here
    "SlotMachine": frozenset({"story", "channels", "limits"}),
    "JobMachine": frozenset({"story"}),
    "SlotCheckpoint": frozenset({"began"}),
    "Attempt": frozenset({"starts", "connected", "_last_tick", "_silence_due", "_began", "halted_at", "timeouts"}),
    "JobLoop": frozenset({"_inputs"}),
    "SendTimes": frozenset({"_last", "_idle_at"}),  # every turn flushes
    "Outbox": frozenset({"bytes_sent"}),
    "Commits": frozenset({"last_error"}),
    "FrameAtHand": frozenset({"operator"}),
}
#: Settings, types and plans, which nothing changes; locks; what only counts, measures or is shown; and what is another part's.
OPAQUE = frozenset(
    [
        "JobPlan",
        "PlannedOperator",
        "PlannedEdge",
        "SlotProgram",
        "SlotSettings",
        "FrameSeal",
        "ChannelSeal",
        "StreamEnvironment",
        "LogicalGraph",
        "JobConfig",
        "JobPaths",
        "Schema",
        "KeySelector",
        "IntKey",
        "Place",
        "UserLine",
        "ValueState",
        "Fitter",
        "TupleRecords",
        "UntypedRecords",
        "TupleType",
        "IntType",
        "WriterContext",
        "ReaderContext",
        "OperatorContext",
        "CheckpointPolicy",
        "Timeouts",
        "LedgerSink",
        "Numbers",
        "CountEach",
        "LocalCopies",
        "StateBackends",
        "Time",
        "Condition",
        "lock",
        "RLock",
        "Logger",
        "generator",
        "module",
        "type",
        "ABCMeta",
        "EnumType",
        "builtin_function_or_method",
        "wrapper_descriptor",
        "object",
        "CommitCounts",
        "SliceSizer",
        "KeySampler",
        "JobView",
        "UserMetrics",
        "ProcessingTime",
        "Generator",
        "Ledger",
        "ExploredStore",
        "AnywhereStore",
        "World",
        "ManualClock",
        "ExploredPoints",
        "InProcessRun",
        "Constant",
    ]
)
#: Brought back, and not compared: for people, but its own code must find what it has left.
NOT_COMPARED = frozenset({"CheckpointReports", "Story"})
ATOMS = frozenset({int, str, bytes, bool, type(None), complex, type(Ellipsis)})


class Unknown(TypeError):
    """The walk has met something that it cannot compare."""


class Picture:
    """Of one part."""

    __slots__ = ("digest", "saved")

    def __init__(self, digest: int, saved: list[tuple[int, Any, Any]]) -> None:
        self.digest = digest
        self.saved = saved

    def restore(self) -> None:
        for kind, target, content in self.saved:
            if kind == DICT:
                target.clear()
                target.update(content)
            elif kind == LIST:
                target[:] = content
            elif kind == DEQUE:
                target.clear()
                target.extend(content)
            elif kind == SET:
                target.clear()
                target.update(content)
            elif kind == SLOTS:
                for setter, value in content:
                    setter(target, value)
            elif kind == CELL:
                target.cell_contents = content
            elif kind == BYTES:
                target[:] = content


DICT, LIST, DEQUE, SET, SLOTS, CELL, BYTES = range(7)


class ClassOf:
    """How instances of one class are walked."""

    __slots__ = ("has_dict", "is_frozen", "is_opaque", "is_plain", "is_struct", "left_out", "name", "slots")

    def __init__(self, cls: type) -> None:
        self.name = cls.__name__
        self.is_plain = _is_plain(cls)
        self.is_opaque = self.name in OPAQUE or issubclass(cls, type)
        self.left_out = LEFT_OUT.get(self.name, frozenset())
        self.is_struct = issubclass(cls, msgspec.Struct)
        params = getattr(cls, "__dataclass_params__", None)
        self.is_frozen = self.is_struct or (params is not None and params.frozen)
        names: list[str] = []
        if not self.is_plain or self.is_opaque:
            pass
        elif self.is_struct:
            names = list(cls.__struct_fields__)
        else:
            for base in reversed(cls.__mro__):
                found = base.__dict__.get("__slots__", ())
                names += [found] if isinstance(found, str) else list(found)
        self.slots = [
            (name, getattr(cls, name).__get__, getattr(cls, name).__set__)
            for name in dict.fromkeys(names)
            if name not in ("__weakref__", "__dict__")
        ]
        self.has_dict = cls.__dictoffset__ != 0


_classes: dict[type, ClassOf] = {}


class Walk:
    """One walk over a part. `elsewhere`: by id, what belongs to another part, and its name."""

    __slots__ = ("elsewhere", "now", "saved", "seen", "tokens")

    def __init__(self, elsewhere: dict[int, str], now: float) -> None:
        self.tokens: list[Any] = []
        self.saved: list[tuple[int, Any, Any]] = []
        self.seen: dict[int, int] = {}
        self.elsewhere = elsewhere
        self.now = now

    def picture(self, *roots: Any) -> Picture:
        for root in roots:
            self.walk(root)
        return Picture(xxhash.xxh3_64_intdigest(marshal.dumps(self.tokens, 2)), self.saved)

    def walk(self, value: Any) -> None:
        cls = value.__class__
        tokens = self.tokens
        if cls in ATOMS:
            tokens.append(value)
            return
        if cls is float:
            tokens.append(round(value - self.now, 6) if EPOCH / 2 < value < EPOCH * 2 else value)
            return
        if cls is tuple:
            tokens.append(-len(value) - 1000)
            for each in value:
                if each.__class__ in ATOMS:
                    tokens.append(each)
                else:
                    self.walk(each)
            return
        if cls is SlotId:
            tokens.append(str(value))
            return
        identity = id(value)
        if identity in self.elsewhere:
            tokens.append(self.elsewhere[identity])
            return
        known = _classes.get(cls)
        if known is not None and known.is_opaque:
            tokens.append(known.name)
            return
        number = self.seen.get(identity)
        if number is not None:
            tokens.append(f"@{number}")
            return
        self.seen[identity] = len(self.seen)
        if cls is dict or cls is OrderedDict:
            self.saved.append((DICT, value, dict(value)))
            tokens.append(f"{{{len(value)}")
            for key, each in value.items():
                self.walk(key)
                self.walk(each)
        elif cls is list:
            self.saved.append((LIST, value, value[:]))
            tokens.append(f"[{len(value)}")
            for each in value:
                if each.__class__ in ATOMS:
                    tokens.append(each)
                else:
                    self.walk(each)
        elif cls is deque:
            self.saved.append((DEQUE, value, list(value)))
            tokens.append(f"({len(value)}")
            for each in value:
                self.walk(each)
        elif cls is set or cls is frozenset:
            if cls is set:
                self.saved.append((SET, value, set(value)))
            tokens.append(f"<{len(value)}")
            for each in sorted(value, key=repr) if len(value) > 1 else value:
                self.walk(each)
        else:
            self._instance(value, cls)

    def _instance(self, value: Any, cls: type) -> None:
        tokens = self.tokens
        known = _classes.get(cls)
        if known is None:
            known = _classes[cls] = ClassOf(cls)
        name = known.name
        if known.is_opaque:
            tokens.append(name)
        elif isinstance(value, enum.Enum):
            tokens.append(value.name)
        elif cls is types.FunctionType:
            code = value.__code__
            tokens.append(f"{code.co_name}:{code.co_firstlineno}")
            for default in value.__defaults__ or ():
                self.walk(default)
            for cell in value.__closure__ or ():
                content = cell.cell_contents
                self.saved.append((CELL, cell, content))
                self.walk(content)
        elif cls is types.MethodType:
            tokens.append(value.__func__.__qualname__)
            self.walk(value.__self__)
        elif cls is memoryview:
            tokens.append(bytes(value))
        elif cls is bytearray:
            self.saved.append((BYTES, value, bytes(value)))
            tokens.append(bytes(value))
        elif cls is range or cls is types.GenericAlias:
            tokens.append(repr(value))
        elif isinstance(value, types.BuiltinMethodType):
            tokens.append(value.__name__)
            self.walk(value.__self__)
        elif isinstance(value, Future):
            names = ("_state", "_result", "_exception")
            self.saved.append((DICT, value.__dict__, dict(value.__dict__)))
            for each in names:
                self.walk(getattr(value, each))
        elif isinstance(value, BaseException):
            tokens.append(f"{name}: {value}")
        elif name == "ndarray":
            self.saved.append((BYTES, value, value.copy()))
            tokens.append(repr(value.tolist()))
        elif cls.__module__ == "pyarrow.lib":
            tokens.append(repr(value.to_pylist()) if hasattr(value, "to_pylist") else str(value))
        elif isinstance(value, dict):  # of a kind of its own
            tokens.append(name)
            self.saved.append((DICT, value, dict(value)))
            for key, each in value.items():
                self.walk(key)
                self.walk(each)
            if cls.__dictoffset__:
                self.saved.append((DICT, value.__dict__, dict(value.__dict__)))
                for each in value.__dict__.values():
                    self.walk(each)
        elif known.is_plain:
            before = len(tokens)
            self._fields(value, known)
            if name in NOT_COMPARED:
                del tokens[before:]
        else:
            raise Unknown(f"{cls.__module__}.{cls.__qualname__}: {value!r}")

    def _fields(self, value: Any, known: ClassOf) -> None:
        tokens = self.tokens
        tokens.append(known.name)
        left_out = known.left_out
        if known.has_dict:
            attributes = value.__dict__
            if not known.is_frozen:
                self.saved.append((DICT, attributes, attributes.copy()))
            for name, each in attributes.items():
                if each.__class__ in ATOMS:
                    if name not in left_out:
                        tokens.append(each)
                elif name not in left_out:
                    self.walk(each)
        if known.slots:
            content = []
            for name, get, set_ in known.slots:
                try:
                    each = get(value)
                except AttributeError:
                    tokens.append("unset")
                    continue
                content.append((set_, each))
                if each.__class__ in ATOMS:
                    if name not in left_out:
                        tokens.append(each)
                elif name not in left_out:
                    self.walk(each)
            if not known.is_frozen:
                self.saved.append((SLOTS, value, content))


def _is_plain(cls: type) -> bool:
    """Made of attributes that can be seen: a class written in Python, or a message."""
    return issubclass(cls, msgspec.Struct) or (
        bool(cls.__flags__ & (1 << 9)) and all(base is object or base.__flags__ & (1 << 9) for base in cls.__mro__)
    )


def take_picture(elsewhere: dict[int, str], now: float, *roots: Any) -> Picture:
    return Walk(elsewhere, now).picture(*roots)


__all__ = ["EPOCH", "Callable", "Picture", "Unknown", "take_picture"]
