"""Our losses, weights and gradients beside OpenRLHF's, on random batches with ragged masks.

Where the two differ by definition: docs/algorithms.md.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from reference_programs import ROWS, Arrays, random_rows, run_reference
from torch import Tensor

from agentrl.trainer.algorithm.losses import gspo, importance, kl, ppo_clip
from agentrl.trainer.algorithm.losses.loss_interface import Clip, Tokens
from agentrl.trainer.algorithm.presets import Importance

pytestmark = pytest.mark.oracles

SCRIPT = Path(__file__).parents[3] / "oracles" / "openrlhf_losses.py"
NEVER = 1e9  # of a dual clip
MOST = 10.0  # that their KL says of a token
PPO = Clip(0.2, 0.28, NEVER)
LOSSES = {
    "clipped": (PPO, Importance("none")),
    "dual": (Clip(0.2, 0.28, 3.0), Importance("none")),
    "truncated": (PPO, Importance("truncated", most=2.0)),
    "icepop": (PPO, Importance("icepop", 0.5, 5.0)),
    "gspo": (Clip(0.1, 0.15, NEVER), Importance("none")),
}


@pytest.fixture(scope="module", params=[0, 1])
def asked(request: pytest.FixtureRequest) -> Arrays:
    return random_rows(request.param, moved=0.6)


@pytest.fixture(scope="module")
def theirs(asked: Arrays, oracles: Path, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    return run_reference(oracles, SCRIPT, tmp_path_factory.mktemp("openrlhf"), asked)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_theirs(asked: Arrays, theirs: Arrays, name: str) -> None:
    mask = torch.from_numpy(asked["mask"])
    old, behaviour, advantages = (
        torch.from_numpy(asked[key])[mask] for key in ("old", "behaviour", "advantages")
    )
    current = torch.from_numpy(asked["current"]).requires_grad_()
    clip, kind = LOSSES[name]
    weights = importance.weights(old, behaviour, kind)
    if name == "gspo":
        loss = _by_sequence(asked, current[mask], old, advantages, clip)
    else:
        loss = ppo_clip.token_loss(Tokens(current[mask], old, advantages, weights), clip).values
    total = loss.mean() if name != "gspo" else loss.sum()
    torch.autograd.backward(total)
    assert total.item() == pytest.approx(theirs[f"{name}_loss"].item(), abs=1e-6)
    assert current.grad is not None
    assert np.abs(current.grad.numpy()).max() > 1e-3
    assert current.grad.numpy() == pytest.approx(theirs[f"{name}_gradient"], abs=1e-8)


def test_the_kl_of_each_token_and_its_gradient_are_theirs(asked: Arrays, theirs: Arrays) -> None:
    mask = torch.from_numpy(asked["mask"])
    current = torch.from_numpy(asked["current"]).requires_grad_()
    penalty = kl.k3(current[mask], torch.from_numpy(asked["reference"])[mask])
    assert (penalty < MOST).float().mean() > 0.9
    penalty = penalty.clamp(max=MOST)
    torch.autograd.backward(penalty.sum())
    expected = theirs["kl"][asked["mask"]]
    assert penalty.detach().numpy() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert current.grad is not None
    assert current.grad.numpy() == pytest.approx(theirs["kl_gradient"], rel=1e-6, abs=1e-6)


def _by_sequence(
    asked: Arrays, current: Tensor, old: Tensor, advantages: Tensor, clip: Clip
) -> Tensor:
    """[K] gspo's loss of each token, shared out as they do: every sequence weighs the same."""
    rows = torch.from_numpy(np.nonzero(asked["mask"])[0])
    ratio = gspo.sequence_log_ratios(current.detach() - old, rows, ROWS)
    tokens = Tokens(current, current.detach() - ratio, advantages, torch.ones_like(old))
    lengths = torch.bincount(rows, minlength=ROWS)
    shares = 1.0 / (lengths[rows] * (lengths > 0).sum())
    return gspo.token_loss(tokens, clip).values * shares
