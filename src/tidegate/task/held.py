"""A queue of frames that a slot keeps for a checkpoint's sake: in memory, then on disk, then no more. Executor.

Three places use it: what is held back during an alignment (task/slot.py), an inbox that a checkpoint has opened
(task/inbox.py), the in-flight records of an unaligned cut (task/capture.py). Used by one thread at a time.

Frames held back never count against the inbox bound: all channels of a slot arrive in one queue, so the missing barrier
may come after them, and a slot that stopped reading would wait for ever.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import IO

from tidegate.wire.frame import Frame, Kind

_RECORD = struct.Struct("<BHHHHQIqHI")


class HeldFrames:
    """A queue in order of arrival: memory, then the disk, then the tail.

    Invariant. Nothing is added to memory while there is something on disk, nor to the disk while there is a tail.
    """

    def __init__(self, memory_limit_bytes: int, disk_limit_bytes: int, folder: str | None = None) -> None:
        self._memory_limit = memory_limit_bytes
        self._disk_limit = disk_limit_bytes
        self._folder = folder
        self._memory: deque[Frame] = deque()
        self._tail: deque[Frame] = deque()  #: in memory too, and newer than what is on disk
        self._memory_bytes = 0  #: of both
        self._file: IO[bytes] | None = None
        self._disk_bytes = 0  #: of the frames in the file that were not read yet
        self._on_disk = 0  #: how many these are
        self._read_at = 0
        self._write_at = 0

    def __len__(self) -> int:
        return len(self._memory) + self._on_disk + len(self._tail)

    @property
    def size_bytes(self) -> int:
        return self._memory_bytes + self._disk_bytes

    @property
    def disk_bytes(self) -> int:
        return self._disk_bytes

    def append(self, frame: Frame) -> bool:
        """False when the frame was kept but the limits are passed (or the disk is full): give the checkpoint up."""
        fits = self._memory_bytes + frame.size_bytes <= self._memory_limit
        if fits and (not self._on_disk or self._tail):
            self.keep(frame)
            return True
        try:
            while self._tail and self._has_space_for(self._tail[0]):  # it comes after what is on disk
                self._spill(self._tail[0])
                self._memory_bytes -= self._tail.popleft().size_bytes
            if not self._tail and self._has_space_for(frame):
                self._spill(frame)
                return True
        except OSError:
            pass  # a full disk is a limit too
        self.keep(frame)
        return False

    def _has_space_for(self, frame: Frame) -> bool:
        return self._write_at + frame.size_bytes <= self._disk_limit

    def keep(self, frame: Frame) -> None:
        """In memory, whatever the limit, and after all that is there."""
        (self._tail if self._on_disk else self._memory).append(frame)
        self._memory_bytes += frame.size_bytes

    def pop(self) -> Frame:
        """The oldest. There must be one."""
        if self._memory:
            frame = self._memory.popleft()
            self._memory_bytes -= frame.size_bytes
            return frame
        frame = self._read_back()
        self._disk_bytes -= frame.size_bytes
        if not self._on_disk:
            self.close()
        return frame

    def __iter__(self) -> Iterator[Frame]:
        """Look at all, oldest first, without taking any."""
        yield from self._memory
        read_at, on_disk = self._read_at, self._on_disk
        try:
            for _ in range(on_disk):
                yield self._read_back()
        finally:
            self._read_at, self._on_disk = read_at, on_disk
        yield from self._tail

    def close(self) -> None:
        """Let go of the file. What was on disk is gone, or has been read."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._disk_bytes = self._read_at = self._write_at = self._on_disk = 0
        self._memory.extend(self._tail)
        self._tail.clear()

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def _spill(self, frame: Frame) -> None:
        if self._file is None:
            # Unbuffered: what a full disk refused must not wait in a buffer and fail the next read.
            self._file = tempfile.TemporaryFile(prefix="tidegate-held-", dir=self._folder, buffering=0)  # noqa: SIM115
        head = _RECORD.pack(
            frame.kind,
            frame.sender,
            frame.origin,
            frame.target,
            frame.edge,
            frame.sequence,
            frame.count,
            frame.value,
            frame.flags,
            len(frame.payload),
        )
        end = self._write_at
        for part in (memoryview(head), frame.payload):
            while part:
                written = os.pwrite(self._file.fileno(), part, end)
                part, end = part[written:], end + written
        self._write_at = end
        self._disk_bytes += frame.size_bytes
        self._on_disk += 1

    def _read_back(self) -> Frame:
        assert self._file is not None
        kind, sender, origin, target, edge, sequence, count, value, flags, length = _RECORD.unpack(
            self._read(_RECORD.size)
        )
        payload = self._read(length)
        self._on_disk -= 1
        return Frame(Kind(kind), sender, origin, target, edge, sequence, count, value, flags, memoryview(payload))

    def _read(self, length: int) -> bytes:
        assert self._file is not None
        data = bytearray()
        while len(data) < length:
            part = os.pread(self._file.fileno(), length - len(data), self._read_at)
            if not part:
                raise OSError(f"a file of held frames ends at {self._read_at}, in the middle of a frame")
            data += part
            self._read_at += len(part)
        return bytes(data)
