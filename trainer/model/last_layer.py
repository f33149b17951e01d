"""Runs the last layer's feed-forward block only for tokens whose states are used.

    attention of all T tokens ─▶ feed-forward of the K that are read ─▶ the states of those K

Attention is finished there, so nothing depends on the block's output for other tokens; they get
zeros. With L layers this saves 1/L of the feed-forward cost of the unused tokens.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

READ = "read_rows"  # the keyword that transformers hands through to its layers


class Block:
    """The block's forward pass, only for `rows` [K] if they are set.

    `whole`: the block has more outputs than states, such as router scores, so all tokens are
    computed.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.rows: Tensor | None = None
        self.whole = False
        self._forward = forward

    def __call__(self, hidden: Tensor, *more: Any, **options: Any) -> Any:
        """hidden: [1, T, H]. Returns [1, T, H] with zeros for unused tokens."""
        if self.rows is None or self.whole or more or options or hidden.dim() != 3:
            return self._forward(hidden, *more, **options)
        found = self._forward(hidden.index_select(1, self.rows))
        self.whole = not isinstance(found, Tensor)
        if self.whole:
            return self._forward(hidden)
        return found.new_zeros(hidden.shape).index_copy(1, self.rows, found)


def skip_unread_rows(model: Any) -> bool:
    """Enable `READ` for a transformers model; return whether its layers support it."""
    layers = getattr(model.base_model, "layers", None)
    if not layers or getattr(layers[-1], "mlp", None) is None:
        return False
    last = layers[-1]
    last.mlp.forward = block = Block(last.mlp.forward)
    last.forward = partial(_layer, last.forward, block)
    return True


def _layer(
    forward: Callable[..., Any],
    block: Block,
    *given: Any,
    read_rows: Tensor | None = None,
    **options: Any,
) -> Any:
    """The layer's forward pass, also when it is recomputed in the backward pass."""
    block.rows = read_rows
    try:
        return forward(*given, **options)
    finally:
        block.rows = None
