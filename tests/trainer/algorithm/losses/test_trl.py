"""Our advantages, losses and gradients beside TRL's, on random batches with ragged masks.

Where the two differ by definition: docs/algorithms.md.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from reference_programs import GROUP, ROWS, Arrays, random_rows, run_reference

from agentrl.trainer.algorithm.advantages import group_advantages
from agentrl.trainer.algorithm.losses import cispo, gspo, kl, ppo_clip
from agentrl.trainer.algorithm.losses.loss_interface import Clip, Tokens

pytestmark = pytest.mark.oracles

SCRIPT = Path(__file__).parents[3] / "oracles" / "trl_losses.py"
BETA = 0.3
LOSSES = {
    "clipped": (ppo_clip.token_loss, Clip(0.2, 0.28, 3.0)),
    "cispo": (cispo.token_loss, Clip(1.0, 1.5, 3.0)),
    "gspo": (gspo.token_loss, Clip(0.1, 0.15, 3.0)),
    "anchored": (ppo_clip.token_loss, Clip(0.2, 0.28, 1e9)),
}


@pytest.fixture(scope="module")
def asked() -> Arrays:
    given = random_rows(0, moved=0.7)
    return {**given, "advantages": given["advantages"][:, 0], "group": np.array(GROUP)}


@pytest.fixture(scope="module")
def theirs(asked: Arrays, oracles: Path, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    return run_reference(oracles, SCRIPT, tmp_path_factory.mktemp("trl"), asked)


def test_centred_advantages_are_theirs(asked: Arrays, theirs: Arrays) -> None:
    ours = np.concatenate(group_advantages(asked["rewards"].reshape(-1, GROUP).tolist(), "centred"))
    assert ours == pytest.approx(theirs["centred_advantages"], abs=1e-6)


def test_advantages_over_the_deviation_are_theirs_but_for_what_is_added_to_it(
    asked: Arrays, theirs: Arrays
) -> None:
    rewards = asked["rewards"].reshape(-1, GROUP)
    ours = np.concatenate(group_advantages(rewards.tolist(), "std"))
    deviation = np.repeat(rewards.std(axis=1, ddof=1), GROUP)
    rescaled = ours * (deviation + 1e-6) / (deviation + 1e-4)
    assert rescaled == pytest.approx(theirs["std_advantages"], abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_theirs(asked: Arrays, theirs: Arrays, name: str) -> None:
    mask = torch.from_numpy(asked["mask"])
    old, reference = (torch.from_numpy(asked[key])[mask] for key in ("old", "reference"))
    advantages = torch.from_numpy(asked["advantages"])[:, None].expand(mask.shape)[mask]
    current = torch.from_numpy(asked["current"]).requires_grad_()
    kept = current[mask]
    if name == "gspo":
        rows = torch.from_numpy(np.nonzero(asked["mask"])[0])
        old = kept.detach() - gspo.sequence_log_ratios(kept.detach() - old, rows, ROWS)
    loss_of, clip = LOSSES[name]
    values = loss_of(Tokens(kept, old, advantages, torch.ones_like(old)), clip).values
    if name == "anchored":
        values = values + BETA * kl.k3(kept, reference)
    loss = values.mean()
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(theirs[f"{name}_loss"].item(), abs=1e-6)
    assert current.grad is not None
    assert np.abs(current.grad.numpy()).max() > 1e-3
    assert current.grad.numpy() == pytest.approx(theirs[f"{name}_gradient"], abs=1e-9)
