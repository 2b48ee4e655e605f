"""The control connection of a slot, as a process on a host of its own: `python -m hosts.lonely_slot address port patience`.

It ends as a slot ends that was given up (exit code 70), or with 0 when its input ends.
"""

from __future__ import annotations

import os
import sys
from threading import Event

from tidegate.task.control_client import ControlClient
from tidegate.wire.control import PROTOCOL_VERSION, Heartbeat
from tidegate.wire.handshake import ControlAddress, Hello, new_challenge

TOKEN = b"t" * 32


def main(address: str, port: str, patience_s: str) -> None:
    hello = Hello(PROTOCOL_VERSION, 1, 1, 0, 0, os.getpid(), "worker", new_challenge())
    client = ControlClient(ControlAddress(address, int(port), TOKEN, None), hello, float(patience_s))
    client.start(lambda message: None, lambda: Heartbeat(0, 0, 0, 0, 0), lambda error: Event().wait())
    sys.stdin.read()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
