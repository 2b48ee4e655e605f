"""What this process takes of its machine: memory and CPU. Executor and driver; two short system calls."""

from __future__ import annotations

import os
import resource
import sys
import time

from tidegate.wire.control import ProcessUse

_PAGE_BYTES = resource.getpagesize()
_STATM = "/proc/self/statm"


def process_use() -> ProcessUse:
    return ProcessUse(_resident_bytes(), int(time.process_time() * 1000))


def _resident_bytes() -> int:
    """As the kernel says; where it has no /proc (macOS) the most that it ever was."""
    if not os.path.exists(_STATM):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    with open(_STATM) as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES
