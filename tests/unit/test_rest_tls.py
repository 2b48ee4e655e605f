"""REST by https: the command line speaks to no other than its driver, browsers and tools can be told of the certificate."""

from __future__ import annotations

import datetime
import json
import ssl
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rest_kit import Rest, lived, serving

from tidegate.cli.main import main
from tidegate.config import JobConfig
from tidegate.coordinator.observing import JobStatus, StatusChanged
from tidegate.errors import ConfigurationError
from tidegate.rest import certificate as kept
from tidegate.rest import registry
from tidegate.rest.certificate import kept_certificate
from tidegate.wire.certificates import Certificate, given_certificate, made_certificate

Captured = pytest.CaptureFixture[str]
NAMES = ["localhost", "127.0.0.1"]


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "registry"))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return tmp_path / "registry"


@pytest.fixture
def rest() -> Iterator[Rest]:
    with serving(JobConfig(rest_port=0, rest_tls=True, rest_token="s3cret", storage="file:///data")) as running:
        lived(running.hands.view)
        yield running
        running.hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 0.0))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A certificate and its key, as an operator would have them."""
    made = made_certificate(NAMES).pem.decode()
    certificate, begin, key = made.partition("-----BEGIN PRIVATE KEY-----")
    (tmp_path / "key.pem").write_text(begin + key)
    (tmp_path / "certificate.pem").write_text(certificate)
    return str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_line_speaks_https_to_the_driver_that_the_registry_knows(rest: Rest, capsys: Captured) -> None:
    assert rest.server.url.startswith("https://localhost:")
    for arguments in (["status"], ["checkpoints"], ["status", "-a", f"localhost:{rest.server.port}"]):
        code, out, err = run(capsys, *arguments)
        assert (code, err) == (0, ""), err
        assert out
    code, out, _ = run(capsys, "list", "--json")
    assert (code, rest.server.url in out) == (0, True)


def test_the_token_is_not_sent_to_who_shows_another_certificate(
    rest: Rest, capsys: Captured, own_registry: Path
) -> None:
    (path,) = own_registry.glob("*.json")
    entry = json.loads(path.read_bytes())
    path.write_text(json.dumps(entry | {"fingerprint": made_certificate(NAMES).fingerprint}))

    code, out, err = run(capsys, "status")

    assert (code, out) == (3, "")
    assert "its certificate is not the one that the job's driver has put into the registry folder" in err


def test_what_speaks_no_tls_gets_no_answer_and_a_hint(rest: Rest, capsys: Captured) -> None:
    code, out, err = run(capsys, "status", "-a", f"http://127.0.0.1:{rest.server.port}", "--token", "s3cret")

    assert (code, out) == (3, "")
    assert "If it answers by TLS, its address begins with https://" in err
    assert run(capsys, "status")[0] == 0, "and the server is still there"


def test_from_elsewhere_the_certificate_is_one_that_the_caller_trusts(
    rest: Rest, capsys: Captured, own_registry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = f"https://127.0.0.1:{rest.server.port}"
    code, _, err = run(capsys, "status", "-a", address, "--token", "s3cret")
    assert code == 3
    assert "name the file in SSL_CERT_FILE" in err
    monkeypatch.setenv("SSL_CERT_FILE", str(own_registry / "rest.pem"))
    ssl_opener_is_made_anew()
    assert run(capsys, "status", "-a", address, "--token", "s3cret")[0] == 0
    context = ssl.create_default_context(cafile=own_registry / "rest.pem")
    request = urllib.request.Request(f"{rest.server.url}/jobs", headers={"Authorization": "Bearer s3cret"})
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        assert json.load(answer)["jobs"]


def ssl_opener_is_made_anew() -> None:
    """As in another process."""
    from tidegate.cli import remote

    remote._opener.cache_clear()


def test_a_browsers_cookie_goes_by_https_alone(rest: Rest) -> None:
    context = ssl.create_default_context(cadata=ssl.get_server_certificate(("localhost", rest.server.port)))

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *arguments: object) -> None:
            return None

    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), Stay())
    with pytest.raises(urllib.error.HTTPError) as redirected:
        opener.open(f"{rest.server.url}/?token=s3cret", timeout=60)
    with redirected.value:
        assert "Secure" in redirected.value.headers["Set-Cookie"]


def test_a_certificate_is_made_once_and_kept_for_its_owner_alone(own_registry: Path) -> None:
    first = kept_certificate("localhost")

    assert kept_certificate("localhost") == first
    assert stat.S_IMODE((own_registry / "rest.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(own_registry.stat().st_mode) == 0o700
    other = kept_certificate("streams.example.org")
    assert "streams.example.org" in other.names
    assert other != first
    assert [path.name for path in own_registry.iterdir()] == ["rest.pem"]


def test_a_certificate_that_ends_soon_or_is_damaged_is_made_anew(own_registry: Path) -> None:
    own_registry.mkdir(mode=0o700)
    names = kept_certificate("localhost").names
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=340)
    old = made_certificate(names, long_ago)
    for content in (old.pem, b"not a certificate", old.pem[: len(old.pem) // 2]):
        (own_registry / "rest.pem").write_bytes(content)
        assert kept_certificate("localhost").ends - datetime.datetime.now(datetime.UTC) > kept.RENEWED_BEFORE


def test_a_registry_that_cannot_be_written_has_a_certificate_for_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "file" / "folder"))

    assert "localhost" in kept_certificate("localhost").names


def test_a_certificate_that_is_given_is_used(files: tuple[str, str], capsys: Captured, own_registry: Path) -> None:
    certificate, key = files
    config = JobConfig(rest_port=0, rest_tls=True, certificate=certificate, certificate_key=key, storage="file:///data")
    with serving(config) as rest:
        lived(rest.hands.view)
        shown = ssl.get_server_certificate(("localhost", rest.server.port))
        assert shown.strip() == Path(certificate).read_text().strip()
        assert run(capsys, "status")[0] == 0
        assert not (own_registry / "rest.pem").exists()
        rest.hands.view.publish(StatusChanged(JobStatus.FINISHED, "", 0.0))


def test_files_that_cannot_be_used_are_named_and_not_quoted(files: tuple[str, str], tmp_path: Path) -> None:
    certificate, key = files
    (tmp_path / "other.pem").write_bytes(made_certificate(NAMES).pem)
    for wrong in ((key, key), (certificate, certificate), (certificate, str(tmp_path / "other.pem"))):
        with pytest.raises(ConfigurationError, match=r"are not a certificate and its private key") as refused:
            given_certificate(*wrong)
        assert "BEGIN" not in str(refused.value)
        assert refused.value.__cause__ is None
    with pytest.raises(ConfigurationError, match=r"tidegate\.ssl\.key: .*nothing\.pem cannot be read: No such file"):
        given_certificate(certificate, str(tmp_path / "nothing.pem"))
    assert given_certificate(certificate, key) == Certificate.of(
        Path(certificate).read_bytes() + b"\n" + Path(key).read_bytes()
    )


def test_settings_that_mean_nothing_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a certificate needs its key"):
        JobConfig(rest_tls=True, certificate="c.pem").validate()
    with pytest.raises(ConfigurationError, match="a certificate is given and nothing uses it"):
        JobConfig(certificate="c.pem", certificate_key="k.pem").validate()


def test_the_registrys_token_is_in_no_text() -> None:
    entry = registry.Entry("a" * 32, "job", "https://localhost:1", 1, "host", 1.0, token="s3cret")

    assert "s3cret" not in repr(entry)
    assert msgspec.json.decode(msgspec.json.encode(entry), type=registry.Entry) == entry
