"""The events of Nexmark, an auction site: persons, auctions, bids, 1 to 3 to 46. Own generator; the seed is fixed.

Event number i is a function of i alone, in arithmetic of 64-bit integers that numpy and Flink SQL do alike: `flink.py` says it
in SQL. So each side makes the same events for itself, and nobody waits for a file. Times go on by `STEP_MS` for each event, and
are up to `DISORDER_MS` out of order. Half of the bids go to one hot auction, which changes as time goes on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EPOCH_MS = 1_700_000_000_000
STEP_MS = 10  #: 100 events for a second of event time
DISORDER_MS = 900
TOTAL, PERSONS, AUCTIONS = 50, 1, 3  #: of so many events, the first are persons, the next auctions, the rest bids
HOT_AUCTION_RATIO = 2  #: of so many bids, one goes elsewhere than to the hot auction
RECENT_AUCTIONS = 100
RECENT_PERSONS = 1000
SEED = 610839793
CHANNELS = ("apple", "google", "facebook", "baidu")
STATES = ("az", "ca", "id", "or", "wa", "wy")
CITIES = ("phoenix", "los angeles", "boise", "portland", "seattle", "cheyenne")

PERSON = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("city", pa.string()), ("state", pa.string()), ("ts", pa.int64())]
)
AUCTION = pa.schema(
    [("id", pa.int64()), ("item", pa.string()), ("initial_bid", pa.int64()), ("reserve", pa.int64()),
     ("ts", pa.int64()), ("expires", pa.int64()), ("seller", pa.int64()), ("category", pa.int64())]
)  # fmt: skip
BID = pa.schema(
    [("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("channel", pa.string()),
     ("url", pa.string()), ("ts", pa.int64()), ("extra", pa.string())]
)  # fmt: skip


def mixed(indices: Any, salt: int) -> Any:
    """Of 30 bits. A permutation of the number modulo 2 ** 30, so no product leaves 64 bits."""
    x = (indices * SEED + salt * 97_911) % (1 << 30)
    return x * (2 * x + 1) % (1 << 30) // 64  # the lowest bits of such a product are hardly mixed


def time_of(indices: Any) -> Any:
    return EPOCH_MS + indices * STEP_MS - mixed(indices, 1) % DISORDER_MS


def persons_before(indices: Any) -> Any:
    """How many persons there are up to an event, but for those of its own fifty."""
    return indices // TOTAL * PERSONS


def auctions_before(indices: Any) -> Any:
    return indices // TOTAL * AUCTIONS


def some_person(indices: Any, salt: int) -> Any:
    """One of the last who came; the first fifty events know only person 0."""
    known = persons_before(indices)
    return known - mixed(indices, salt) % (np.minimum(known, RECENT_PERSONS) + 1)


def persons(numbers: Any) -> pa.RecordBatch:
    """Person n is event 50 n."""
    indices = numbers * TOTAL
    place = mixed(indices, 2) % len(STATES)
    names = _joined("person ", numbers % 1000)
    columns = [numbers, names, _word(CITIES, place), _word(STATES, place), time_of(indices)]
    return _batch(PERSON, columns)


def auctions(numbers: Any) -> pa.RecordBatch:
    """Auction n is one of three events after a person's."""
    indices = numbers // AUCTIONS * TOTAL + PERSONS + numbers % AUCTIONS
    initial = mixed(indices, 3) % 1000 + 1
    times = time_of(indices)
    items = _joined("item ", numbers % 1000)
    columns = [
        numbers, items, initial, initial + mixed(indices, 4) % 1000, times, times + 2000 + mixed(indices, 5) % 18_000,
        some_person(indices, 6), 10 + mixed(indices, 7) % 5,
    ]  # fmt: skip
    return _batch(AUCTION, columns)


def bids(numbers: Any) -> pa.RecordBatch:
    """Bid n is one of 46 events after a person's and three auctions'."""
    each = TOTAL - PERSONS - AUCTIONS
    indices = numbers // each * TOTAL + PERSONS + AUCTIONS + numbers % each
    newest = auctions_before(indices)
    cold = newest - mixed(indices, 8) % (np.minimum(newest, RECENT_AUCTIONS) + 1)
    hot = newest // RECENT_AUCTIONS * RECENT_AUCTIONS
    auction = np.where(mixed(indices, 9) % HOT_AUCTION_RATIO > 0, hot, cold)
    channel = mixed(indices, 10) % len(CHANNELS)
    noise = mixed(indices, 12)
    urls = _joined("https://auctions.test/", noise % 1000, "/item?channel=", channel)
    extras = _joined("", noise, "c", channel)
    price = mixed(indices, 11) % 10_000_000 + 100
    columns = [auction, some_person(indices, 13), price, _word(CHANNELS, channel), urls, time_of(indices), extras]
    return _batch(BID, columns)


def counts(events: int) -> dict[str, int]:
    """How many there are of each among the first `events`, a multiple of fifty."""
    rounds = events // TOTAL
    return {"person": rounds * PERSONS, "auction": rounds * AUCTIONS, "bid": rounds * (TOTAL - PERSONS - AUCTIONS)}


def tables(events: int) -> dict[str, pa.Table]:
    makers = {"person": persons, "auction": auctions, "bid": bids}
    return {
        name: pa.Table.from_batches([makers[name](np.arange(count, dtype=np.int64))])
        for name, count in counts(events).items()
    }


def _word(words: tuple[str, ...], numbers: Any) -> pa.Array:
    return pa.array(words).take(pa.array(numbers))


def _joined(*parts: Any) -> pa.Array:
    """Words and columns of numbers, one after the other."""
    texts = [part if isinstance(part, str) else pa.array(part).cast(pa.string()) for part in parts]
    return pc.binary_join_element_wise(*texts, "")


def _batch(schema: pa.Schema, columns: list[Any]) -> pa.RecordBatch:
    arrays = [column if isinstance(column, pa.Array) else pa.array(column, pa.int64()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
