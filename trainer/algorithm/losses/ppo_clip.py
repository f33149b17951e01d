"""The clipped surrogate with dual clip."""

from agentrl.trainer.algorithm.losses.loss_interface import Clip, Loss, TokenLoss, Tokens, ratio


def token_loss(tokens: Tokens, clip: Clip) -> TokenLoss:
    """L = −w · min(r·A, clip(r, 1 − low, 1 + high)·A), at most −w · dual · A where A < 0.

    r = π/π_old: PPO (arXiv:1707.06347, equation 7) with the dual clip (arXiv:1912.09729, equation
    5). With `old` the proximal policy and w its weight against the behaviour policy it is the
    decoupled objective (arXiv:2110.00641, section 3). Clipped tokens have no gradient.
    """
    import torch

    advantages = tokens.advantages
    ratios = ratio(tokens.current, tokens.old)
    bounded = ratios.clamp(1.0 - clip.low, 1.0 + clip.high)
    surrogate = torch.minimum(ratios * advantages, bounded * advantages)
    negative = advantages < 0
    surrogate = torch.where(negative, torch.maximum(surrogate, clip.dual * advantages), surrogate)
    above = torch.where(negative, ratios > clip.dual, (advantages > 0) & (ratios > 1.0 + clip.high))
    clipped = above | (negative & (ratios < 1.0 - clip.low))
    return TokenLoss(-tokens.weights * surrogate, clipped)


LOSS = Loss(token_loss, dual_clip=True)
