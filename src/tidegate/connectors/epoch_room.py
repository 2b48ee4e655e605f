"""A bound for sinks that keep the records of an epoch in the checkpoint until they are committed. Executor, the task's thread.

An epoch travels in one message to the driver and becomes part of the checkpoint's metadata. So there is a most that a user
may ask for; and what is not committed yet has a bound of its own (task/operators/sink.py).
"""

from __future__ import annotations

from tidegate.errors import ConfigurationError, ConnectorError

EPOCH_BYTES = 64 << 20
MAX_EPOCH_BYTES = 128 << 20


def checked_epoch_bytes(given: int) -> int:
    """:raises ConfigurationError: when the setting max_epoch_bytes makes no sense."""
    if not 0 < given <= MAX_EPOCH_BYTES:
        raise ConfigurationError(
            f"max_epoch_bytes is between 1 and {MAX_EPOCH_BYTES}; got {given}. For more, checkpoint more often or give the "
            "sink a higher parallelism."
        )
    return given


class EpochRoom:
    """What one subtask has taken since the last checkpoint."""

    def __init__(self, what: str, subtask: int, most_bytes: int, way_out: str = "") -> None:
        self._what = what
        self._subtask = subtask
        self._most_bytes = most_bytes
        self._way_out = way_out
        self._taken = 0

    def take(self, size_bytes: int) -> None:
        """:raises ConnectorError: when it is too much."""
        self._taken += size_bytes
        if self._taken > self._most_bytes:
            raise ConnectorError(
                f"{self._what}, subtask {self._subtask}, has taken {self._taken} bytes since the last checkpoint, and "
                f"max_epoch_bytes is {self._most_bytes}: they are part of the checkpoint until they are committed. Checkpoint "
                f"more often, give the sink a higher parallelism, {self._way_out}or raise max_epoch_bytes."
            )

    def clear(self) -> None:
        """The epoch is prepared."""
        self._taken = 0
