import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from agentrl.checkpoints import directories
from agentrl.checkpoints.checkpoint_store import WeightsAway
from agentrl.checkpoints.directories import Manifest, verify
from agentrl.core.errors import CheckpointError

Spoil = Callable[[Path], object]


def _write(directory: Path) -> None:
    (directory / "weights.bin").write_bytes(b"weights")
    (directory / "parts").mkdir()
    (directory / "parts" / "config.json").write_text("{}")


def _publish(directory: Path) -> Manifest:
    return directories.publish(directory, _write, checkpoint_id="c1", version=1, parent="c0")


def test_a_published_checkpoint_verifies(tmp_path: Path) -> None:
    manifest = _publish(tmp_path / "c1")
    assert verify(tmp_path / "c1") == manifest
    assert (manifest.checkpoint_id, manifest.version, manifest.parent) == ("c1", 1, "c0")
    assert sorted(manifest.files) == ["parts/config.json", "weights.bin"]
    assert [path.name for path in tmp_path.iterdir()] == ["c1"]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        _write(directory)
        assert not (tmp_path / "c1").exists()
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left on device"):
        directories.publish(tmp_path / "c1", fail, checkpoint_id="c1", version=1, parent=None)
    assert list(tmp_path.iterdir()) == []


def _fails(tmp_path: Path, error: Exception) -> CheckpointError:
    """What publishing raises where the writer raises `error`."""

    def fail(_directory: Path) -> None:
        raise error

    with pytest.raises(CheckpointError) as caught:
        directories.publish(tmp_path / "c1", fail, checkpoint_id="c1", version=1, parent=None)
    return caught.value


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT]
)
def test_a_disk_that_is_full_or_away_is_worth_a_wait(tmp_path: Path, number: int) -> None:
    words = os.strerror(number)
    serialized = SafetensorError(f"I/O error: {words} (os error {number})")
    assert isinstance(_fails(tmp_path, OSError(number, words)), WeightsAway)
    assert isinstance(_fails(tmp_path, serialized), WeightsAway)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR])
def test_a_folder_that_may_not_be_written_is_an_error_at_once(tmp_path: Path, number: int) -> None:
    words = os.strerror(number)
    serialized = SafetensorError(f"I/O error: {words} (os error {number})")
    for error in (OSError(number, words), serialized):
        raised = _fails(tmp_path, error)
        assert not isinstance(raised, WeightsAway)
        assert words in str(raised)
        assert str(tmp_path) in raised.hint


def test_a_name_that_could_not_be_synced_is_published_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = os.fsync, [OSError(errno.EIO, os.strerror(errno.EIO))]

    def sync(descriptor: int) -> None:
        if os.path.sameopenfile(descriptor, folder) and failures:
            raise failures.pop()
        real(descriptor)

    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(WeightsAway, match="cannot be written"):
        _publish(tmp_path / "c1")
    assert list(tmp_path.iterdir()) == []
    manifest = _publish(tmp_path / "c1")
    assert verify(tmp_path / "c1") == manifest
    os.close(folder)


def test_what_an_interrupted_writer_left_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / ".c1.partial"
    left.mkdir()
    (left / "half").write_text("written")
    assert "half" not in _publish(tmp_path / "c1").files
    assert not left.exists()


def test_a_name_is_published_once(tmp_path: Path) -> None:
    _publish(tmp_path / "c1")
    with pytest.raises(CheckpointError, match="exists already"):
        _publish(tmp_path / "c1")
    verify(tmp_path / "c1")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda d: (d / "weights.bin").write_bytes(b"weightz"), "weights.bin"),
        (lambda d: (d / "weights.bin").unlink(), "weights.bin"),
        (lambda d: (d / "manifest.json").unlink(), "manifest.json"),
        (lambda d: (d / "manifest.json").write_text("{"), "manifest.json"),
        (lambda d: (d / "manifest.json").write_bytes(b"\xff\xfe"), "manifest.json"),
        (lambda d: (d / "manifest.json").write_text("[]"), "manifest.json"),
    ],
)
def test_a_spoiled_checkpoint_is_refused_by_the_name_of_the_file(
    tmp_path: Path, spoil: Spoil, named: str
) -> None:
    _publish(tmp_path / "c1")
    spoil(tmp_path / "c1")
    with pytest.raises(CheckpointError, match=named):
        verify(tmp_path / "c1")


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "/etc/passwd", "parts/../../secret", "link", "", ".", "./a", "a/", "a//b"),
        *("a\0b", "manifest.json"),
    ],
)
def test_a_manifest_cannot_leave_its_directory(tmp_path: Path, name: str) -> None:
    _publish(tmp_path / "c1")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "c1" / "link").symlink_to(tmp_path / "secret")
    path = tmp_path / "c1" / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"files": {name: "0" * 64}}))
    with pytest.raises(CheckpointError, match="lies outside the directory"):
        verify(tmp_path / "c1")


@given(content=st.binary(max_size=200))
def test_an_arbitrary_manifest_is_an_error_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    directory = tmp_path_factory.mktemp("spoiled")
    (directory / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError):
        verify(directory)


@given(name=st.text())
def test_an_arbitrary_file_name_is_an_error_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    directory = tmp_path_factory.mktemp("spoiled")
    manifest = {"checkpoint_id": "c", "version": 1, "parent": None, "files": {name: "0" * 64}}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        verify(directory)


def test_removing_is_complete_and_may_be_repeated(tmp_path: Path) -> None:
    _publish(tmp_path / "c1")
    directories.remove(tmp_path / "c1")
    directories.remove(tmp_path / "c1")
    assert list(tmp_path.iterdir()) == []
