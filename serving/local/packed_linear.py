"""Linear layers on a CPU in bfloat16 whose weights lie in the order in which oneDNN multiplies.

A plain weight is put into that order in every pass, which takes longer than a small pass itself.
The operators are those to which torch.compile lowers a linear layer; they have no public names.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

KERNELS: Any = torch.ops.mkldnn


@cache
def multiplies_bfloat16(device: str, dtype: torch.dtype) -> bool:
    """Return whether oneDNN has fast products of this dtype here; in float32 it gains nothing."""
    if torch.device(device).type != "cpu" or dtype != torch.bfloat16:
        return False
    backend: Any = torch.backends.mkldnn
    return bool(backend.is_available() and KERNELS._is_mkldnn_bf16_supported())  # noqa: SLF001


class PackedLinear(nn.Module):
    """Computes what the nn.Linear does whose weight was packed."""

    def __init__(self, linear: nn.Linear, packed: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed = packed

    @property
    def weight(self) -> Tensor:
        """A plain copy [out, in], for models that ask for its type."""
        return self._packed.to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """[…, in] → […, out]."""
        output: Tensor = KERNELS._linear_pointwise(  # noqa: SLF001
            inputs, self._packed, self.bias, "none", [], ""
        )
        return output


class WeightPacker:
    """Packs networks that share weights with a base; they then share its packed weights, too.

    It must not outlive the base: weights are recognised by their address.
    """

    def __init__(self, base: nn.Module) -> None:
        self._shared = {weight.data_ptr() for weight in base.parameters()}
        self._packed: dict[int, Tensor] = {}

    def pack(self, network: nn.Module) -> None:
        """Replace each nn.Linear. This frees plain weights that the base does not share."""
        parents = [each for each in network.modules() if not isinstance(each, nn.Linear)]
        for module in parents:
            for name, child in list(module.named_children()):
                if type(child) is nn.Linear:
                    setattr(module, name, PackedLinear(child, self._pack(child.weight)))

    def _pack(self, weight: Tensor) -> Tensor:
        address = weight.data_ptr()
        if address in self._packed:
            return self._packed[address]
        packed: Tensor = KERNELS._reorder_linear_weight(weight.detach(), None)  # noqa: SLF001
        if address in self._shared:
            self._packed[address] = packed
        return packed
