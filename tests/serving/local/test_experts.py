"""Models of experts in the local engine, against plain transformers."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from small_experts import SHAPE
from torch_device import DEVICE
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from agentrl.core.errors import CheckpointError
from agentrl.serving.engine_api import Request
from agentrl.serving.local.engine import LocalEngine
from agentrl.serving.local.networks import Networks

auto: Any = AutoModelForCausalLM
EXPERTS = {
    "qwen3": Qwen3MoeConfig(**SHAPE, moe_intermediate_size=48, num_experts=8),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4),
}


def save_experts(path: Path, kind: str) -> None:
    torch.manual_seed(5)
    auto.from_config(EXPERTS[kind]).save_pretrained(path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", EXPERTS)
def test_a_model_of_experts_is_served_as_transformers_computes_it(
    tmp_path: Path, kind: str, dtype: str
) -> None:
    save_experts(tmp_path, kind)
    low: torch.dtype = getattr(torch, dtype)
    plain = auto.from_pretrained(tmp_path, dtype=low).to(DEVICE).eval()
    requests = [Request("experts", list(range(n)), 12) for n in (1, 7, 40)]
    with closing(LocalEngine(DEVICE, dtype=dtype)) as engine:
        engine.load("experts", tmp_path)
        answers = [each.result(timeout=60) for each in [engine.submit(r) for r in requests]]
    for request, answer in zip(requests, answers, strict=True):
        tokens = torch.tensor([request.prompt + answer.token_ids], device=DEVICE)
        with torch.inference_mode():
            logits = plain(input_ids=tokens).logits[0, len(request.prompt) - 1 : -1].float()
        expected = torch.log_softmax(logits, -1)[range(len(answer.token_ids)), answer.token_ids]
        off = (torch.tensor(answer.logprobs) - expected.cpu()).abs()
        assert len(answer.token_ids) == 12
        assert float(off.median()) < (1e-4 if dtype == "float32" else 0.05)


def test_an_expert_that_is_not_the_file_s_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers joins the experts of a layer in one tensor, of which one bit is flipped here."""
    save_experts(tmp_path, "qwen3")
    assert Networks("cpu", torch.bfloat16).open(tmp_path)
    load: Any = Qwen3MoeForCausalLM.from_pretrained

    def load_and_flip(*given: Any, **options: Any) -> Any:
        network, report = load(*given, **options)
        joined = network.get_parameter("model.layers.1.mlp.experts.gate_up_proj")
        joined.data[3, -1].view(torch.int32)[0] ^= 1
        return network, report

    monkeypatch.setattr(Qwen3MoeForCausalLM, "from_pretrained", load_and_flip)
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.1\.mlp\.experts\.3\.up_proj"):
        Networks("cpu", torch.float32).open(tmp_path)
