"""What a subtask's checkpoints own in storage, and on which of them the next can be built. Pure.

    restored(n)   the state continues from what n owns                     base: n
    stored(n)     what n owns is in storage, and will be acknowledged      pending: n
    completed(n)  n is in the log                                          base: n; the old base and older pending ones go
    aborted(n)    n was given up                                           n goes, also when it is stored only later

Invariant 1. The base is the last completed checkpoint of this attempt, or the one it was restored from: nothing is built on an
             upload that is not confirmed. It may never have been acknowledged, and its files may be deleted with it.
Invariant 2. Nothing stays for ever: what is stored after it was given up, or after a younger one has completed, is not kept.

Not for several threads at once; whoever uses it has a lock.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from tidegate.ids import CheckpointId

T = TypeVar("T")

MAX_GIVEN_UP = 64  #: far more than can be under way


class OwnedState(Generic[T]):
    """Of one subtask of one attempt. `T` is whatever a checkpoint owns."""

    def __init__(self) -> None:
        self.base: T | None = None
        self.pending: dict[CheckpointId, T] = {}
        self._base_id = CheckpointId(0)
        self._given_up: set[CheckpointId] = set()  #: and perhaps not stored yet

    def restored(self, checkpoint: CheckpointId, owned: T) -> None:
        self.base, self._base_id = owned, checkpoint

    def stored(self, checkpoint: CheckpointId, owned: T) -> bool:
        """Whether it is kept: else nobody would ever ask for it again. To be called before the acknowledgement."""
        if checkpoint <= self._base_id or checkpoint in self._given_up:
            return False
        self.pending[checkpoint] = owned
        return True

    def completed(self, checkpoint: CheckpointId) -> list[T]:
        """What is not needed any more. A checkpoint that owns nothing here (a savepoint) changes nothing."""
        if checkpoint not in self.pending:
            return []
        completed = self.pending.pop(checkpoint)
        # An older one can never complete any more.
        gone = [self.pending.pop(older) for older in list(self.pending) if older < checkpoint]
        if self.base is not None:
            gone.append(self.base)
        self.base, self._base_id = completed, checkpoint
        self._given_up = {id for id in self._given_up if id > checkpoint}
        return gone

    def aborted(self, checkpoint: CheckpointId) -> T | None:
        """What it owned, if it was stored."""
        if checkpoint in self.pending:
            return self.pending.pop(checkpoint)
        self._given_up.add(checkpoint)
        if len(self._given_up) > MAX_GIVEN_UP:
            self._given_up.remove(min(self._given_up))
        return None
