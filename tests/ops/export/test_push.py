"""What a push leaves on a Hub, and what is said where it fails. huggingface_hub is the real one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_repositories import SIGNATURE, TOKEN, Repositories, serve_repositories
from huggingface_hub import constants

from agentrl.core.errors import AgentRLError, ConfigError
from agentrl.ops.export.push import PushError, push
from agentrl.trainer.model.files.export import export

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # its own
TINY = Path(__file__).parents[3] / "models" / "tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repositories]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # it speaks LFS alone
    with serve_repositories() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A folder as `agentrl export --dataset` lays it out."""
    folder = tmp_path / "episodes"
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\npretty_name: Episodes\n---\n")
    for shard in range(2):
        (folder / "data" / f"train-{shard:05d}.parquet").write_bytes(b"PAR1" + bytes([shard]) * 500)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}


def read_repository(hub: Repositories, name: str) -> dict[str, bytes]:
    return {path: body for path, body in hub.files[name].items() if path != ".gitattributes"}


def test_a_dataset_arrives_whole_in_a_private_repository(hub: Repositories, dataset: Path) -> None:
    said = push(dataset, "me/episodes", public=False)
    assert read_repository(hub, "datasets/me/episodes") == read_files(dataset)
    assert hub.private["datasets/me/episodes"]
    assert f"{hub.url}/datasets/me/episodes, commit " in said
    assert hub.messages == ["Upload episodes with agentrl"]


def test_an_exported_checkpoint_becomes_a_model(hub: Repositories, tmp_path: Path) -> None:
    export(TINY, tmp_path / "tiny")
    said = push(tmp_path / "tiny", "me/tiny", public=True)
    assert read_repository(hub, "models/me/tiny") == read_files(tmp_path / "tiny")
    assert not hub.private["models/me/tiny"]
    assert f"{hub.url}/me/tiny, commit " in said


def test_a_second_push_replaces_shards_and_spares_other_files(
    hub: Repositories, dataset: Path
) -> None:
    push(dataset, "me/episodes", public=False)
    others = dict.fromkeys(
        ["notes.md", "data/old.parquet", "data/2025/train-00000.parquet"], b"of a person"
    )
    hub.files["datasets/me/episodes"] |= others
    (dataset / "data" / "train-00001.parquet").unlink()
    (dataset / "data" / "train-00000.parquet").write_bytes(b"PAR1 anew")
    push(dataset, "me/episodes", public=False)
    assert read_repository(hub, "datasets/me/episodes") == read_files(dataset) | others


def test_a_second_push_of_a_model_replaces_its_weights_alone(
    hub: Repositories, tmp_path: Path
) -> None:
    export(TINY, tmp_path / "tiny")
    push(tmp_path / "tiny", "me/tiny", public=False)
    former = ["model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    former += ["adapter_model.safetensors"]
    others = ["other/model.safetensors", "other/model.safetensors.index.json", "vae.safetensors"]
    hub.files["models/me/tiny"] |= dict.fromkeys([*former, *others], b"before")
    push(tmp_path / "tiny", "me/tiny", public=False)
    wanted = read_files(tmp_path / "tiny") | dict.fromkeys(others, b"before")
    assert read_repository(hub, "models/me/tiny") == wanted


def test_the_token_may_be_in_a_file(
    hub: Repositories, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv("HF_TOKEN_FILE", str(tmp_path / "token"))
    push(dataset, "me/episodes", public=False)
    assert read_repository(hub, "datasets/me/episodes") == read_files(dataset)


def push_error(folder: Path, name: str = "me/episodes") -> AgentRLError:
    """The error, which is one line and holds no token."""
    with pytest.raises(AgentRLError) as caught:
        push(folder, name, public=False)
    said = f"{caught.value} {caught.value.hint}"
    assert "\n" not in said
    assert "hf_" not in said
    assert SIGNATURE not in said
    return caught.value


def test_a_wrong_token_is_refused_and_nothing_is_created(
    hub: Repositories, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody")
    error = push_error(dataset)
    assert isinstance(error, PushError)
    assert f"me/episodes: {hub.url} refused the token (401)" in str(error)
    assert "write permission for me" in error.hint
    assert not hub.files


def test_a_push_without_a_token_says_which_variable_to_set(
    hub: Repositories, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "HF_TOKEN is not set" in str(push_error(dataset))


def test_a_hub_that_is_away_is_named(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    error = str(push_error(dataset))
    assert "http://127.0.0.1:9 did not take the upload: [Errno 111] Connection refused" in error


def test_a_refused_commit_leaves_the_repository_as_it_was(hub: Repositories, dataset: Path) -> None:
    hub.refuses = 403
    assert "refused the token (403)" in str(push_error(dataset))
    hub.refuses = 422
    assert "did not take the upload" in str(push_error(dataset))
    assert read_repository(hub, "datasets/me/episodes") == {}


@pytest.mark.parametrize(
    "statuses", [[403], pytest.param([500] * 6, marks=pytest.mark.slow)], ids=["403", "500"]
)
def test_a_storage_that_refuses_is_named_without_the_signature_of_the_upload(
    hub: Repositories, dataset: Path, statuses: list[int]
) -> None:
    (dataset / "data" / "train-00001.parquet").unlink()
    hub.storage = statuses.copy()
    error = str(push_error(dataset))
    assert f"{hub.url} did not take the upload: " in error
    assert f"{statuses[0]} " in error
    assert f"for url '{hub.url}/blobs/" in error
    assert "token" not in error
    assert read_repository(hub, "datasets/me/episodes") == {}


def test_an_upload_that_is_tried_again_shows_no_signature(hub: Repositories, dataset: Path) -> None:
    hub.storage = [500]
    command = [sys.executable, "-m", "agentrl.cli.main", "push", str(dataset), "me/episodes"]
    environment = os.environ | {"HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"HTTP Error 500 thrown while requesting PUT {hub.url}/blobs/" in done.stderr
    assert SIGNATURE not in done.stderr + done.stdout


def test_the_login_of_an_endpoint_is_not_shown(
    hub: Repositories, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("://", "://me:of-the-proxy@"))
    error = str(push_error(dataset))
    assert f"{hub.url} " in error
    assert "of-the-proxy" not in error


def test_the_login_of_a_repository_is_not_shown(hub: Repositories, dataset: Path) -> None:
    plain = hub.url
    hub.url = plain.replace("://", "://me:of-the-proxy@")
    said = push(dataset, "me/episodes", public=False)
    assert f"is at {plain}/datasets/me/episodes, commit " in said


@pytest.mark.parametrize("name", ["episodes", "me/", "a/b/c", "me/my episodes"])
def test_what_is_no_name_is_refused(dataset: Path, name: str) -> None:
    assert isinstance(push_error(dataset, name), ConfigError)


def test_a_folder_that_no_export_wrote_is_refused(tmp_path: Path) -> None:
    assert "neither a dataset nor a model" in str(push_error(tmp_path))
    assert "agentrl export" in push_error(tmp_path / "missing").hint
