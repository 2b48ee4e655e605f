"""A job that encrypts: what its settings lead to, whose certificate its attempts show, and that its secrets are in no text."""

from __future__ import annotations

from pathlib import Path

import pytest
from execution_kit import RunningJob, start_job
from pyspark import SparkContext

import tidegate as tg
from tidegate.cli.remote import Server
from tidegate.cli.settings import overrides_of, setting_of
from tidegate.config import JobConfig, RestartSettings
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import SparkSettingsError
from tidegate.ids import AttemptId, AttemptNumber, Generation, SlotId
from tidegate.launch import given_to, slot_settings
from tidegate.ports import NoCrashPoints
from tidegate.rest.server import RestSettings
from tidegate.spark.session import make_session
from tidegate.spark.settings import ENCRYPTING, check_encrypting
from tidegate.task.main import ShippedAttempt
from tidegate.task.program import SlotProgram, SlotSettings
from tidegate.testing.runner import run_in_process
from tidegate.wire.certificates import made_certificate
from tidegate.wire.control import Ended
from tidegate.wire.handshake import ControlAddress


def finish(job: RunningJob) -> None:
    job.cluster.say(Ended())
    assert job.ended is JobStatus.FINISHED


def test_each_attempt_shows_a_certificate_of_its_own(tmp_path: Path) -> None:
    job = start_job(tmp_path, encrypt=True, restart=RestartSettings("fixed-delay", attempts=3, delay_s=0.0))
    job.until(JobStatus.RUNNING)
    first = {address.fingerprint for address in job.cluster.addresses}
    job.cluster.fail_a_slot()
    job.until_attempt(2)
    job.until(JobStatus.RUNNING)
    finish(job)

    both = {address.fingerprint for address in job.cluster.addresses}
    assert None not in both
    assert (len(first), len(both)) == (1, 2)
    assert len({address.token for address in job.cluster.addresses}) == 2


def test_a_certificate_that_was_given_is_shown_by_every_attempt(tmp_path: Path) -> None:
    given = made_certificate(["driver.example.org"])
    job = start_job(tmp_path, encrypt=True, certificate=given)
    job.until(JobStatus.RUNNING)
    finish(job)

    assert {address.fingerprint for address in job.cluster.addresses} == {given.fingerprint}


def test_a_job_that_does_not_encrypt_shows_none(tmp_path: Path) -> None:
    job = start_job(tmp_path, certificate=made_certificate(["for REST"]))
    job.until(JobStatus.RUNNING)
    finish(job)

    assert {address.fingerprint for address in job.cluster.addresses} == {None}


def test_program_and_command_line_say_it() -> None:
    assert tg.StreamEnvironment("job").encryption(network=True).config() == JobConfig(encrypt=True)
    keys = ["security.ssl.internal.enabled=true", "security.ssl.rest.enabled=true"]
    config = overrides_of([setting_of(key) for key in keys])(JobConfig())
    assert (config.encrypt, config.rest_tls) == (True, True)
    assert slot_settings(config).encrypt
    assert not slot_settings(JobConfig()).encrypt


def test_a_certificate_is_read_before_anything_runs(tmp_path: Path) -> None:
    config = JobConfig(encrypt=True, certificate=str(tmp_path / "c.pem"), certificate_key=str(tmp_path / "k.pem"))
    with pytest.raises(tg.ConfigurationError, match=r"c\.pem cannot be read"):
        given_to(config)
    assert given_to(JobConfig(encrypt=True)) is None


def test_a_cluster_that_would_send_the_keys_in_the_clear_is_refused_with_what_to_set() -> None:
    needed = {setting.key: setting.value for setting in ENCRYPTING if setting.required}
    check_encrypting(needed)
    check_encrypting({"spark.authenticate": "true", "spark.ssl.rpc.enabled": "true"})
    for key in needed:
        with pytest.raises(SparkSettingsError, match="this Spark session is not: make it with") as refused:
            check_encrypting({**needed, key: "false"})
        assert f'.config("{key}", "true")' in str(refused.value)
    with pytest.raises(SparkSettingsError):
        check_encrypting({"spark.ssl.rpc.enabled": "true"})


def test_a_session_that_would_not_encrypt_is_not_even_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # that of other tests in this process
    given = {"spark.authenticate": "true", "spark.network.crypto.enabled": "false"}
    with pytest.raises(SparkSettingsError, match=r"spark\.network\.crypto\.enabled"):
        make_session("sealed", "spark://127.0.0.1:1", 2, given, encrypt=True)


def test_a_job_in_one_process_seals_as_the_settings_say() -> None:
    env = tg.StreamEnvironment("sealed", parallelism=2).encryption(network=True)
    env.from_sequence(1, 100, uid="numbers").rebalance().map(lambda n: n, uid="same", returns=int).collect(uid="out")
    result = run_in_process(env, seed=1)

    assert sorted(result.collected.rows("out")) == list(range(1, 101))


def test_secrets_are_in_no_text() -> None:
    token = b"s3cret" * 6
    attempt = AttemptId(Generation(1), AttemptNumber(1))
    address = ControlAddress("127.0.0.1", 1, token)
    shipped = ShippedAttempt("job", b"", attempt, address, SlotSettings(), None, NoCrashPoints())
    program = SlotProgram(None, SlotId(0, 0), attempt, token, SlotSettings())  # type: ignore[arg-type]
    rest = RestSettings("localhost", 0, "s3cret")

    for each in (shipped, program, rest, Server("https://localhost:1", "s3cret")):
        assert "s3cret" not in repr(each)
