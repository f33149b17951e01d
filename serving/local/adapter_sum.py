"""Adds an adapter's product to the weights of its base, without losing it to bfloat16.

    weight + scale · B·A ─▶ float32 ─▶ + dither ─▶ cut to bfloat16

The weights of a base lie on bfloat16's grid. Rounding to the nearest value would return most of
them unchanged after the first updates: of a change with a root mean square of 3e-5 a fifth remains.
The dither decides by place in the tensor which weights round up, as many as it takes on average.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.core.errors import CheckpointError

WEYL = -1640531527  # 2³² times the golden ratio, as int32: its multiples fill 16 bits evenly
LOW_BITS = 0xFFFF  # of a float32, which bfloat16 leaves out
BLOCK = 2**22  # weights that are added at once


def is_plain(module: nn.Module) -> bool:
    """Return whether a module is linear and adds no more than scaling · B·A of one adapter."""
    from peft.tuners import lora

    if type(module) is not lora.Linear or len(module.active_adapters) != 1:
        return False
    (name,) = module.active_adapters
    return name in module.lora_A and name not in module.lora_variant and not module.lora_bias[name]


def merge_layer(layer: Any) -> None:
    """Add what an adapter does to the weight of its layer: scaling · B·A, if it is plain.

    Raises ValueError if that is not possible.
    """
    if not is_plain(layer):
        layer.merge(safe_merge=True)
        return
    (name,) = layer.active_adapters
    b, a = layer.lora_B[name].weight, layer.lora_A[name].weight
    b = layer.scaling[name] * b.float()
    linear = layer.get_base_layer()
    b, a = (a.T, b.T) if layer.fan_in_fan_out else (b, a)
    linear.weight = nn.Parameter(add_product(linear.weight.data, b, a), requires_grad=False)


def merge_adapter(model: Any, adapter: Path, merge: Callable[[Any], None] = merge_layer) -> Any:
    """Return the model with an adapter added; only its targets' weights get storage of their own.

    `merge`: adds it to one layer. Raises CheckpointError if the adapter does not fit the model.
    """
    try:
        return _merge_adapter(model, adapter, merge)
    except CheckpointError:
        raise
    except Exception as error:  # peft raises whatever its parts raise
        raise CheckpointError(
            f"{adapter}: the adapter does not fit its base model: {error}"
        ) from error


def _merge_adapter(model: Any, adapter: Path, merge: Callable[[Any], None]) -> Any:
    from peft import (
        PeftConfig,
        get_peft_model,
        get_peft_model_state_dict,
        load_peft_weights,
        set_peft_model_state_dict,
    )
    from peft.tuners.tuners_utils import BaseTunerLayer

    config = PeftConfig.from_pretrained(str(adapter))
    config.base_model_name_or_path = model.name_or_path  # it may have moved
    tuner = get_peft_model(model, config)
    weights = load_peft_weights(str(adapter), device=str(model.device))
    expected = get_peft_model_state_dict(tuner, save_embedding_layers=False)
    if odd := expected.keys() ^ weights.keys():
        raise CheckpointError(f"{adapter}: the weight {min(odd)} does not fit adapter_config.json")
    set_peft_model_state_dict(tuner, weights)
    for module in tuner.modules():
        if isinstance(module, BaseTunerLayer):
            merge(module)
    return tuner.unload().requires_grad_(False).eval()


def add_product(weight: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Return `weight` + `b` · `a` in the data type of `weight`.

    Shapes: `weight` [rows, columns], `b` [rows, rank], `a` [rank, columns]. Beside the result it
    needs the memory of a few blocks. Raises ValueError for a sum that is not finite.
    """
    total = torch.empty_like(weight, memory_format=torch.contiguous_format)
    rows, columns = weight.shape
    step = max(1, BLOCK // max(1, columns))
    for first in range(0, rows, step):
        some = slice(first, first + step)
        exact = weight[some].float() + b[some].float() @ a.float()
        if not exact.isfinite().all():
            raise ValueError("a weight is not finite")
        low = weight.dtype == torch.bfloat16
        total[some] = dither(exact, first * columns) if low else exact
    return total


def dither(exact: Tensor, first: int = 0) -> Tensor:
    """Round finite float32 to bfloat16, up or down by place. Values of bfloat16 stay as they are.

    `first`: the place of the first value in the whole tensor.
    """
    places = torch.arange(exact.numel(), dtype=torch.int32, device=exact.device)
    threshold = ((places * WEYL + _wrap(first * WEYL)) >> 16) & LOW_BITS
    bits = exact.contiguous().view(torch.int32) + threshold.view_as(exact)
    return (bits & ~LOW_BITS).view(torch.float32).bfloat16()


def _wrap(number: int) -> int:
    """Return the int32 that is congruent to the number modulo 2³²."""
    return (number + 2**31) % 2**32 - 2**31
