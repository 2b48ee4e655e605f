"""What an onlooker on the network sees: every packet of the loopback interface, while a test runs. Needs the right to look."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

ALL_PROTOCOLS = 0x0003
BUFFER_BYTES = 128 << 20
BUFFER_FORCE, SOL_PACKET, PACKET_STATISTICS = 33, 263, 6  #: which Python does not name


@dataclass
class Capture:
    """Packets, searched as they come; nothing of them is kept."""

    texts: tuple[bytes, ...]
    found: Counter[bytes] = field(default_factory=Counter)  #: packets in which each text stood
    size_bytes: int = 0
    lost: int = 0  #: packets that the kernel could not keep for us

    def look(self, packet: bytes) -> None:
        self.size_bytes += len(packet)
        for text in self.texts:
            if text in packet:
                self.found[text] += 1


@contextlib.contextmanager
def captured(*texts: bytes) -> Iterator[Capture]:
    """Complete when the block is left. The test is skipped where nobody may look, and says so."""
    try:
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    except (PermissionError, AttributeError) as error:
        pytest.skip(f"packets cannot be captured here: {error}")
    capture = Capture(texts)
    with sniffer:
        with contextlib.suppress(PermissionError):
            sniffer.setsockopt(socket.SOL_SOCKET, BUFFER_FORCE, BUFFER_BYTES)
        sniffer.bind(("lo", 0))
        sniffer.settimeout(0.2)
        over = threading.Event()

        def look() -> None:
            while True:
                try:
                    packet, (_, _, kind, *_) = sniffer.recvfrom(1 << 17)
                except TimeoutError:
                    if over.is_set():
                        return
                    continue
                if kind == socket.PACKET_OUTGOING:  # each is seen twice on loopback
                    continue
                capture.look(packet)

        looking = threading.Thread(target=look, name="packets")
        looking.start()
        try:
            yield capture
        finally:
            over.set()
            looking.join()
            statistics = sniffer.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
            capture.lost = struct.unpack("=II", statistics)[1]
