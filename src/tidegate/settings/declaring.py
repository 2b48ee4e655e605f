"""A setting is declared once, as the field of a dataclass: its default, its kind, its keys, what it means. Pure.

    min_pause_s: float = setting(
        0.0, SECONDS, "execution.checkpointing.min-pause", "from the end of a checkpoint to the start of the next, at least",
        said_by="checkpointing(min_pause)",
    )

From this come the key that -D and files take, the keyword of the environment's method, the default in the documentation and
what REST and the dashboard show. `tests/unit/test_settings.py` holds the methods' signatures against it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tidegate.settings.kinds import Kind

V = TypeVar("V")
_METADATA = "tidegate.setting"


@dataclass(frozen=True, slots=True)
class Key:
    """A name by which -D and files set it; Flink's where Flink has one."""

    name: str
    says: str  #: what it means, for the documentation
    aliases: tuple[str, ...] = ()  #: older names of Flink's; they mean the same
    strategy: str = ""  #: the restart strategy that it belongs to; "": all
    default: str | None = None  #: in words, where the value alone does not say it


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting."""

    name: str  #: of its field; "restart.delay_s" where that is in another value
    kind: Kind[Any]
    default: Any
    keys: tuple[Key, ...]
    said_by: str = ""  #: method(keyword) of the environment
    option: str = ""  #: of `tidegate run`
    is_secret: bool = False

    @property
    def key(self) -> str:
        return self.keys[0].name

    def default_of(self, key: Key) -> str:
        """As the documentation shows it."""
        return self.to_text(self.default) if key.default is None else key.default

    def to_text(self, value: Any) -> str:
        return "none" if value in (None, ()) else self.kind.to_text(value)


def setting(
    default: V,
    kind: Kind[Any],
    key: str = "",
    says: str = "",
    aliases: tuple[str, ...] = (),
    *,
    shown_default: str | None = None,
    keys: tuple[Key, ...] = (),
    said_by: str = "",
    option: str = "",
    is_secret: bool = False,
) -> V:
    """The field of a dataclass. `keys`: where it has more than one."""
    all_keys = keys or (Key(key, says, aliases, default=shown_default),)
    declared = Setting("", kind, default, all_keys, said_by, option, is_secret)
    made: V = dataclasses.field(default=default, metadata={_METADATA: declared}, repr=not is_secret)
    return made


def settings_of(owner: type, prefix: str = "") -> Iterator[Setting]:
    """Those that the dataclass declares, in order."""
    for field in dataclasses.fields(owner):
        declared = field.metadata.get(_METADATA)
        if declared is not None:
            yield dataclasses.replace(declared, name=prefix + field.name)


class SetBy(enum.Enum):
    DEFAULT = "default"
    PROGRAM = "program"
    FILE = "file"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    source: SetBy
    where: str = ""  #: "job.py:12", "flink.yaml, line 3", "-D", "--parallelism"

    def __str__(self) -> str:
        return f"{self.source.value}: {self.where}" if self.where else self.source.value


class Told(NamedTuple):
    """A value and who gave it."""

    value: Any
    origin: Origin
