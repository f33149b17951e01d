"""Resolves teachers to weights, whose digest names all bytes that score."""

import json
import shutil
from pathlib import Path

import pytest

from agentrl.checkpoints.directories import publish
from agentrl.core import config_loading
from agentrl.core.errors import CheckpointError
from agentrl.ops.runs.teachers import resolve_teachers
from agentrl.trainer.distillation import ResolvedTeacher

TINY = Path(__file__).parents[3] / "models" / "tiny"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A published whole model."""
    folder = tmp_path / "base"

    def copy(directory: Path) -> None:
        shutil.copytree(TINY, directory, dirs_exist_ok=True)

    publish(folder, copy, checkpoint_id="base", version=0, parent=None)
    return folder


def publish_adapter(base: Path) -> Path:
    folder = base.with_name("adapter")

    def write(directory: Path) -> None:
        config = {"base_model_name_or_path": str(base)}
        (directory / "adapter_config.json").write_text(json.dumps(config))

    publish(folder, write, checkpoint_id="adapter", version=1, parent=None)
    return folder


def resolve_teacher(checkpoint: Path) -> ResolvedTeacher:
    text = f'tasks.dbbench = {{}}\nteacher = [{{name = "one", checkpoint = "{checkpoint}"}}]'
    (found,) = resolve_teachers(config_loading.loads(text))
    return found


def test_the_digest_of_an_adapter_names_the_bytes_of_its_base_too(base: Path) -> None:
    own = publish_adapter(base)
    found = resolve_teacher(own)
    assert (found.path, found.checkpoint, found.is_stored) == (own, str(own), False)
    assert found.digest != resolve_teacher(base).digest
    (base / "manifest.json").unlink()
    assert resolve_teacher(own).digest == found.digest
    (base / "config.json").write_text("{ }")
    assert resolve_teacher(own).digest != found.digest


def test_an_adapter_on_a_damaged_or_absent_base_cannot_teach(base: Path) -> None:
    own = publish_adapter(base)
    (base / "config.json").write_text("{ }")
    with pytest.raises(CheckpointError, match=r"base/config\.json: the SHA-256 is"):
        resolve_teacher(own)
    shutil.rmtree(base)
    with pytest.raises(CheckpointError, match=r"the base model .*base does not exist"):
        resolve_teacher(own)
