"""CISPO: clips the importance weight, never the gradient of a token."""

from agentrl.trainer.algorithm.losses.loss_interface import Clip, Loss, TokenLoss, Tokens, ratio


def token_loss(tokens: Tokens, clip: Clip) -> TokenLoss:
    """L = −w · sg(clip(r, 1 − low, 1 + high)) · A · log π; r = π/π_old (arXiv:2506.13585).

    Equations 4 and 5. Every token keeps a gradient; for a clipped token the weight is the bound.
    """
    ratios = ratio(tokens.current, tokens.old).detach()
    bounded = ratios.clamp(1.0 - clip.low, 1.0 + clip.high)
    values = -tokens.weights * bounded * tokens.advantages * tokens.current
    return TokenLoss(values, bounded != ratios)


LOSS = Loss(token_loss, clip={"clip_low": 1.0, "clip_high": 4.0})
