import errno
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import faulty
import fsspec
import pytest
from faulty import FaultyFileSystem

from broker import remote, weights
from broker.weights import Shelf, WeightsAway, fetch
from core import manifest
from core.errors import CheckpointError, ConfigError
from core.manifest import Manifest


@pytest.fixture(params=["file", "memory", "faulty"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    """Of a run, on each store in turn."""
    faulty.register()
    url = {"file": f"file://{tmp_path}/far", "memory": "memory://far", "faulty": "faulty://far"}
    yield Shelf(tmp_path / "home" / "run-1", tmp_path / "cache", url[request.param])
    fs = fsspec.filesystem("memory")
    if fs.exists("far"):
        fs.rm("far", recursive=True)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """On a store that fails; nobody waits long."""
    faulty.register()
    monkeypatch.setattr(weights, "UPLOAD_S", 1.0)
    monkeypatch.setattr(weights, "FETCH_S", 1.0)
    return Shelf(tmp_path / "home" / "run-1", tmp_path / "cache", "faulty://far")


def write(directory: Path, version: int = 1, base: str = "") -> Path:
    """A checkpoint of a few files, one in a folder."""
    (directory / "deep").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(os.urandom(5000))
    (directory / "deep" / "words.txt").write_text("words")
    if base:
        (directory / manifest.ADAPTER).write_text(f'{{"base_model_name_or_path": "{base}"}}')
    else:
        (directory / "config.json").write_text("{}")
    described = Manifest(directory.name, version, None, manifest.digests(directory))
    manifest.write(directory, described)
    return directory


def content(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_what_one_host_puts_another_fetches_whole(shelf: Shelf, tmp_path: Path) -> None:
    written = write(shelf.local("run-1-v1"))
    path = shelf.put("run-1-v1")
    assert path == f"{shelf.url}/run-1/run-1-v1"
    assert shelf.names() == ["run-1-v1"]
    found = fetch(path, tmp_path / "other")
    assert found == tmp_path / "other" / "run-1-v1"
    assert content(found) == content(written)
    assert fetch(path, shelf.cache) == written
    assert sorted(entry.name for entry in (tmp_path / "other").iterdir()) == ["run-1-v1"]


def test_without_a_url_a_checkpoint_stays_where_it_is(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "run-1")
    written = write(shelf.local("run-1-v1"))
    assert shelf.put("run-1-v1") == str(written)
    assert fetch(str(written), tmp_path / "cache") == written
    assert shelf.names() == []
    assert not (tmp_path / "cache").exists()


def test_what_is_removed_is_gone_and_may_be_removed_again(shelf: Shelf, tmp_path: Path) -> None:
    write(shelf.local("run-1-v1"))
    write(shelf.local("run-1-v2"), 2)
    paths = [shelf.put("run-1-v1"), shelf.put("run-1-v2")]
    for _ in range(2):
        weights.remove(paths[0])
    assert shelf.names() == ["run-1-v2"]
    with pytest.raises(CheckpointError, match=r"run-1-v1: is not there") as caught:
        fetch(paths[0], tmp_path / "other")
    assert not isinstance(caught.value, WeightsAway)
    assert list((tmp_path / "other").iterdir()) == []


def test_an_adapter_brings_its_base_which_stays(shelf: Shelf, tmp_path: Path) -> None:
    first = write(shelf.local("run-1-v0"), 0)
    shelf.put("run-1-v0")
    write(shelf.local("run-1-v1"), base=str(first))
    path = shelf.put("run-1-v1")
    assert manifest.base_of(fetch(path, shelf.cache)) == first
    first.rename(tmp_path / "gone")
    adapter = fetch(path, tmp_path / "other")
    assert manifest.base_of(adapter) == tmp_path / "other" / "run-1-v0"


def test_a_cache_keeps_what_was_used_last_and_first_checkpoints(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "CACHED", 3)
    for version in range(6):
        write(shelf.local(f"run-1-v{version}"), version)
        os.utime(shelf.local(f"run-1-v{version}"), (version, version))
        if version == 4:
            fetch(shelf.path("run-1-v1"), shelf.cache)
        shelf.put(f"run-1-v{version}")
    left = sorted(path.name for path in shelf.cache.iterdir())
    assert left == ["run-1-v0", "run-1-v1", "run-1-v4", "run-1-v5"]
    assert fetch(shelf.path("run-1-v2"), shelf.cache).name == "run-1-v2"


def test_a_damaged_copy_is_fetched_anew(shelf: Shelf) -> None:
    written = write(shelf.local("run-1-v1"))
    expected = content(written)
    path = shelf.put("run-1-v1")
    (written / "model.safetensors").write_bytes(b"cut")
    assert content(fetch(path, shelf.cache)) == expected


def test_an_upload_ends_with_the_manifest_and_is_tried_again(broken: Shelf) -> None:
    FaultyFileSystem.faults += [ConnectionError("reset"), OSError(errno.EIO, "no luck")]
    FaultyFileSystem.short.add("model.safetensors")
    write(broken.local("run-1-v1"))
    path = broken.put("run-1-v1")
    assert FaultyFileSystem.puts[-1] == "manifest.json"
    assert FaultyFileSystem.puts.count("model.safetensors") == 2
    assert fetch(path, broken.cache).exists()


@pytest.mark.parametrize("after", range(4))
def test_an_interrupted_upload_leaves_nothing_that_looks_whole(
    broken: Shelf, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that dies: nobody cleans up."""

    class Killed(BaseException):
        pass

    put = FaultyFileSystem.put_file

    def dying(self: FaultyFileSystem, lpath: str, rpath: str, **options: object) -> None:
        if len(FaultyFileSystem.puts) == after:
            raise Killed
        put(self, lpath, rpath, **options)

    monkeypatch.setattr(FaultyFileSystem, "put_file", dying)
    monkeypatch.setattr(remote, "_within", lambda _seconds, _patience, work: work())
    write(broken.local("run-1-v1"))
    with pytest.raises(Killed):
        broken.put("run-1-v1")
    assert broken.names() == ["run-1-v1"]
    assert not [name for name in FaultyFileSystem.store if name.endswith(manifest.FILE)]
    with pytest.raises(CheckpointError, match="is not there"):
        fetch(broken.path("run-1-v1"), broken.cache / "other")


def test_a_store_without_room_is_named_and_nothing_is_left_there(broken: Shelf) -> None:
    FaultyFileSystem.faults += [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))] * 9
    write(broken.local("run-1-v1"))
    with pytest.raises(WeightsAway, match=r"faulty://far/run-1/run-1-v1.*No space left") as caught:
        broken.put("run-1-v1")
    assert "has room" in caught.value.mend
    FaultyFileSystem.faults.clear()
    assert broken.names() == []


def test_a_store_that_denies_is_asked_once(broken: Shelf) -> None:
    FaultyFileSystem.faults += [PermissionError(errno.EACCES, "keep out")] * 2
    write(broken.local("run-1-v1"))
    with pytest.raises(CheckpointError, match=r"denied: .*keep out") as caught:
        broken.put("run-1-v1")
    assert not isinstance(caught.value, WeightsAway)
    assert len(FaultyFileSystem.faults) == 1


def test_a_transfer_that_hangs_ends_with_an_error(
    broken: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CALL_S", 0.2)
    monkeypatch.setattr(remote, "SLOWEST", 2**40)
    write(broken.local("run-1-v1"))
    path = broken.put("run-1-v1")
    hung = threading.Event()
    FaultyFileSystem.faults += [lambda _: hung.wait()] * 9
    with pytest.raises(WeightsAway, match=r"no answer within"):
        fetch(path, broken.cache / "other")
    FaultyFileSystem.faults.clear()
    hung.set()
    monkeypatch.setattr(remote, "CALL_S", 10.0)
    assert fetch(path, broken.cache / "other").exists()


@pytest.mark.slow
def test_a_transfer_that_was_given_up_spoils_no_later_one(
    broken: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CALL_S", 2.0)
    monkeypatch.setattr(remote, "SLOWEST", 2**40)
    write(broken.local("run-1-v1"))
    path = broken.put("run-1-v1")
    wake, written = threading.Event(), threading.Event()

    def hangs(local: str) -> None:
        wake.wait()
        Path(local).write_bytes(b"half a manife")
        written.set()
        raise ConnectionError("reset")

    def goes_on(_: str) -> None:
        wake.set()
        assert written.wait(10.0)

    FaultyFileSystem.faults += [hangs, lambda _: None, goes_on]
    directory = fetch(path, broken.cache / "other")
    manifest.verify(directory)
    assert not list(directory.glob(".*"))


def test_a_store_that_cannot_be_connected_to_may_be_there_later(broken: Shelf) -> None:
    write(broken.local("run-1-v1"))
    path = broken.put("run-1-v1")
    FaultyFileSystem.clear_instance_cache()
    FaultyFileSystem.away += [ConnectionRefusedError("refused")] * 9
    with pytest.raises(WeightsAway, match="refused"):
        fetch(path, broken.cache / "other")
    FaultyFileSystem.away[1:] = []
    assert fetch(path, broken.cache / "other").exists()
    assert not FaultyFileSystem.away


@pytest.mark.parametrize(
    ("url", "text"), [("nothing://x", "[Pp]rotocol"), ("s3://bucket/x", "s3fs")]
)
def test_a_protocol_that_nobody_speaks_is_refused_before_anything(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"run\.checkpoints: {url}.*{text}") as caught:
        weights.check(url)
    assert caught.value.mend


def test_a_manifest_that_names_files_elsewhere_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    path = write(shelf.local("run-1-v1"))
    where = shelf.put("run-1-v1")
    described = manifest.read(path)
    evil = Manifest("run-1-v1", 1, None, {"../../evil": described.files["config.json"]})
    manifest.write(path, evil)
    fs, _ = fsspec.core.url_to_fs(where)
    fs.put_file(str(path / manifest.FILE), f"{where}/{manifest.FILE}")
    with pytest.raises(CheckpointError, match="leaves the directory"):
        fetch(where, tmp_path / "a" / "other")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("base", ["/nowhere/..", "..", "/", "", "a\0b"])
def test_an_adapter_whose_base_has_no_name_is_refused_and_nothing_is_removed(
    shelf: Shelf, tmp_path: Path, base: str
) -> None:
    path = shelf.local("run-1-v1")
    path.mkdir(parents=True)
    (path / manifest.ADAPTER).write_text(json.dumps({"base_model_name_or_path": base}))
    manifest.write(path, Manifest("run-1-v1", 1, None, manifest.digests(path)))
    where = shelf.put("run-1-v1")
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    (home / "store.db").write_text("the truth")
    with pytest.raises(CheckpointError, match="names no base"):
        fetch(where, home / "cache")
    assert (home / "store.db").read_text() == "the truth"


@pytest.mark.parametrize("url", ["memory://shelf/..", "memory:///.."])
def test_a_row_that_names_no_checkpoint_is_refused(tmp_path: Path, url: str) -> None:
    (tmp_path / "store.db").write_text("the truth")
    with pytest.raises(CheckpointError, match="ends in no name"):
        fetch(url, tmp_path / "cache")
    assert (tmp_path / "store.db").exists()


def test_secrets_of_a_url_stay_out_of_rows_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.register()
    monkeypatch.setattr(weights, "FETCH_S", 0.1)
    monkeypatch.setenv("KEY_OF_FAR", "s3cret")
    shelf = Shelf(tmp_path / "run-1", tmp_path / "cache", "faulty://far-${KEY_OF_FAR}")
    write(shelf.local("run-1-v1"))
    path = shelf.put("run-1-v1")
    assert path == "faulty://far-${KEY_OF_FAR}/run-1/run-1-v1"
    assert any("far-s3cret/run-1/run-1-v1" in name for name in FaultyFileSystem.store)
    FaultyFileSystem.faults += [ConnectionError("reset")] * 9
    with pytest.raises(WeightsAway) as caught:
        fetch(path, tmp_path / "other")
    assert "s3cret" not in str(caught.value)
    FaultyFileSystem.faults.clear()
    with pytest.raises(CheckpointError, match=r"far-\$\{KEY_OF_FAR\}.*is not there") as absent:
        fetch(f"{path}-2", tmp_path / "other")
    assert "s3cret" not in str(absent.value)
    monkeypatch.delenv("KEY_OF_FAR")
    with pytest.raises(ConfigError, match="KEY_OF_FAR"):
        weights.check(shelf.url)


def test_whoever_is_told_to_stop_waits_for_no_store(
    broken: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither between two tries nor for a call that hangs."""
    monkeypatch.setattr(weights, "UPLOAD_S", 600.0)
    monkeypatch.setattr(remote, "LAST_S", 0.2)
    stop, hung = threading.Event(), threading.Event()
    shelf = Shelf(broken.home, broken.cache, broken.url, stop)
    write(shelf.local("run-1-v1"))
    for faults in ([ConnectionError("reset")] * 99, [lambda _: hung.wait()] * 9):
        FaultyFileSystem.faults[:] = faults
        threading.Timer(0.5, stop.set).start()
        began = time.monotonic()
        with pytest.raises(WeightsAway):
            shelf.put("run-1-v1")
        assert time.monotonic() - began < 5
        stop.clear()
    FaultyFileSystem.faults.clear()
    hung.set()
