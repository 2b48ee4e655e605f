"""Seals what travels on a channel, and opens it: AES-GCM with a key of each channel. Pure.

A channel leads from one slot to one slot of the next layer. Its key is derived from the attempt's: so a frame of another
attempt, of another layer, from or for another slot opens nowhere, and a frame's number on its channel can be the nonce.

    signed       envelope   content                tag of both            read by anybody, made by the attempt alone
    encrypted    envelope   content, encrypted     tag of both            read by the attempt alone

Whoever has a key must never seal two things under one number. Senders count from 0 and never go back (task/outbox.py), an
attempt's key is random, and the coordinator takes one worker for each slot of an attempt (coordinator/server.py).
"""

from __future__ import annotations

import hmac
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidegate.ids import SlotId

TAG_BYTES = 16
NONCE_BYTES = 12
_CHANNEL = struct.Struct("<HHH")


class ChannelSeal:
    """Of the frames from one slot to another."""

    __slots__ = ("_cipher", "_encrypts", "sender")

    def __init__(self, key: bytes, sender: int, encrypts: bool) -> None:
        self._cipher = AESGCM(key)
        self._encrypts = encrypts
        self.sender = sender  #: index of the sending slot

    def close(self, number: int, envelope: bytes, content: bytes) -> bytes:
        """What is sent. `number`: never the same twice."""
        nonce = number.to_bytes(NONCE_BYTES, "little")
        if self._encrypts:
            return envelope + self._cipher.encrypt(nonce, content, envelope)
        signed = envelope + content
        return signed + self._cipher.encrypt(nonce, b"", signed)

    def open(self, number: int, sealed: memoryview, envelope_bytes: int) -> memoryview | None:
        """The content. None: it was not sealed by this channel's sender under this number, or has been changed since."""
        nonce = number.to_bytes(NONCE_BYTES, "little")
        sealed = sealed.cast("B")  # Arrow's buffers are of signed bytes, which the cipher does not take
        try:
            if self._encrypts:
                return memoryview(self._cipher.decrypt(nonce, sealed[envelope_bytes:], sealed[:envelope_bytes]))
            self._cipher.decrypt(nonce, sealed[-TAG_BYTES:], sealed[:-TAG_BYTES])
        except InvalidTag:
            return None
        return sealed[envelope_bytes:-TAG_BYTES]


class FrameSeal:
    """Of one attempt: gives each channel its seal. `encrypts` False: what is sent is signed, and not hidden."""

    __slots__ = ("_channels", "_encrypts", "_key")

    def __init__(self, attempt_key: bytes, encrypts: bool = False) -> None:
        label = b"tidegate frames, encrypted" if encrypts else b"tidegate frames, signed"
        self._key = hmac.digest(attempt_key, label, "sha256")  # one key never does both
        self._encrypts = encrypts
        self._channels: dict[tuple[int, int, int], ChannelSeal] = {}

    def channel(self, to: SlotId, sender: int) -> ChannelSeal:
        place = (to.layer, to.index, sender)
        channel = self._channels.get(place)
        if channel is None:
            key = hmac.digest(self._key, _CHANNEL.pack(*place), "sha256")
            channel = self._channels[place] = ChannelSeal(key, sender, self._encrypts)
        return channel
