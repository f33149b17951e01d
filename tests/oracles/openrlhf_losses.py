"""Runs where OpenRLHF is installed: answers a batch of arrays with OpenRLHF's own losses.

python openrlhf_losses.py QUESTIONS.npz ANSWERS.npz
"""

import sys
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

# Its losses stand beside what trains whole models with DeepSpeed: that is not asked for here.
sys.modules["deepspeed"] = types.ModuleType("deepspeed")
models = types.ModuleType("openrlhf.models")
models.__path__ = [str(Path(find_spec("openrlhf").origin).parent / "models")]
sys.modules["openrlhf.models"] = models

from openrlhf.models.loss import PolicyLoss  # noqa: E402
from openrlhf.models.utils import compute_approx_kl  # noqa: E402

PPO = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
LOSSES = {  # as the test has them
    "clipped": PPO,
    "dual": {**PPO, "dual_clip": 3.0},
    "truncated": {**PPO, "is_correction_mode": "clip", "is_correction_threshold": [0.0, 2.0]},
    "icepop": {**PPO, "is_correction_mode": "mask", "is_correction_threshold": [0.5, 5.0]},
    "gspo": {"clip_eps_low": 0.1, "clip_eps_high": 0.15, "policy_loss_type": "gspo"},
}


def main(questions: str, answers: str) -> None:
    """[B, T] arrays current, old, behaviour, reference, advantages, mask."""
    given = {
        name: torch.from_numpy(value)
        for name, value in np.load(questions, allow_pickle=False).items()
    }
    mask, said = given["mask"].double(), {}
    for name, options in LOSSES.items():
        level = "token" if "is_correction_mode" in options else "off"
        current = given["current"].clone().requires_grad_()
        loss, *_ = PolicyLoss(is_correction_level=level, **options)(
            current, given["old"], given["advantages"], mask, given["behaviour"]
        )
        loss.backward()
        said |= {f"{name}_loss": loss.detach(), f"{name}_gradient": current.grad}
    # It computes this one in fp32.
    current = given["current"].clone().requires_grad_()
    penalty = compute_approx_kl(current, given["reference"], kl_estimator="k3")
    (penalty * mask).sum().backward()
    said |= {"kl": penalty.detach(), "kl_gradient": current.grad}
    np.savez(answers, **{name: value.numpy() for name, value in said.items()})


main(*sys.argv[1:])
