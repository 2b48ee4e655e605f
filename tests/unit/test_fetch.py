"""What tests fetch is fetched once, whole or not at all, whoever asks at the same time and whoever dies on the way."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fetch
from fetch import EVERYTHING, Fetched, NotFetched, WrongFiles, folder

FILES = {"one.jar": b"one", "two.jar": b"two"}
ASKING = 4
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    lines = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items())
    (tmp_path / "jars.sha256").write_text("".join(lines))
    return tmp_path


def write(files: dict[str, bytes], into: Path) -> None:
    into.mkdir()
    for name, content in files.items():
        (into / name).write_bytes(content)


def contents(place: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in place.iterdir()}


def test_of_many_that_ask_at_once_one_fetches_and_all_find_it_whole(pins: Path) -> None:
    all_ask, another, fetches = threading.Barrier(ASKING), threading.Event(), []

    def download(release: str, into: Path, scratch: Path) -> None:
        fetches.append(release)
        if len(fetches) > 1:
            another.set()
        another.wait(0.5)  # where nothing held the others back, they would be here now
        write(FILES, into)

    def ask(_: int) -> dict[str, bytes]:
        all_ask.wait(PATIENCE_S)
        return contents(folder(Fetched("jars", "1.0", download, pinned_in=pins)))

    with ThreadPoolExecutor(ASKING) as pool:
        assert list(pool.map(ask, range(ASKING))) == [FILES] * ASKING
    assert fetches == ["1.0"]


def test_nobody_sees_a_part_of_it(pins: Path, cache: Path) -> None:
    half, go_on = threading.Event(), threading.Event()

    def download(release: str, into: Path, scratch: Path) -> None:
        write({"one.jar": FILES["one.jar"]}, into)
        half.set()
        assert go_on.wait(PATIENCE_S)
        (into / "two.jar").write_bytes(FILES["two.jar"])

    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(folder, Fetched("jars", "1.0", download, pinned_in=pins))
        assert half.wait(PATIENCE_S)
        assert not (cache / "jars-1.0").exists()
        go_on.set()
        assert contents(fetching.result(PATIENCE_S)) == FILES


def test_what_a_dead_process_has_left_is_removed_and_the_fetch_begins_anew(pins: Path, cache: Path) -> None:
    cache.mkdir()
    write({"one.jar": b"o"}, cache / "jars-draft-of-the-dead")

    place = folder(Fetched("jars", "1.0", lambda release, into, scratch: write(FILES, into), pinned_in=pins))

    assert contents(place) == FILES
    assert sorted(path.name for path in cache.iterdir()) == ["jars-1.0", "jars.lock"]


def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_may_succeed(pins: Path, cache: Path) -> None:
    def fail(release: str, into: Path, scratch: Path) -> None:
        write({"one.jar": b"one"}, into)
        raise NotFetched("the registry is away")

    with pytest.raises(NotFetched, match="away"):
        folder(Fetched("jars", "1.0", fail, pinned_in=pins))
    assert [path.name for path in cache.iterdir()] == ["jars.lock"]

    place = folder(Fetched("jars", "1.0", lambda release, into, scratch: write(FILES, into), pinned_in=pins))
    assert contents(place) == FILES


@pytest.mark.parametrize(
    ("came", "odd"),
    [
        ({**FILES, "two.jar": b"another"}, "two.jar"),
        ({**FILES, "three.jar": b"three"}, "three.jar"),
        ({"two.jar": b"two"}, "one.jar"),
    ],
    ids=["changed", "one too many", "one is missing"],
)
def test_files_that_are_not_the_pinned_ones_are_refused(
    came: dict[str, bytes], odd: str, pins: Path, cache: Path
) -> None:
    with pytest.raises(WrongFiles, match=f"jars.sha256: {odd}$"):
        folder(Fetched("jars", "1.0", lambda release, into, scratch: write(came, into), pinned_in=pins))
    assert not (cache / "jars-1.0").exists()


def test_another_release_is_another_folder(pins: Path) -> None:
    def places() -> list[Path]:
        return [
            folder(Fetched("jars", release, lambda release, into, scratch: write(FILES, into), pinned_in=pins))
            for release in ("1.0", "1.1")
        ]

    assert [place.name for place in places()] == ["jars-1.0", "jars-1.1"]


def test_every_file_that_is_fetched_is_pinned() -> None:
    for wanted in EVERYTHING.values():
        names = [line.split()[1] for line in wanted.pins.read_text().splitlines()]
        assert any(wanted.release in name for name in names), wanted.name


def test_the_users_cache_is_used_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert fetch.cache() == Path("/caches/tidegate")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/users/tide")
    assert fetch.cache() == Path("/users/tide/.cache/tidegate")
