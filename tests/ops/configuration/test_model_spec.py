"""Counted by hand for a decoder that is small enough, and by transformers for others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_model import PARAMETERS, SMALL, small_model

from agentrl.core import config_loading
from agentrl.core.errors import ConfigError
from agentrl.ops.configuration import model_spec
from agentrl.ops.doctor import memory

TINY = Path(__file__).parents[3] / "models" / "tiny"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_model(tmp_path)


def test_parameters_are_counted_by_hand(small: Path) -> None:
    found = model_spec.read_spec(small)
    assert found.parameters == PARAMETERS
    assert found.linear == 2 * 672
    assert found.adapter(3, ["q_proj", "down_proj"]) == 2 * 3 * (8 + 8 + 20 + 8)


def test_headers_and_the_architecture_tell_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    assert model_spec.read_spec(tmp_path).tensors == model_spec.read_spec(TINY).tensors
    assert model_spec.read_spec(TINY).parameters == 772_992


EXPERTS = {"moe_intermediate_size": 6, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    "name",
    [
        "Qwen2Config",
        "Qwen3Config",
        "Qwen3MoeConfig",
        "LlamaConfig",
        "MistralConfig",
        "Gemma3TextConfig",
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_counts_as_many_parameters(tmp_path: Path, name: str, tied: bool) -> None:
    import transformers

    sized = {key: value for key, value in SMALL.items() if key != "model_type"}
    sized |= EXPERTS if "Moe" in name else {}
    described = getattr(transformers, name)(**sized | {"tie_word_embeddings": tied})
    described.save_pretrained(tmp_path)
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(described)
    expected = {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert model_spec.read_spec(tmp_path).tensors == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "mamba"}, "tensors of model_type mamba are unknown"),
        ({"hidden_size": None}, "config.json has no key hidden_size"),
        ({"num_hidden_layers": "many"}, "invalid literal"),
    ],
)
def test_a_model_that_cannot_be_measured_is_said_so(
    small: Path, change: dict[str, object], says: str
) -> None:
    told = {key: value for key, value in (SMALL | change).items() if value is not None}
    (small / "config.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match=says):
        model_spec.read_spec(small)
    text = f'tasks.dbbench = {{}}\nmodel.path = "{small}"\n'
    memory.require_memory(config_loading.loads(text))  # what is not known is not refused


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xff"])
def test_a_broken_directory_is_one_clear_error(small: Path, content: bytes) -> None:
    (small / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=str(small)):
        model_spec.read_spec(small)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x09" + b"\0" * 7 + b'{"a": [1]'])
def test_broken_weights_are_one_clear_error(small: Path, content: bytes) -> None:
    (small / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=str(small)):
        model_spec.read_spec(small)


@pytest.mark.parametrize(
    ("repository", "parameters"),
    [  # as the pages of the models say
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-72B-Instruct", 72_706_203_648),
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-235B-A22B", 235_093_634_560),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("mistralai/Mistral-Nemo-Instruct-2407", 12_247_782_400),
        ("google/gemma-3-1b-it", 999_885_952),
    ],
)
def test_a_published_model_has_the_parameters_that_its_owner_tells(
    repository: str, parameters: int
) -> None:
    found = model_spec.known_spec(repository)
    assert found is not None
    assert found.parameters == parameters


def test_a_model_that_is_not_listed_is_unknown() -> None:
    assert model_spec.known_spec("owner/other") is None


def test_a_token_is_computed_by_its_own_experts_only() -> None:
    found = model_spec.known_spec("Qwen/Qwen3-30B-A3B")
    assert found is not None
    assert (found.routed, found.inner) == (8, 8 * 768)
