"""Ports for servers that are started a moment later, and started again on the same one.

Not those that the system gives by itself: it gives them to every connection that is opened meanwhile, and the server then finds
its port taken. On a busy machine that happens.
"""

from __future__ import annotations

import contextlib
import random
import socket

FIRST, LAST = 20_000, 32_000  #: below what Linux and others give to connections


def free_ports(count: int) -> list[int]:
    """On loopback; nobody listens there now."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            port = random.SystemRandom().randrange(FIRST, LAST)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        return found


def free_port() -> int:
    return free_ports(1)[0]
