"""Adds an adapter's product to the weights of its base, without losing it to bfloat16.

    weight + scale · B·A ─▶ float32 ─▶ + dither ─▶ cut to bfloat16

The weights of a base lie on bfloat16's grid. Rounding to the nearest value would return most of
them unchanged after the first updates: of a change with a root mean square of 3e-5 a tenth remains.
The dither decides by place in the tensor which weights round up, as many as it takes on average.
"""

import torch
from torch import Tensor

WEYL = -1640531527  # 2³² times the golden ratio, as int32: its multiples fill 16 bits evenly
LOW_BITS = 0xFFFF  # of a float32, which bfloat16 leaves out


def add_product(weight: Tensor, product: Tensor) -> Tensor:
    """Return `weight` + `product` in the data type of `weight`. Both [rows, columns]."""
    exact = weight.float() + product.float()
    if weight.dtype != torch.bfloat16:
        return exact.to(weight.dtype)
    return dither(exact)


def dither(exact: Tensor) -> Tensor:
    """Round float32 to bfloat16, up or down by place. Values of bfloat16 stay as they are."""
    places = torch.arange(exact.numel(), dtype=torch.int32, device=exact.device)
    threshold = ((places * WEYL) >> 16) & LOW_BITS
    bits = exact.contiguous().view(torch.int32) + threshold.view_as(exact)
    return (bits & ~LOW_BITS).view(torch.float32).bfloat16()
