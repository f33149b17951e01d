"""Our advantages, weights, losses and gradients beside verl's, on random batches with ragged masks.

Where the two differ by definition: docs/algorithms.md.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from reference_programs import GROUP, ROWS, Arrays, random_rows, run_reference

from agentrl.trainer.algorithm.advantages import ADVANTAGES, group_advantages
from agentrl.trainer.algorithm.losses import cispo, gspo, importance, ppo_clip
from agentrl.trainer.algorithm.losses.tokens import Clip, Tokens
from agentrl.trainer.algorithm.presets import Importance

pytestmark = pytest.mark.oracles

SCRIPT = Path(__file__).parents[3] / "oracles" / "verl_losses.py"
LOSSES = {
    "vanilla": (ppo_clip.token_loss, Clip(0.2, 0.28, 3.0)),
    "cispo": (cispo.token_loss, Clip(0.9, 1.5, 3.0)),
    "gspo": (gspo.token_loss, Clip(0.1, 0.15, 3.0)),
}


@pytest.fixture(scope="module", params=[0, 1, 2])
def asked(request: pytest.FixtureRequest) -> Arrays:
    groups = np.repeat(np.arange(ROWS // GROUP), GROUP)
    return {**random_rows(request.param, moved=0.4), "groups": groups}


@pytest.fixture(scope="module")
def theirs(asked: Arrays, oracles: Path, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    return run_reference(oracles, SCRIPT, tmp_path_factory.mktemp("verl"), asked)


@pytest.mark.parametrize("kind", sorted(ADVANTAGES))
def test_advantages_are_theirs(asked: Arrays, theirs: Arrays, kind: str) -> None:
    rewards = asked["rewards"].reshape(-1, GROUP).tolist()
    ours = np.concatenate(group_advantages(rewards, kind))[:, None] * asked["mask"]
    assert ours == pytest.approx(theirs[kind], abs=1e-6)


@pytest.mark.parametrize(
    "bounds", [Importance("truncated", most=2.0), Importance("icepop", 0.5, 5.0)]
)
def test_importance_weights_are_theirs(asked: Arrays, theirs: Arrays, bounds: Importance) -> None:
    old, behaviour = torch.from_numpy(asked["old"]), torch.from_numpy(asked["behaviour"])
    ours = importance.weights(old, behaviour, bounds).numpy() * asked["mask"]
    assert ours == pytest.approx(theirs[bounds.kind], abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_theirs(asked: Arrays, theirs: Arrays, name: str) -> None:
    mask = torch.from_numpy(asked["mask"])
    old, behaviour, advantages = (
        torch.from_numpy(asked[key])[mask] for key in ("old", "behaviour", "advantages")
    )
    current = torch.from_numpy(asked["current"]).requires_grad_()
    kept = current[mask]
    weights = importance.weights(old, behaviour, Importance("truncated", most=2.0))
    if name == "gspo":
        old = kept.detach() - _sequence_ratios(asked)
    loss_of, clip = LOSSES[name]
    loss = loss_of(Tokens(kept, old, advantages, weights), clip).values.mean()
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(theirs[f"{name}_loss"].item(), abs=1e-6)
    assert current.grad is not None
    assert np.abs(current.grad.numpy()).max() > 1e-3
    assert current.grad.numpy() == pytest.approx(theirs[f"{name}_gradient"], abs=1e-9)


def _sequence_ratios(asked: Arrays) -> torch.Tensor:
    """[K] log s of each loss token's row."""
    mask = asked["mask"]
    log_ratios = torch.from_numpy((asked["current"] - asked["old"])[mask])
    rows = torch.from_numpy(np.nonzero(mask)[0])
    return gspo.sequence_log_ratios(log_ratios, rows, ROWS)
