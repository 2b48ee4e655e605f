"""Frames held back during an alignment: in memory, then on disk, then no more. Executor; the task's thread.

Held frames never count against the inbox bound: all channels of a slot arrive in one queue, so the missing barrier may
stand behind them, and a slot that stopped reading would wait for ever.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import IO

from tidegate.wire.frame import Frame, Kind

_RECORD = struct.Struct("<BHHHHIIqHI")


class HeldFrames:
    """A queue in order of arrival. Frames spilled to disk come after those in memory, so order holds."""

    def __init__(self, memory_limit_bytes: int, disk_limit_bytes: int, folder: str | None = None) -> None:
        self._memory_limit = memory_limit_bytes
        self._disk_limit = disk_limit_bytes
        self._folder = folder
        self._memory: deque[Frame] = deque()
        self._memory_bytes = 0
        self._file: IO[bytes] | None = None
        self._disk_bytes = 0
        self._read_at = 0
        self._write_at = 0
        self._on_disk = 0  #: frames in the file that were not read yet

    def __len__(self) -> int:
        return len(self._memory) + self._on_disk

    @property
    def size_bytes(self) -> int:
        return self._memory_bytes + self._disk_bytes

    def append(self, frame: Frame) -> bool:
        """False when the frame was kept but the limits are passed (or the disk is full): give the checkpoint up."""
        if self._file is None and self._memory_bytes + frame.size_bytes <= self._memory_limit:
            self._keep(frame)
            return True
        if self._disk_bytes + frame.size_bytes > self._disk_limit:
            self._keep_beyond(frame)
            return False
        try:
            self._spill(frame)
        except OSError:
            self._keep_beyond(frame)
            return False
        return True

    def pop(self) -> Frame:
        if self._memory:
            frame = self._memory.popleft()
            self._memory_bytes -= frame.size_bytes
            return frame
        frame = self._read_back()
        if not self._on_disk:
            self.close()
        return frame

    def __iter__(self) -> Iterator[Frame]:
        """Look at all, oldest first, without taking any."""
        yield from self._memory
        read_at, on_disk = self._read_at, self._on_disk
        for _ in range(on_disk):
            yield self._read_back()
        self._read_at, self._on_disk = read_at, on_disk

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disk_bytes = self._read_at = self._write_at = self._on_disk = 0

    def __del__(self) -> None:
        self.close()

    def _keep(self, frame: Frame) -> None:
        self._memory.append(frame)
        self._memory_bytes += frame.size_bytes

    def _keep_beyond(self, frame: Frame) -> None:
        """The frame that broke the limit must not be lost, nor overtake what is on disk."""
        if self._on_disk:
            spilled = [self._read_back() for _ in range(self._on_disk)]
            self.close()
            for earlier in spilled:
                self._keep(earlier)
        self._keep(frame)

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
