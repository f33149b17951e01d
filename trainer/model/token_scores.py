"""Computes log-probabilities of given tokens, and the entropy at each position.

hidden states [K, H] ─▶ head ─▶ logits, so many at once as memory shall hold ─▶ two numbers a token
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]
Scores = tuple[Tensor, Tensor]


def score_tokens(
    head: Head, hidden: Tensor, temperature: Tensor, targets: Tensor, most: int
) -> Scores:
    """Return [K] log-probabilities of the targets and [K] entropies (without gradient).

    hidden: [K, H]; temperature, targets: [K]. `most`: rows of logits in memory at the same time. If
    there are more, the backward pass recomputes them in chunks.
    """
    if hidden.shape[0] <= most:
        return _score_tokens(head, hidden, temperature, targets)
    parts = zip(*(torch.split(each, most) for each in (hidden, temperature, targets)), strict=True)
    found = list(_in_turn(head, parts))
    return torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])


def _in_turn(head: Head, parts: Iterator[tuple[Tensor, Tensor, Tensor]]) -> Iterator[Scores]:
    for part in parts:
        yield checkpoint(
            _score_tokens,
            head,
            *part,
            use_reentrant=False,
            preserve_rng_state=False,
            determinism_check="none",  # a sharded weight has another shape while it is not gathered
        )


def _score_tokens(head: Head, hidden: Tensor, temperature: Tensor, targets: Tensor) -> Scores:
    found: Scores = _LogProbabilities.apply(head(hidden), temperature, targets)  # type: ignore[no-untyped-call]
    return found


class _LogProbabilities(torch.autograd.Function):
    """log_softmax(logits / T) at the targets, with its entropy; keeps one [K, V] for backward.

    d log p(target) / d logits = (one-hot − p) / T.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, temperature: Tensor, targets: Tensor) -> Scores:
        every = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
        chosen = every.gather(-1, targets[:, None]).squeeze(-1)
        likely = every.exp()
        entropy = -torch.linalg.vecdot(likely, every)
        ctx.save_for_backward(likely, temperature, targets)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        likely, temperature, targets = ctx.saved_tensors
        scaled = (gradient / temperature)[:, None]
        found = likely.mul_(-scaled)  # in place: torch refuses a second backward pass
        found.scatter_add_(-1, targets[:, None], scaled)
        return found.to(ctx.dtype), None, None
