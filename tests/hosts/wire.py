"""A cable in user space: takes packets from one interface and gives them to another, later. A program of its own.

    python wire.py a b      and on its input, a line for each change: {"delay_ms": 50, "jitter_ms": 30}; it answers "so"

Each packet is late by the delay and by a random part of the jitter, so that packets overtake each other: what `tc netem` does,
which is not in every kernel. Packets travel as the kernel has them, with unfinished checksums and as large segments (the header
in front of each says so), so nothing has to be switched off at the ends.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import selectors
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR = 263, 15  #: which Python does not name
ALL_PROTOCOLS = 0x0003
LARGEST = 1 << 17


def opened(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def carry(one: socket.socket, other: socket.socket) -> None:
    """Until the input ends."""
    under_way: list[tuple[float, int, socket.socket, bytes]] = []
    numbers = itertools.count()
    delay_s = jitter_s = 0.0
    orders = b""
    waiting = selectors.DefaultSelector()
    waiting.register(one, selectors.EVENT_READ, other)
    waiting.register(other, selectors.EVENT_READ, one)
    waiting.register(0, selectors.EVENT_READ)
    while True:
        due = under_way[0][0] - time.monotonic() if under_way else None
        for key, _ in waiting.select(None if due is None else max(0.0, due)):
            if key.fd == 0:
                said = os.read(0, 4096)
                if not said:
                    return
                *lines, orders = (orders + said).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    delay_s, jitter_s = order["delay_ms"] / 1000, order["jitter_ms"] / 1000
                    print("so", flush=True)
                continue
            for packet in received(key.fileobj):  # type: ignore[arg-type]
                at = time.monotonic() + delay_s + random.random() * jitter_s
                heapq.heappush(under_way, (at, next(numbers), key.data, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(under_way)
            try:
                to.send(packet)
            except OSError:
                pass  # lost, as packets are: the other end is unplugged, or has no room


def received(end: socket.socket) -> list[bytes]:
    packets: list[bytes] = []
    while len(packets) < 64:
        try:
            packet, (_, _, kind, *_) = end.recvfrom(LARGEST)
        except OSError:
            return packets
        if kind != socket.PACKET_OUTGOING:  # what we have put there ourselves is seen too
            packets.append(packet)
    return packets


if __name__ == "__main__":
    carry(opened(sys.argv[1]), opened(sys.argv[2]))
