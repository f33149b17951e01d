"""Adapters of peft's many kinds, merged to serve, teach and export, against peft's forward pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.serving.local.networks import Networks

auto: Any = AutoModelForCausalLM
TARGETS = ["q_proj", "down_proj"]
TOKENS = torch.tensor([[5, 3, 80, 41, 2, 66]])
KINDS = {
    "lora": peft.LoraConfig(r=4, target_modules=TARGETS),
    "rslora": peft.LoraConfig(r=4, target_modules=TARGETS, use_rslora=True),
    "dora": peft.LoraConfig(r=4, target_modules=TARGETS, use_dora=True),
    "own norms": peft.LoraConfig(r=4, target_modules=TARGETS, modules_to_save=["norm"]),
    "tokens": peft.LoraConfig(r=4, target_modules=TARGETS, trainable_token_indices=[3, 80]),
    "adalora": peft.AdaLoraConfig(init_r=4, total_step=10, target_modules=TARGETS),
    "ia3": peft.IA3Config(target_modules=TARGETS, feedforward_modules=["down_proj"]),
    "loha": peft.LoHaConfig(r=4, target_modules=TARGETS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_this_kind_is_added_to_its_base_as_peft_computes_it(
    kind: str, save_model: Callable[[str], Path], tmp_path: Path
) -> None:
    torch.manual_seed(3)
    base = save_model("a")
    tuner = peft.get_peft_model(auto.from_pretrained(base), KINDS[kind]).eval()
    for parameter in tuner.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, mean=0.1, std=0.2)
    tuner.peft_config["default"].base_model_name_or_path = str(base)
    tuner.save_pretrained(str(tmp_path / "adapter"))
    served = Networks("cpu", torch.float32).open(tmp_path / "adapter").network
    plain = auto.from_pretrained(base).eval()
    with torch.inference_mode():
        own, expected, unchanged = (model(TOKENS).logits for model in (served, tuner, plain))
    torch.testing.assert_close(own, expected, atol=1e-4, rtol=1e-4)
    assert float((expected - unchanged).abs().max()) > 1e-2
