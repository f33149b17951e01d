from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch_device import DEVICE

from agentrl.core.errors import ConfigError
from agentrl.trainer.model import gradient_checkpointing
from agentrl.trainer.model.attention import hidden_states, pack

LENGTHS = (30, 12, 22)
TOKENS = torch.arange(sum(LENGTHS)) % 90
READ = torch.arange(0, sum(LENGTHS), 3)
SHAPE = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OPT = {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.5, "init_std": 0.3}


def _model(config: Any) -> Any:
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="sdpa").eval().to(DEVICE)
    pack(model)
    return model


def _passed(model: Any) -> tuple[Tensor, Tensor, int]:
    """States that are read, all gradients, and how many elements forward kept for backward."""
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = hidden_states(model, TOKENS, LENGTHS, READ)
        before = sum(kept)
    torch.autograd.backward((found * torch.arange(32, device=DEVICE)).sum())
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return found.detach(), torch.cat(gradients), before


@pytest.mark.parametrize(
    "config",
    [
        transformers.Qwen3Config(**SHAPE, intermediate_size=64, num_key_value_heads=2, head_dim=8),
        transformers.OPTConfig(**SHAPE, **OPT),
    ],
    ids=["qwen3", "opt, which has dropout in its layers"],
)
def test_layers_that_are_computed_again_give_the_same_gradients_and_keep_less(
    config: Any,
) -> None:
    model = _model(config)
    expected, gradients, before = _passed(model)
    gradient_checkpointing.enable_checkpointing(model)
    found, again, less = _passed(model)
    assert torch.allclose(found, expected, atol=1e-6)
    assert (gradients - again).norm() < 1e-5 * gradients.norm()
    assert less < before / 4


def test_a_model_without_such_layers_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="gradient_checkpointing: Linear does not support it"):
        gradient_checkpointing.enable_checkpointing(nn.Linear(2, 2))
