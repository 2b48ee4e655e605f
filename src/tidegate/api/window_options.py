"""When windows fire and when they close, as the user says it, of one stream or of two. Driver only."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

from tidegate.api.building import Asked, need_instance
from tidegate.durations import Duration, duration_ms
from tidegate.errors import ConfigurationError
from tidegate.functions.evictors import Evictor
from tidegate.functions.process import OutputTag
from tidegate.functions.triggers import Trigger
from tidegate.functions.windowed import Windowed, WindowFunction, declare
from tidegate.functions.windows import WindowAssigner
from tidegate.state.declarations import Declaration

LATE = OutputTag("late")


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """What the user has said of the windows so far."""

    assigner: WindowAssigner
    trigger: Trigger | None = None
    evictor: Evictor | None = None
    lateness_ms: int = 0
    late: OutputTag = LATE
    is_of_all: bool = False  #: there is no key, and one subtask

    def place(self, asked: Asked) -> Asked:
        """Where the operator runs."""
        return replace(asked, parallelism=1, max_parallelism=1) if self.is_of_all else asked

    @property
    def evicting(self) -> Evictor | None:
        return self.evictor or self.assigner.default_evictor()

    def declared(
        self, contents: Declaration, function: WindowFunction | None, late_tags: tuple[str, ...], fold: Any = None
    ) -> Windowed:
        """The windows as data, with what keeps their records and what is made of them."""
        return declare(
            contents,
            assigner=self.assigner,
            trigger=self.trigger or self.assigner.default_trigger(),
            evictor=self.evicting,
            lateness_ms=self.lateness_ms,
            function=function,
            fold=fold,
            late_tags=late_tags,
        )


class WindowSettings:
    """Whatever has windows: `trigger`, `evictor` and `allowed_lateness` give the same with that said."""

    def __init__(self, options: WindowOptions) -> None:
        need_instance(options.assigner, WindowAssigner, "window")
        self._options = options

    def trigger(self, trigger: Trigger) -> Self:
        """When windows fire, if not once at their end.

        >>> clicks = env.from_collection(["a", "a", "a"]).key_by(lambda page: page, key_type=str)
        >>> pairs = clicks.window(tg.GlobalWindows()).trigger(tg.CountTrigger(2).purging())
        >>> list(pairs.reduce(lambda a, b: a + b).execute_and_collect())
        ['aa']
        """
        need_instance(trigger, Trigger, "trigger")
        if self._options.assigner.merges and not trigger.can_merge:
            raise ConfigurationError(
                f"{trigger!r} cannot be used with sessions, whose windows merge: it must define on_merge(self, window, ctx)"
            )
        return self._with(trigger=trigger)

    def evictor(self, evictor: Evictor) -> Self:
        """What is taken out of a window when it fires. The window then keeps its records, also for a reduce."""
        need_instance(evictor, Evictor, "evictor")
        return self._with(evictor=evictor)

    def allowed_lateness(self, lateness: Duration) -> Self:
        """For so long after its end a window stays, and fires again for each record that still comes.

        :raises ConfigurationError: for windows that are not of event time.
        """
        if not self._options.assigner.is_event_time:
            raise ConfigurationError(
                f"allowed_lateness: {self._options.assigner!r} goes by the clock, and by the clock no record is late"
            )
        if isinstance(lateness, str) and lateness.strip().startswith("-"):
            raise ConfigurationError(
                f'allowed_lateness: {lateness!r} is negative: a window cannot close before its end. Give "0s" or more.'
            )
        return self._with(lateness_ms=duration_ms(lateness, "allowed_lateness"))

    def _with(self, **changes: Any) -> Self:
        changed = copy(self)
        changed._options = replace(self._options, **changes)
        return changed
