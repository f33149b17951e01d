"""Full fine-tuning of models whose experts or router differ from plain linear layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_experts import SHAPE
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Glm4MoeConfig, Qwen3MoeConfig

from agentrl.core.config.sections.training import Trainer
from agentrl.serving.local.networks import Networks
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.model.attention import hidden_states
from agentrl.trainer.model.trainable_model import FullModel, tensors_to_save, trainable_parameters

SETTINGS = resolve_settings(Trainer())
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


def _save_model(path: Path, config: Any) -> Any:
    torch.manual_seed(5)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    if BIAS in model.state_dict():
        model.get_buffer(BIAS).normal_()
    model.save_pretrained(path)
    return model


def test_a_bias_that_is_not_trained_is_saved_and_served(tmp_path: Path) -> None:
    routers = {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    config = Glm4MoeConfig(**SHAPE, moe_intermediate_size=48, **routers)
    model = _save_model(tmp_path / "v0", config)
    (tmp_path / "v0" / "tokenizer.json").write_text("{}")
    full = FullModel(tmp_path / "v0", SETTINGS, Hardware())
    weights = tensors_to_save(trainable_parameters(full.model), torch.float32)
    full.save(tmp_path / "v1", weights)
    assert Networks("cpu", torch.float32).open(tmp_path / "v1")
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "v1")
    assert torch.equal(again.get_buffer(BIAS), model.get_buffer(BIAS))


class _Products(TorchDispatchMode):
    """Records the types that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in ("mm", "linear")):
            given = [each for each in args if isinstance(each, torch.Tensor)]
            self.dtypes |= {each.dtype for each in given if each.is_floating_point()}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_experts_are_computed_in_the_dtype_of_the_forward_pass(
    tmp_path: Path, weights: str
) -> None:
    _save_model(tmp_path, Qwen3MoeConfig(**SHAPE, moe_intermediate_size=48, num_experts=8))
    full = FullModel(tmp_path, SETTINGS, Hardware(dtype="bfloat16", weights_dtype=weights))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), _Products() as products:
        hidden_states(full.model, torch.arange(40), (25, 15))
    assert products.dtypes == {torch.bfloat16}
