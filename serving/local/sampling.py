"""Samples tokens: pure functions, one row per request."""

import torch
from torch import Tensor


def draw_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token per row by inverting the cumulative distribution, or greedily.

    logits: [n, vocabulary] fp32; temperatures: [n] fp32, 0 is greedy; uniforms: [n] fp64 in [0, 1).
    Returns token ids [n] int64 and their log-probabilities [n] fp32 under log_softmax(logits / T);
    T = 1 for greedy rows. A token of probability 0 is never drawn.
    """
    greedy = temperatures == 0
    logprobs = torch.log_softmax(logits / torch.where(greedy, 1.0, temperatures)[:, None], dim=-1)
    cumulative = logprobs.double().exp().cumsum(-1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    tokens = torch.where(greedy, logits.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]
