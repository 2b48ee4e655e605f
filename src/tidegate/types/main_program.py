"""Classes of the main program, where another program is the main one. Pure but for the module `__main__`.

The driver's program is `__main__`; on an executor a worker of Spark's is. Classes that the program defines travel there by
value, with the functions that name them (cloudpickle), and pickle would not find them again. So the driver notes which went
along, and a worker puts them into its own `__main__`: from there on records and state name them as those of any module, in a
few bytes, and what a later run of the program reads is of the class that it has then.

What is not found in that way (a class that a function has made) is pickled by value, see types/pickled.py.
"""

from __future__ import annotations

import io
import sys
from types import ModuleType
from typing import Any

import cloudpickle

MAIN = "__main__"
_installed: dict[str, Any] = {}  #: of this worker's `__main__`, by name: those of the job that it works for


class _Noting(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles as cloudpickle does, and notes the classes of the main program that it meets."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.classes: dict[str, type] = {}

    def reducer_override(self, obj: Any) -> Any:
        if _is_of_main(obj):
            self.classes[obj.__name__] = obj  # those inside of classes are found through these
        return super().reducer_override(obj)


def _is_of_main(obj: Any) -> bool:
    return isinstance(obj, type) and obj.__module__ == MAIN and vars(sys.modules[MAIN]).get(obj.__name__) is obj


def with_program_classes(shipped: Any) -> bytes:
    """Driver. `shipped`, with the classes of the main program that it names."""
    noting = _Noting()
    noting.dump(shipped)
    data: bytes = cloudpickle.dumps((shipped, noting.classes))
    return data


def load_with_classes(data: bytes) -> Any:
    """Executor. What the driver has shipped; its program's classes are found by pickle from here on."""
    shipped, classes = cloudpickle.loads(data)
    main = sys.modules[MAIN]
    for name, cls in _installed.items():  # of a job before, in a worker that is used again
        if getattr(main, name, None) is cls:
            delattr(main, name)
    _installed.clear()
    for name, cls in classes.items():
        if not hasattr(main, name):  # what the worker's own program needs stays
            setattr(main, name, cls)
            _installed[name] = cls
            _say_where(cls)
    return shipped


def program_imports() -> tuple[str, ...]:
    """Driver. The packages that the names of the main program come from, but for Python's own and ours."""
    found = set()
    for value in vars(sys.modules[MAIN]).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            found.add(name.partition(".")[0])
    return tuple(sorted(found - sys.stdlib_module_names - {MAIN, "tidegate", ""}))


def _say_where(outer: type) -> None:
    """Classes inside of a class have lost on their way where they are."""
    for name, inner in vars(outer).items():
        place = f"{outer.__qualname__}.{name}"
        if (
            isinstance(inner, type)
            and inner.__module__ == MAIN
            and inner.__name__ == name
            and inner.__qualname__ != place
        ):
            inner.__qualname__ = place
            _say_where(inner)
