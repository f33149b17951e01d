"""Runs where verl is installed: answers a batch of arrays with verl's own advantages and losses.

python verl_losses.py QUESTIONS.npz ANSWERS.npz
"""

import sys

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

CLIPS = {"vanilla": (0.2, 0.28), "cispo": (0.9, 1.5), "gspo": (0.1, 0.15)}


def main(questions: str, answers: str) -> None:
    """[B, T] arrays current, old, behaviour, advantages, mask, paid; [B] rewards, groups."""
    given = {
        name: torch.from_numpy(value)
        for name, value in np.load(questions, allow_pickle=False).items()
    }
    mask, groups = given["mask"].double(), given["groups"].numpy()
    said = _advantages(given["rewards"], mask, groups) | _credits(given["paid"], mask, groups)
    log_ratio = given["old"] - given["behaviour"]
    for name, bounds in (("truncated", 2.0), ("icepop", "0.5_5.0")):
        said[name], _ = compute_rollout_correction_weights(
            log_ratio, mask, rollout_is_threshold=bounds
        )
    for name, (low, high) in CLIPS.items():
        config = ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=low,
            clip_ratio_high=high,
            clip_ratio_c=3.0,
        )
        current = given["current"].clone().requires_grad_()
        loss, _ = core_algos.get_policy_loss_fn(name)(
            old_log_prob=given["old"],
            log_prob=current,
            advantages=given["advantages"],
            response_mask=mask,
            loss_agg_mode="token-mean",
            config=config,
            rollout_is_weights=said["truncated"],
        )
        loss.backward()
        said |= {f"{name}_loss": loss.detach(), f"{name}_gradient": current.grad}
    np.savez(answers, **{name: value.numpy() for name, value in said.items()})


def _advantages(
    rewards: torch.Tensor, mask: torch.Tensor, groups: np.ndarray
) -> dict[str, torch.Tensor]:
    """[B, T] by kind."""
    tokens = torch.zeros_like(mask)
    tokens[:, 0] = rewards
    grpo, rloo = (
        core_algos.compute_grpo_outcome_advantage,
        core_algos.compute_rloo_outcome_advantage,
    )
    return {
        "centred": grpo(tokens.clone(), mask, groups, norm_adv_by_std_in_grpo=False)[0],
        "std": grpo(tokens.clone(), mask, groups, norm_adv_by_std_in_grpo=True)[0],
        "leave_one_out": rloo(tokens.clone(), mask, groups)[0],
    }


def _credits(paid: torch.Tensor, mask: torch.Tensor, groups: np.ndarray) -> dict[str, torch.Tensor]:
    """[B, T]: discounted returns; turns compared with those of their group and place."""
    reinforce = core_algos.compute_reinforce_plus_plus_outcome_advantage
    places = (groups[:, None] * mask.shape[1] + np.arange(mask.shape[1])).reshape(-1)
    kept = mask.reshape(-1).bool()
    compared = torch.zeros_like(mask).reshape(-1)
    compared[kept] = core_algos.compute_grpo_outcome_advantage(
        paid.reshape(-1, 1)[kept], torch.ones(int(kept.sum()), 1), places[kept.numpy()]
    )[0][:, 0].double()
    return {
        "returns": reinforce(paid.clone(), mask, AlgoConfig(gamma=0.9))[1],
        "compared": compared.reshape(mask.shape),
    }


main(*sys.argv[1:])
