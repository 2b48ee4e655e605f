"""What somebody on the network can do with frames, a hundred thousand times: none of it is taken for a frame, and the channel
goes on as if nothing had been."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tidegate.errors import ProtocolViolation
from tidegate.ids import SlotId
from tidegate.wire.frame import Frame, FrameOpener, Kind, encode_frame
from tidegate.wire.seal import FrameSeal

ATTACKS = 100_000  #: on both kinds of seals together
ENVELOPE_BYTES = 16
KEY, OTHER_KEY = b"this attempt", b"the attempt before"
HERE = SlotId(1, 0)
SENDERS = range(3)
MARKER = b"a record that nobody else may read"


def frame(seal: FrameSeal, to: SlotId, sender: int, sequence: int, payload: bytes) -> bytes:
    return encode_frame(seal.channel(to, sender), Kind.RECORDS, sequence=sequence, count=1, payload=payload)


@dataclass
class Network:
    """Everything that an onlooker has seen of the slot's channels, and of others."""

    random: random.Random
    encrypts: bool
    ours: dict[int, list[bytes]] = field(default_factory=lambda: {sender: [] for sender in SENDERS})
    due: dict[int, int] = field(default_factory=lambda: dict.fromkeys(SENDERS, 0))
    foreign: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seal = FrameSeal(KEY, self.encrypts)
        self.slot = FrameOpener(FrameSeal(KEY, self.encrypts), HERE)
        for sender in SENDERS:
            self.ours[sender] = [frame(self.seal, HERE, sender, n, self.payload()) for n in range(60)]
        others = [
            (FrameSeal(OTHER_KEY, self.encrypts), HERE),
            (FrameSeal(KEY, not self.encrypts), HERE),  # of the attempt, were it told to seal the other way
            (self.seal, SlotId(1, 1)),
            (self.seal, SlotId(2, 0)),
            (self.seal, SlotId(0, 0)),
        ]
        for seal, to in others:
            self.foreign += [frame(seal, to, sender, n, self.payload()) for sender in SENDERS for n in range(60)]

    def payload(self) -> bytes:
        return MARKER * self.random.randrange(3) + self.random.randbytes(self.random.randrange(40))

    # -- what can be done -----------------------------------------------------------------------------------------

    def forged(self) -> bytes:
        return self.random.randbytes(self.random.randrange(120))

    def forged_with_the_envelope_that_is_due(self) -> bytes:
        return self.next()[:ENVELOPE_BYTES] + self.random.randbytes(self.random.randrange(16, 90))

    def flipped(self) -> bytes:
        changed = bytearray(self.next())
        for place in self.random.sample(range(len(changed)), self.random.randrange(1, 4)):
            changed[place] ^= self.random.randrange(1, 256)
        return bytes(changed)

    def cut(self) -> bytes:
        whole = self.next()
        return whole[: self.random.randrange(len(whole))]

    def lengthened(self) -> bytes:
        return self.next() + self.random.randbytes(self.random.randrange(1, 20))

    def spliced(self) -> bytes:
        one, other = self.next(), self.random.choice(self.ours[self.random.choice(SENDERS)])
        place = self.random.randrange(ENVELOPE_BYTES, min(len(one), len(other)) - 1)
        mixed = one[:place] + other[place:]
        return mixed if mixed != one else self.cut()

    def repeated(self) -> bytes:
        sender = self.random.choice([sender for sender in SENDERS if self.due[sender]])
        return self.ours[sender][self.random.randrange(self.due[sender])]

    def ahead_of_its_turn(self) -> bytes:
        sender = self.random.choice(SENDERS)
        return self.random.choice(self.ours[sender][self.due[sender] + 1 :])

    def repeated_under_the_number_that_is_due(self) -> bytes:
        return self.next()[:ENVELOPE_BYTES] + self.repeated()[ENVELOPE_BYTES:]

    def of_another_channel(self) -> bytes:
        return self.random.choice(self.foreign)

    def next(self, sender: int | None = None) -> bytes:
        sender = self.random.choice(SENDERS) if sender is None else sender
        return self.ours[sender][self.due[sender]]

    def go_on(self) -> Frame:
        """The next frame of one channel arrives as it was sent."""
        sender = self.random.choice(SENDERS)
        taken = self.slot.open(memoryview(self.next(sender)))
        self.due[sender] += 1
        return taken


def attacks(network: Network) -> list[Callable[[], bytes]]:
    return [
        network.forged,
        network.forged_with_the_envelope_that_is_due,
        network.flipped,
        network.cut,
        network.lengthened,
        network.spliced,
        network.repeated,
        network.ahead_of_its_turn,
        network.repeated_under_the_number_that_is_due,
        network.of_another_channel,
    ]


@pytest.mark.parametrize("encrypts", [False, True], ids=["signed", "encrypted"])
def test_of_a_hundred_thousand_attacks_none_is_taken_and_none_disturbs_the_channel(encrypts: bool, seed: int) -> None:
    draws = random.Random(seed)
    accepted: list[str] = []
    tried = 0
    while tried < ATTACKS // 2:
        network = Network(draws, encrypts)
        for sender in SENDERS:
            network.slot.open(memoryview(network.next(sender)))
            network.due[sender] = 1
        ways = attacks(network)
        while max(network.due.values()) < 59 and tried < ATTACKS // 2:
            for way in draws.choices(ways, k=20):
                tried += 1
                try:
                    network.slot.open(memoryview(way()))
                except ProtocolViolation:
                    continue
                accepted.append(way.__name__)
            network.go_on()

    assert accepted == []


def test_what_is_encrypted_cannot_be_read_on_its_way_and_what_is_signed_can() -> None:
    signed, encrypted = (frame(FrameSeal(KEY, hides), HERE, 0, 0, MARKER) for hides in (False, True))

    assert MARKER in signed
    assert MARKER not in encrypted
    assert len(signed) == len(encrypted)


def test_two_equal_records_do_not_look_equal() -> None:
    seal = FrameSeal(KEY, True)
    places = [(SlotId(layer, index), sender) for layer in (1, 2) for index in (0, 1) for sender in (0, 1)]
    bodies = {frame(seal, to, sender, n, MARKER)[ENVELOPE_BYTES:] for to, sender in places for n in (0, 1)}

    assert len(bodies) == 2 * len(places)


def test_a_barrier_that_overtakes_is_refused_before_it_can_be_acted_upon() -> None:
    seal = FrameSeal(KEY)
    channel = seal.channel(HERE, 0)
    encode_frame(channel, Kind.RECORDS, sequence=0, count=1, payload=b"overtaken")
    barrier = encode_frame(channel, Kind.CHECKPOINT_BARRIER, sequence=1, value=7)

    with pytest.raises(
        ProtocolViolation, match=r"frame 1 from sender 0 came to slot 1\.0 where 0 was due: frames were lost"
    ):
        FrameOpener(FrameSeal(KEY), HERE).open(memoryview(barrier))


def test_the_key_is_in_no_text() -> None:
    key = b"k3y-of-this-attempt"
    seal = FrameSeal(key)

    assert "k3y" not in f"{seal!r}{seal.channel(HERE, 0)!r}"
    with pytest.raises(ProtocolViolation) as refused:
        FrameOpener(seal, HERE).open(memoryview(bytes(99)))
    assert "k3y" not in str(refused.value)
