"""A capture of the network while a job runs: the records' text is in it, and with encryption it is not. REST by https, too."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_kit import finish

import tidegate as tg
from packets import captured
from tidegate.rest.registry import registry_folder

pytestmark = pytest.mark.spark

RECORDS = 3000
#: Made by the workers, so that it stands in no function that is shipped.
WORDS = ["shuffled", "record", "in", "the", "clear"]
SHUFFLED, COLLECTED = b"shuffled-record-in-the-clear", b"collected-record-in-the-clear"


class Seen(tg.KeyedProcessFunction):
    count = tg.ValueState(int, default=0)

    def process_element(self, value: str, ctx: tg.Context) -> Iterator[str]:
        self.count.set(self.count.get() + 1)
        if self.count.get() % 100 == 0:
            yield f"{'-'.join(['collected', *value.split('-')[1:]])}"


def texts(env: tg.StreamEnvironment) -> None:
    """Records between slots, and results that go to the driver."""
    (
        env.from_sequence(1, RECORDS, uid="numbers")
        .map(lambda n: "-".join([*WORDS, str(n % 10)]), uid="text", returns=str)
        .key_by(lambda text: text[-1], key_type=str)
        .process(Seen(), uid="seen", returns=str)
        .rebalance()
        .map(lambda text: text, uid="again", returns=str)
        .collect(uid="results")
    )


@pytest.mark.parametrize("encrypted", [False, True], ids=["in the clear", "encrypted"])
def test_the_records_text_is_on_the_network_only_where_it_is_not_encrypted(encrypted: bool, storage: str) -> None:
    env = tg.StreamEnvironment(f"captured-{encrypted}", parallelism=2).checkpointing(every="200ms", storage=storage)
    env.encryption(network=encrypted, rest=encrypted)
    texts(env)

    with captured(SHUFFLED, COLLECTED) as capture:
        client = finish(env)

    assert len(client.results()) == RECORDS // 100
    assert capture.lost == 0
    assert capture.size_bytes > RECORDS * len(SHUFFLED), "the job's traffic was looked at"
    assert (capture.found[SHUFFLED] > 0, capture.found[COLLECTED] > 0) == (not encrypted, not encrypted)


def test_rest_of_a_job_that_encrypts_answers_by_https(storage: str) -> None:
    env = tg.StreamEnvironment("by-https").checkpointing(every="1s", storage=storage).encryption(rest=True)
    env.from_sequence(1, 10, uid="numbers").collect(uid="results")
    client = finish(env)

    assert client.url is not None
    assert client.url.startswith("https://localhost:")
    context = ssl.create_default_context(cafile=Path(registry_folder(), "rest.pem"))
    with urllib.request.urlopen(f"{client.url}/jobs", timeout=60, context=context) as answer:
        assert answer.status == 200


def test_a_job_that_encrypts_recovers_with_new_keys(storage: str) -> None:
    env = tg.StreamEnvironment("again", parallelism=2).checkpointing(every="100ms", storage=storage, unaligned=True)
    env.encryption(network=True).restart_strategy("fixed-delay", attempts=3, delay="0s")
    marker = Path(storage.removeprefix("file://")).parent / "failed"

    def failing(value: int) -> int:
        if value == 900 and not marker.exists():
            marker.touch()
            raise ValueError("once")
        return value

    env.from_sequence(1, 1000, uid="numbers").rebalance().map(failing, uid="failing", returns=int).collect(
        uid="results"
    )
    client = finish(env)

    assert marker.exists()
    assert sorted(client.results()) == list(range(1, 1001))
