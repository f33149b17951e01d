"""Packed weights of the local engine on a CPU in bfloat16."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from agentrl.serving.local.networks import Networks
from agentrl.serving.local.packed_linear import PackedLinear, WeightPacker, multiplies_bfloat16

needs_bfloat16 = pytest.mark.skipif(
    not multiplies_bfloat16("cpu", torch.bfloat16), reason="this CPU has no bfloat16"
)


@needs_bfloat16
@settings(max_examples=30, deadline=None)
@given(sizes=st.tuples(*[st.integers(1, 70)] * 4), bias=st.booleans(), seed=st.integers(0, 2**31))
def test_a_packed_layer_computes_what_the_plain_one_does(
    sizes: tuple[int, int, int, int], bias: bool, seed: int
) -> None:
    rows, columns, inner, outer = sizes
    torch.manual_seed(seed)
    plain = nn.Linear(inner, outer, bias=bias, dtype=torch.bfloat16).requires_grad_(False)
    network = nn.Sequential(plain)
    WeightPacker(network).pack(network)
    packed: Any = network[0]
    inputs = torch.randn(rows, columns, inner, dtype=torch.bfloat16)
    with torch.inference_mode():
        torch.testing.assert_close(packed(inputs), plain(inputs), rtol=2**-7, atol=1e-2)
    assert torch.equal(packed.weight, plain.weight)
    assert (packed.in_features, packed.out_features) == (inner, outer)


@needs_bfloat16
def test_policies_share_the_packed_weights_of_their_base_and_free_their_own(
    save_model: Callable[[str], Path], tmp_path: Path
) -> None:
    networks = Networks("cpu", torch.bfloat16)
    one, base = networks.open(_adapter(save_model("a"), tmp_path)), networks.open(save_model("a"))
    layers = [opened.network.model.layers[0].self_attn for opened in (one, base)]
    assert isinstance(layers[0].q_proj, PackedLinear)
    assert layers[0].k_proj._packed is layers[1].k_proj._packed
    assert layers[0].q_proj._packed is not layers[1].q_proj._packed
    target = base.base.network.get_parameter("model.layers.0.self_attn.q_proj.weight")
    assert torch.equal(layers[1].q_proj.weight, target)
    assert not torch.equal(layers[0].q_proj.weight, target)
    assert {type(each) for each in one.network.modules()}.isdisjoint({nn.Linear})
    del one, base, layers, target
    gc.collect()
    assert not networks._bases


def _adapter(base: Path, folder: Path) -> Path:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    tuner = get_peft_model(auto.from_pretrained(base), LoraConfig(target_modules=["q_proj"]))
    for name, parameter in tuner.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.3)
    tuner.save_pretrained(str(folder / "adapter"))
    return folder / "adapter"


def test_other_devices_and_types_are_left_alone() -> None:
    assert not multiplies_bfloat16("cpu", torch.float32)
    assert not multiplies_bfloat16("cuda:0", torch.bfloat16)
