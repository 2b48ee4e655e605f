"""How a function declares its keyed state: as attributes of its class, so that it is known before anything runs.

    class CountWords(tg.KeyedProcessFunction):
        count = tg.ValueState(int, default=0)

        def process_element(self, word, ctx):
            self.count.set(self.count.get() + 1)

Driver: read by `declared_states` to check the job, to write metadata, to refuse what cannot be restored. Executor: the
runtime puts a bound handle under the same name into the instance's `__dict__`. A declaration is a descriptor without
`__set__`, so the handle hides it and `self.count` is one dictionary lookup on the per-record path.

Classic mistake: `__init__` that reads or sets state. No key is current there, so it is refused in words.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, Protocol, Self, TypeVar, overload

from tidegate.errors import ConfigurationError, TypeDeclarationError, UserLine
from tidegate.state.handles import AggregatingHandle, ListHandle, MapHandle, ReducingHandle, ValueHandle
from tidegate.types import DataType, data_type

if TYPE_CHECKING:
    from tidegate.state.ttl import Ttl

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Accumulator = TypeVar("Accumulator")
HandleT = TypeVar("HandleT")
Given = TypeVar("Given")  #: by a constructor's argument: the class's own variables may not be in the type of its `self`
GivenKey = TypeVar("GivenKey")

Kind = Literal["value", "list", "map", "reducing", "aggregating", "timer"]
#: How the rows of each kind look (state/sections.py): by the base class of its declaration.
ROWS: dict[str, Literal["value", "list", "map"]] = {
    "value": "value",
    "list": "list",
    "map": "map",
    "reducing": "value",
    "aggregating": "value",
    "timer": "value",
}


class Absent:
    """The default of a state where even None would be something that was stored."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "nothing stored"


ABSENT = Absent()


class Declaration(ABC):
    """A declared state: what metadata, backends and checks need to know of it."""

    kind: ClassVar[Kind]
    name: str  #: the attribute it was assigned to; "" until then
    line: UserLine  #: where the user wrote it
    value_type: DataType  #: of the value or accumulator, of a list's elements, of a map's values
    ttl: Ttl | None  #: how long each value, element or map entry lives; None: until it is cleared
    renamed_from: str | None  #: under which it was stored before; None: it always had this name

    def __init__(self, ttl: Ttl | None = None, renamed_from: str | None = None) -> None:
        self.name = ""
        self.line = _calling_line()
        self.ttl = ttl
        self.renamed_from = renamed_from

    @property
    @abstractmethod
    def type_name(self) -> str:
        """The type as text, for metadata and for messages."""

    def __set_name__(self, owner: type, name: str) -> None:
        # Under a second name it keeps the first; `declared_states` refuses that. An error from here would reach the
        # user wrapped in a RuntimeError before Python 3.12.
        if not self.name:
            self.name = name

    def _type(self, annotation: Any) -> DataType:
        """What the user has declared. :raises TypeDeclarationError: with the user's line, for what cannot be stored."""
        try:
            return data_type(annotation)
        except TypeDeclarationError as error:
            raise TypeDeclarationError(
                f"{self.line}: {error.message}", **{**error.context, "line": str(self.line)}
            ) from None

    def _refuse_access(self, instance: object) -> NoReturn:
        raise ConfigurationError(
            f"state {type(instance).__name__}.{self.name} ({self.line}) was used outside a running job: state can be "
            "used only inside process_element and on_timer, where a key is current. Move the access there; to try the "
            "function in a unit test, run it with tidegate.testing.",
            state=self.name,
        )

    def __repr__(self) -> str:
        return f"<{self.kind} state {self.name or '(unnamed)'}: {self.type_name}>"


class Attribute(Generic[HandleT]):
    """A declaration as the attribute that it is: the handle, for whoever checks the types; until there is one, refused."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> HandleT: ...

    def __get__(self, instance: object | None, owner: type) -> Self | HandleT:
        if instance is not None:
            assert isinstance(self, Declaration)
            self._refuse_access(instance)
        return self


class StoredValue(Declaration):
    """A state that keeps one value for each key, whatever user code sees of it."""

    default: Any  #: what there is where nothing is stored

    @property
    def type_name(self) -> str:
        return self.value_type.name


class StoredList(Declaration):
    """The same for an ordered list."""

    @property
    def type_name(self) -> str:
        return f"list[{self.value_type.name}]"


class StoredMap(Declaration):
    """The same for a map."""

    key_type: DataType

    @property
    def type_name(self) -> str:
        return f"map[{self.key_type.name}, {self.value_type.name}]"


class ValueState(StoredValue, Attribute[ValueHandle[T]], Generic[T]):
    """One value for each key. `get` gives `default` where nothing was set: None unless declared.

    :raises TypeDeclarationError: for a type that cannot be stored, or a default that is not of it.

        >>> class Last(tg.KeyedProcessFunction):
        ...     last = tg.ValueState(int, default=0)
        ...     def process_element(self, n, ctx):
        ...         yield n - self.last.get()
        ...         self.last.set(n)
        >>> harness(Last(), key_by=lambda n: "all").process_many([5, 7, 4])
        [5, 2, -3]
    """

    kind = "value"

    @overload
    def __init__(
        self: ValueState[Given | None], type: type[Given], *, ttl: Ttl | None = ..., renamed_from: str | None = ...
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[Given],
        type: type[Given],
        *,
        default: Given,
        ttl: Ttl | None = ...,
        renamed_from: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[Any], type: Any, *, default: Any = ..., ttl: Ttl | None = ..., renamed_from: str | None = ...
    ) -> None: ...

    def __init__(
        self, type: Any, *, default: Any = None, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None:
        super().__init__(ttl, renamed_from)
        self.value_type = self._type(type)
        self.default = None if default is None else _checked_default(self.value_type, default, self.line)


class ListState(StoredList, Attribute[ListHandle[T]], Generic[T]):
    """An ordered list for each key; `type` is that of its elements.

    >>> class Gather(tg.KeyedProcessFunction):
    ...     words = tg.ListState(str)
    ...     def process_element(self, word, ctx):
    ...         self.words.add(word)
    >>> gathered = harness(Gather(), key_by=len)
    >>> gathered.process_many(["to", "be", "not"]), gathered.state(2)
    ([], {'words': ['to', 'be']})
    """

    kind = "list"

    @overload
    def __init__(
        self: ListState[Given], type: type[Given], *, ttl: Ttl | None = ..., renamed_from: str | None = ...
    ) -> None: ...
    @overload
    def __init__(self: ListState[Any], type: Any, *, ttl: Ttl | None = ..., renamed_from: str | None = ...) -> None: ...

    def __init__(self, type: Any, *, ttl: Ttl | None = None, renamed_from: str | None = None) -> None:
        super().__init__(ttl, renamed_from)
        self.value_type = self._type(type)


class MapState(StoredMap, Attribute[MapHandle[K, V]], Generic[K, V]):
    """A map for each key. The map's own keys must be of a type whose values cannot change.

    >>> class Pages(tg.KeyedProcessFunction):
    ...     visits = tg.MapState(str, int)
    ...     def process_element(self, click, ctx):
    ...         self.visits[click[1]] = self.visits.get(click[1], 0) + 1
    >>> pages = harness(Pages(), key_by=0)
    >>> pages.process_many([("ann", "/"), ("ann", "/tea"), ("ann", "/")]), pages.state("ann")
    ([], {'visits': {'/': 2, '/tea': 1}})
    """

    kind = "map"

    @overload
    def __init__(
        self: MapState[GivenKey, Given],
        key_type: type[GivenKey],
        value_type: type[Given],
        *,
        ttl: Ttl | None = ...,
        renamed_from: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: MapState[Any, Any],
        key_type: Any,
        value_type: Any,
        *,
        ttl: Ttl | None = ...,
        renamed_from: str | None = ...,
    ) -> None: ...

    def __init__(
        self, key_type: Any, value_type: Any, *, ttl: Ttl | None = None, renamed_from: str | None = None
    ) -> None:
        super().__init__(ttl, renamed_from)
        self.key_type = self._type(key_type)
        self.value_type = self._type(value_type)
        if not self.key_type.immutable:
            raise TypeDeclarationError(
                f"{self.line}: {self.key_type.name} cannot be the key type of a MapState, because its values can "
                "change. Use str, int, bytes, a date or a tuple of such.",
                line=str(self.line),
            )


class ReducingState(StoredValue, Attribute[ReducingHandle[T]], Generic[T]):
    """One value for each key, into which `add` folds each new one: `total = tg.ReducingState(int, operator.add)`.

    `reduce_function(so_far, new)` returns a value of the same type. The first value that is added is kept as it is.

        >>> import operator
        >>> class Total(tg.KeyedProcessFunction):
        ...     total = tg.ReducingState(int, operator.add)
        ...     def process_element(self, n, ctx):
        ...         self.total.add(n)
        ...         yield self.total.get()
        >>> harness(Total(), key_by=lambda n: "all").process_many([1, 2, 3])
        [1, 3, 6]
    """

    kind = "reducing"
    default = ABSENT

    @overload
    def __init__(
        self: ReducingState[Given],
        type: type[Given],
        reduce_function: Callable[[Given, Given], Given],
        *,
        ttl: Ttl | None = ...,
        renamed_from: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: ReducingState[Any],
        type: Any,
        reduce_function: Callable[[Any, Any], Any],
        *,
        ttl: Ttl | None = ...,
        renamed_from: str | None = ...,
    ) -> None: ...

    def __init__(
        self,
        type: Any,
        reduce_function: Callable[[Any, Any], Any],
        *,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None:
        super().__init__(ttl, renamed_from)
        self.value_type = self._type(type)
        if not callable(reduce_function):
            raise TypeDeclarationError(
                f"{self.line}: a ReducingState needs a function of two values, not {reduce_function!r}: for a sum write "
                "tg.ReducingState(int, operator.add).",
                line=str(self.line),
            )
        self.reduce_function = reduce_function


class Aggregate(Protocol[In, Accumulator, Out]):
    """What an AggregatingState asks of its aggregation; `tg.AggregateFunction` is one.

    Classic mistake: an `add` that changes the accumulator and returns None. What it returns is what is kept.
    """

    def create_accumulator(self) -> Accumulator: ...

    def add(self, value: In, accumulator: Accumulator, /) -> Accumulator: ...

    def get_result(self, accumulator: Accumulator, /) -> Out: ...


class AggregatingState(StoredValue, Attribute[AggregatingHandle[In, Out]], Generic[In, Out]):
    """An accumulator for each key. `add` takes values of one type, `get` gives a result of another.

    The accumulator is what is stored, so its type must be known: `accumulator_type`, here or as an attribute of the
    aggregation. One whose values cannot change (a tuple, a frozen dataclass) is never copied. `merge(a, b)` of the
    aggregation is needed only where windows merge.
    """

    kind = "aggregating"
    default = ABSENT

    def __init__(
        self,
        aggregate: Aggregate[In, Any, Out],
        *,
        accumulator_type: Any = None,
        ttl: Ttl | None = None,
        renamed_from: str | None = None,
    ) -> None:
        super().__init__(ttl, renamed_from)
        if isinstance(aggregate, type):
            raise TypeDeclarationError(
                f"{self.line}: an AggregatingState needs an aggregation, not a class: write {aggregate.__name__}().",
                line=str(self.line),
            )
        declared = getattr(aggregate, "accumulator_type", None) if accumulator_type is None else accumulator_type
        if declared is None:
            raise TypeDeclarationError(
                f"{self.line}: the type of {type(aggregate).__name__}'s accumulator is not known. Give it: "
                "tg.AggregatingState(aggregate, accumulator_type=tuple[int, float]).",
                line=str(self.line),
            )
        self.value_type = self._type(declared)
        self.aggregate = aggregate


def declared_states(function: object) -> dict[str, Declaration]:
    """The states of a function's class (or of a class), by name: those of base classes first, each as it was written.

    A subclass may repeat a declaration of the same type (to give another default), or hide it with something that is no
    declaration.

    :raises TypeDeclarationError: for one name with two types, or one declaration under two names.
    """
    cls = function if isinstance(function, type) else type(function)
    found: dict[str, Declaration] = {}
    written: dict[str, Declaration] = {}  # the last declaration of each name, hidden or not
    for owner in reversed(cls.__mro__):
        for name, attribute in vars(owner).items():
            if not isinstance(attribute, Declaration):
                found.pop(name, None)
                continue
            attribute.__set_name__(owner, name)  # for one that was assigned after its class was made
            if attribute.name != name:
                raise TypeDeclarationError(
                    f"{owner.__name__}.{name} is the declaration of state {attribute.name!r} ({attribute.line}) under "
                    "a second name. Each state needs a declaration of its own.",
                    state=name,
                )
            earlier = written.get(name)
            if earlier is not None and (earlier.kind, earlier.type_name) != (attribute.kind, attribute.type_name):
                raise TypeDeclarationError(
                    f"state {name!r} of {cls.__name__} is declared twice with different types: {earlier.kind} state of "
                    f"{earlier.type_name} at {earlier.line}, {attribute.kind} state of {attribute.type_name} at "
                    f"{attribute.line}. Rename one of them.",
                    state=name,
                )
            written[name] = found[name] = attribute
    _check_renames(cls, found)
    return found


def _check_renames(cls: type, found: dict[str, Declaration]) -> None:
    taken: dict[str, str] = {name: name for name in found}
    for name, declaration in found.items():
        old = declaration.renamed_from
        if old is None:
            continue
        if old in taken:
            raise TypeDeclarationError(
                f"state {name!r} of {cls.__name__} ({declaration.line}) is said to be renamed from {old!r}, but that is also "
                f"where {taken[old]!r} comes from. One stored state can become one declared state.",
                state=name,
            )
        taken[old] = name


def _checked_default(value_type: DataType, default: Any, line: UserLine) -> Any:
    try:
        # Through the stored form and back: `get` then gives the same before and after a restore.
        (fitted,) = value_type.from_arrow(value_type.to_arrow([default]))
    except Exception as error:
        raise TypeDeclarationError(
            f"{line}: the default {default!r} does not fit the declared type {value_type.name}: {error}", line=str(line)
        ) from error
    return fitted


def _calling_line() -> UserLine:
    """The first line outside this package: the one that wrote the declaration."""
    package = __name__.rpartition(".")[0] + "."
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame = frame.f_back
    return UserLine(frame.f_code.co_filename, frame.f_lineno)
