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
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, TypeVar, overload

from tidegate.errors import ConfigurationError, TypeDeclarationError, UserLine
from tidegate.types import DataType, data_type

if TYPE_CHECKING:
    from tidegate.state.handles import ListHandle, MapHandle, ValueHandle

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Kind = Literal["value", "list", "map"]


class Declaration(ABC):
    """A declared state: what metadata, backends and checks need to know of it."""

    kind: ClassVar[Kind]
    name: str  #: the attribute it was assigned to; "" until then
    line: UserLine  #: where the user wrote it
    value_type: DataType  #: of the value, of a list's elements, of a map's values

    def __init__(self) -> None:
        self.name = ""
        self.line = _calling_line()

    @property
    @abstractmethod
    def type_name(self) -> str:
        """The type as text, for metadata and for messages."""

    def __set_name__(self, owner: type, name: str) -> None:
        # Under a second name it keeps the first; `declared_states` refuses that. An error from here would reach the
        # user wrapped in a RuntimeError before Python 3.12.
        if not self.name:
            self.name = name

    def _refuse_access(self, instance: object) -> NoReturn:
        raise ConfigurationError(
            f"state {type(instance).__name__}.{self.name} ({self.line}) was used outside a running job: state can be "
            "used only inside process_element and on_timer, where a key is current. Move the access there; to try the "
            "function in a unit test, run it with tidegate.testing.",
            state=self.name,
        )

    def __repr__(self) -> str:
        return f"<{self.kind} state {self.name or '(unnamed)'}: {self.type_name}>"


class ValueState(Declaration, Generic[T]):
    """One value for each key. `get` gives `default` where nothing was set: None unless declared.

    :raises TypeDeclarationError: for a type that cannot be stored, or a default that is not of it.
    """

    kind = "value"

    @overload
    def __init__(self: ValueState[T | None], type: type[T]) -> None: ...
    @overload
    def __init__(self: ValueState[T], type: type[T], *, default: T) -> None: ...
    @overload
    def __init__(self: ValueState[Any], type: Any, *, default: Any = ...) -> None: ...

    def __init__(self, type: Any, *, default: Any = None) -> None:
        super().__init__()
        self.value_type = data_type(type)
        self.default = None if default is None else _checked_default(self.value_type, default, self.line)

    @property
    def type_name(self) -> str:
        return self.value_type.name

    @overload
    def __get__(self, instance: None, owner: type) -> ValueState[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> ValueHandle[T]: ...

    def __get__(self, instance: object | None, owner: type) -> ValueState[T] | ValueHandle[T]:
        if instance is not None:
            self._refuse_access(instance)
        return self


class ListState(Declaration, Generic[T]):
    """An ordered list for each key; `type` is that of its elements."""

    kind = "list"

    @overload
    def __init__(self: ListState[T], type: type[T]) -> None: ...
    @overload
    def __init__(self: ListState[Any], type: Any) -> None: ...

    def __init__(self, type: Any) -> None:
        super().__init__()
        self.value_type = data_type(type)

    @property
    def type_name(self) -> str:
        return f"list[{self.value_type.name}]"

    @overload
    def __get__(self, instance: None, owner: type) -> ListState[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> ListHandle[T]: ...

    def __get__(self, instance: object | None, owner: type) -> ListState[T] | ListHandle[T]:
        if instance is not None:
            self._refuse_access(instance)
        return self


class MapState(Declaration, Generic[K, V]):
    """A map for each key. The map's own keys must be of a type whose values cannot change."""

    kind = "map"

    @overload
    def __init__(self: MapState[K, V], key_type: type[K], value_type: type[V]) -> None: ...
    @overload
    def __init__(self: MapState[Any, Any], key_type: Any, value_type: Any) -> None: ...

    def __init__(self, key_type: Any, value_type: Any) -> None:
        super().__init__()
        self.key_type: DataType = data_type(key_type)
        self.value_type = data_type(value_type)
        if not self.key_type.immutable:
            raise TypeDeclarationError(
                f"{self.line}: {self.key_type.name} cannot be the key type of a MapState, because its values can "
                "change. Use str, int, bytes, a date or a tuple of such.",
                line=str(self.line),
            )

    @property
    def type_name(self) -> str:
        return f"map[{self.key_type.name}, {self.value_type.name}]"

    @overload
    def __get__(self, instance: None, owner: type) -> MapState[K, V]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> MapHandle[K, V]: ...

    def __get__(self, instance: object | None, owner: type) -> MapState[K, V] | MapHandle[K, V]:
        if instance is not None:
            self._refuse_access(instance)
        return self


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
    return found


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
    """The first line outside this module: the one that wrote the declaration."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return UserLine(frame.f_code.co_filename, frame.f_lineno)
