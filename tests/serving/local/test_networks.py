"""Loading networks: what is served is what the files hold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from agentrl.core.errors import CheckpointError
from agentrl.serving.local.networks import Networks

Save = Callable[[str], Path]
WEIGHT = "model.layers.1.mlp.down_proj.weight"


def _flip_a_bit(network: Any, _: Path) -> None:
    network.get_parameter(WEIGHT).data.view(torch.int32)[0, 0] ^= 1


def _exchange_the_file(_: Any, path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    weights[WEIGHT][0, 0] += 1.0
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("change", [_flip_a_bit, _exchange_the_file])
def test_a_tensor_that_is_not_the_file_s_is_refused(
    save_model: Save, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Path], None]
) -> None:
    path = save_model(change.__name__)
    load: Any = Qwen3ForCausalLM.from_pretrained

    def load_and_change(*given: Any, **options: Any) -> Any:
        network, report = load(*given, **options)
        change(network, path)
        return network, report

    monkeypatch.setattr(Qwen3ForCausalLM, "from_pretrained", load_and_change)
    with pytest.raises(CheckpointError, match=f"tensor {WEIGHT} was loaded with other values"):
        Networks("cpu", torch.float32).open(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_that_were_cast_while_loading_are_the_file_s(
    save_model: Save, dtype: torch.dtype
) -> None:
    assert Networks("cpu", dtype).open(save_model("a")).network.dtype == dtype
