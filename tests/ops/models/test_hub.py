import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub_server import COMMIT, Hub, fill_cache, serve_hub

from agentrl.checkpoints.manifest import verify
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.db.registry import checkpoints
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.ops.configuration import configs
from agentrl.ops.evaluation.target import resolve
from agentrl.ops.models import hub, model_source
from agentrl.ops.runs.begin import begin

TINY = Path(__file__).parents[3] / "models" / "tiny"
CLOSED = "http://127.0.0.1:9"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no Hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", CLOSED)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def there(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with `models/tiny`, and files nobody needs."""
    folder = tmp_path / "there"
    shutil.copytree(TINY, folder)
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_bytes(b"x" * 1000)
    with serve_hub(folder) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def config(home: Path, model: str = "hub:owner/tiny") -> Config:
    more = f'model.path = "{model}"\n'
    return config_loading.loads(f'run.home = "{home}"\ntasks.dbbench = {{}}\n{more}')


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    local = config(tmp_path, str(TINY))
    assert hub.resolve_model(local) is local
    assert hub.describe_model(local) is local


@pytest.mark.slow  # huggingface_hub asks again for 20 s
def test_a_model_is_found_in_the_cache_where_the_hub_is_away(tmp_path: Path, cache: Path) -> None:
    snapshot = fill_cache(cache, TINY)
    found = Path(hub.resolve_model(config(tmp_path / "run")).model.path)
    assert found == snapshot
    assert (found / "model.safetensors").read_bytes() == (TINY / "model.safetensors").read_bytes()
    assert hub.fetch_model(f"hub:owner/tiny@{COMMIT}") == snapshot


def test_only_what_a_run_needs_is_fetched(tmp_path: Path, there: Hub) -> None:
    found = Path(hub.resolve_model(config(tmp_path / "run")).model.path)
    assert {path.name for path in found.iterdir()} == {
        *("config.json", "generation_config.json", "chat_template.jinja"),
        *("tokenizer.json", "tokenizer_config.json", "model.safetensors", "README.md"),
    }
    configs.check(hub.resolve_model(config(tmp_path / "run")))


def test_the_license_of_a_model_of_the_hub_is_that_of_its_card(there: Hub) -> None:
    (there.folder / "README.md").write_text("---\nlicense: mit\n---\n")
    assert model_source.resolve("hub:owner/tiny").license == "mit"


def test_a_look_fetches_no_weights_and_leaves_no_trace_of_a_run(tmp_path: Path, there: Hub) -> None:
    found = Path(hub.describe_model(config(tmp_path / "run")).model.path)
    assert (found / "config.json").is_file()
    assert not (found / "model.safetensors").exists()
    assert not (tmp_path / "run").exists()
    assert hub.resolve_model(config(tmp_path / "run")).model.path == str(found)
    assert (found / "model.safetensors").is_file()


def test_a_run_keeps_its_directory_when_the_branch_moves(tmp_path: Path, there: Hub) -> None:
    first = hub.resolve_model(config(tmp_path / "run")).model.path
    asked = len(there.asked)
    there.commit = "f" * 40
    assert hub.resolve_model(config(tmp_path / "run")).model.path == first
    assert hub.describe_model(config(tmp_path / "run")).model.path == first
    assert len(there.asked) == asked
    assert hub.resolve_model(config(tmp_path / "other")).model.path != first


def test_version_zero_holds_the_models_own_bytes(tmp_path: Path, cache: Path) -> None:
    fill_cache(cache, TINY)
    run_id = begin(config(tmp_path / "run"))
    store = open_store(config(tmp_path / "run").store_url())
    with store.read() as session:
        (first,) = checkpoints.live_checkpoints(session, run_id)
        row = json.loads(runs.require_run(session, "run").config)
    store.close()
    verify(Path(first.path))
    held = Path(first.path) / "model.safetensors"
    assert not held.is_symlink()
    assert held.read_bytes() == (TINY / "model.safetensors").read_bytes()
    assert row["model"]["path"].endswith(COMMIT)


def test_a_model_of_the_hub_can_be_measured_by_its_name(tmp_path: Path, cache: Path) -> None:
    snapshot = fill_cache(cache, TINY)
    target = resolve("hub:owner/tiny", config(tmp_path / "run"))
    assert target.path == snapshot
    assert target.checkpoint_id == "owner--tiny"
    assert not (tmp_path / "run").exists()


def test_a_policy_of_the_hub_is_the_same_under_another_card(tmp_path: Path, there: Hub) -> None:
    def measured() -> tuple[str, str]:
        target = resolve("hub:owner/tiny", config(tmp_path / "run"))
        return target.checkpoint_id, target.fingerprint

    first = measured()
    (there.folder / "README.md").write_text("Measured elsewhere, too.\n")
    there.commit = "e" * 40
    assert measured() == first
    snapshot = hub.fetch_model("hub:owner/tiny")
    (snapshot / "LICENSE").write_text("what `hf download` fetches, too\n")
    assert measured() == first
    (there.folder / "generation_config.json").write_text("{}")
    there.commit = "d" * 40
    assert measured() != first


def test_the_token_is_that_of_the_environment_alone(
    tmp_path: Path, there: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "login"))
    (tmp_path / "login").write_text("hf_login")
    hub.fetch_model("hub:owner/tiny", weights=False)
    assert there.tokens == {""}
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    hub.fetch_model("hub:owner/tiny")
    assert there.tokens == {"", "Bearer hf_mine"}


@pytest.mark.parametrize(
    ("refusal", "says", "mends"),
    [
        ((401, "RepoNotFound"), r"no such model, or a private one \(401\)", "HF_TOKEN"),
        ((403, "GatedRepo"), r"gated \(403\)", "accept its terms"),
        ((401, "GatedRepo"), r"gated \(401\)", "accept its terms"),
        ((403, "Forbidden"), r"access denied \(403\)", "HF_TOKEN"),
        ((404, "RevisionNotFound"), "no such revision", "branches, tags or commits"),
        ((500, "Oops"), r"not in the cache, and the Hub is unreachable", "hf download owner/tiny"),
    ],
)
def test_a_refusal_is_one_line_with_what_to_do(
    there: Hub, refusal: tuple[int, str], says: str, mends: str
) -> None:
    there.refusal = refusal
    with pytest.raises(ConfigError, match=rf"model\.path: hub:owner/tiny: {says}") as caught:
        hub.fetch_model("hub:owner/tiny")
    assert "\n" not in str(caught.value)
    assert mends in caught.value.hint


def test_the_login_of_an_endpoint_is_not_shown(
    there: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", there.url.replace("://", "://me:of-the-proxy@"))
    there.refusal = 418, "Oops"
    with pytest.raises(ConfigError) as caught:
        hub.fetch_model("hub:owner/tiny")
    assert f"for url '{there.url}/api/models/owner/tiny/revision/main'" in str(caught.value)
    assert "of-the-proxy" not in str(caught.value) + caught.value.hint + capfd.readouterr().err


def test_without_network_and_cache_the_command_that_fetches_is_named(cache: Path) -> None:
    with pytest.raises(ConfigError, match="not in the cache, and the Hub is unreachable") as caught:
        hub.fetch_model("hub:owner/tiny")
    assert "hf download owner/tiny" in caught.value.hint


def test_a_model_without_safetensors_is_refused(there: Hub) -> None:
    (there.folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"hub:owner/tiny has no model\.safetensors"):
        hub.fetch_model("hub:owner/tiny")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "model")
    weights = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model" / "model-1.safetensors").touch()
    index = {"weight_map": weights}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert hub.absent_weights(tmp_path / "model") == ["model-2.safetensors"]
    assert hub.absent_weights(TINY) == []


@pytest.mark.parametrize(
    "name",
    [
        "hub:",
        "hub:tiny",
        "hub:a/b/c",
        "hub:../x y",
        "hub:a/b@",
    ],
)
def test_what_is_no_name_is_refused(cache: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"hub:"):
        hub.fetch_model(name)


@pytest.mark.slow
def test_the_check_of_a_file_works_offline_from_the_cache(tmp_path: Path) -> None:
    fill_cache(tmp_path / "cache", TINY)
    file = tmp_path / "run.toml"
    file.write_text(config_loading.to_toml(config(tmp_path / "run")))
    away = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "agentrl.cli.main", "config", "check", str(file)]
    done = subprocess.run(
        command, env=os.environ | away, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "model hub:owner/tiny" in done.stdout
    away["HF_HUB_CACHE"] = str(tmp_path / "empty")
    done = subprocess.run(
        command, env=os.environ | away, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "HF_HUB_OFFLINE is set" in done.stderr
