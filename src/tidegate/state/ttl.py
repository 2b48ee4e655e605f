"""How long state lives: the user's option, and the arithmetic of expiry. Driver (declared) and executor (applied).

Time is processing time, the wall clock of the worker, in milliseconds since 1970; it is stored as the moment at which an
entry expires, not as the moment at which it was written. So a changed duration counts for what is written from then on.

Each entry has its own expiry: the value of a key, an element of a list, an entry of a map. It is kept together with it, and so
is a value of another type, `Timed`, for every backend. A `Timed` is never changed, only replaced. Tables keep them as they keep
any value; rows have the expiry in a column beside the value (state/sections.py), and cells before it (state/rocksdb_rows.py).

A read never removes anything: it looks away from what has expired (state/value_handles.py, state/nested_handles.py), and the
backend's clean-up takes it later. With `update="read_and_write"` a read writes: each entry that it gives out begins its time
anew. An entry that has expired is not refreshed, also where it may still be returned: it is as good as gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError

Update = Literal["write", "read_and_write"]
Visibility = Literal["never_return_expired", "return_expired_if_not_cleaned_up"]
Timed = tuple[Any, int]  #: a value as it is kept, and its expiry (ms since 1970)

_LONGEST_MS = 2**53  #: more than 285,000 years; with any date of today it stays far inside 64 bits


@dataclass(frozen=True, slots=True)
class Ttl:
    """Time to live of a state's entries: `ttl=tg.Ttl("1h")`.

    `update` says what begins an entry's time anew: writing it, or reading it as well. `visibility` says whether an entry
    that has expired but is still in memory may be returned.

    :raises ConfigurationError: for a duration below a millisecond, or an unknown word.
    """

    after: Duration
    update: Update = "write"
    visibility: Visibility = "never_return_expired"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("update", self.update, get_args(Update)),
            ("visibility", self.visibility, get_args(Visibility)),
        ):
            if value not in known:
                raise ConfigurationError(f"Ttl: {name}={value!r} is unknown. Use one of {', '.join(map(repr, known))}.")
        if not 1 <= self.milliseconds <= _LONGEST_MS:
            raise ConfigurationError(
                f"Ttl: state cannot live for {self.after!r}. Give at least 1ms; for state that never expires leave ttl out."
            )

    @property
    def milliseconds(self) -> int:
        return round(min(seconds(self.after, "Ttl") * 1000, _LONGEST_MS + 1.0))


class Lifetime:
    """A `Ttl` with a clock: what the handles of one state ask on the per-record path."""

    __slots__ = ("_clock", "milliseconds", "refreshes", "shows_expired")

    def __init__(self, ttl: Ttl, wall_clock: Callable[[], float]) -> None:
        self._clock = wall_clock
        self.milliseconds = ttl.milliseconds
        self.refreshes = ttl.update == "read_and_write"
        self.shows_expired = ttl.visibility == "return_expired_if_not_cleaned_up"

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    def expiry_ms(self) -> int:
        """Of an entry that is written now. An entry has expired when the clock shows this, or more."""
        return int(self._clock() * 1000) + self.milliseconds
