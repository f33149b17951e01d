"""Our advantages, weights, losses and gradients beside verl's, on random batches with ragged masks.

Where the two differ by definition: docs/algorithms.md.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_programs import GROUP, ROWS, WIDTH, Arrays, random_rows, run_reference

from agentrl.trainer.algorithm.advantages import ADVANTAGES, Doubles, group_advantages
from agentrl.trainer.algorithm.credit.credit_interface import compare_within, discounted_returns
from agentrl.trainer.algorithm.losses import cispo, gspo, importance, ppo_clip
from agentrl.trainer.algorithm.losses.loss_interface import Clip, Tokens
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
    paid = np.random.default_rng(request.param).choice([0.0, 0.1, 1.0], (ROWS, WIDTH))
    return {**random_rows(request.param, moved=0.4), "groups": groups, "paid": paid}


@pytest.fixture(scope="module")
def theirs(asked: Arrays, oracles: Path, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    return run_reference(oracles, SCRIPT, tmp_path_factory.mktemp("verl"), asked)


@pytest.mark.parametrize("kind", sorted(ADVANTAGES))
def test_advantages_are_theirs(asked: Arrays, theirs: Arrays, kind: str) -> None:
    rewards = asked["rewards"].reshape(-1, GROUP).tolist()
    ours = np.concatenate(group_advantages(rewards, kind))[:, None] * asked["mask"]
    assert ours == pytest.approx(theirs[kind], abs=1e-6)


def test_discounted_returns_are_theirs(asked: Arrays, theirs: Arrays) -> None:
    for paid, mask, returns in zip(asked["paid"], asked["mask"], theirs["returns"], strict=True):
        assert discounted_returns(paid[mask], 0.9) == pytest.approx(returns[mask], abs=1e-6)


def test_turns_compared_at_the_same_place_are_theirs(asked: Arrays, theirs: Arrays) -> None:
    def compare(values: Sequence[float]) -> Doubles:
        return group_advantages([values], "std")[0].astype(np.float64)

    for first in range(0, ROWS, GROUP):
        masks = asked["mask"][first : first + GROUP]
        places = [np.flatnonzero(mask).tolist() for mask in masks]
        paid = [row[mask] for row, mask in zip(asked["paid"][first:], masks, strict=False)]
        together = masks.sum(axis=0) > 1  # one alone is 0 here and its reward there
        for ours, place, row in zip(
            compare_within(paid, places, compare), places, theirs["compared"][first:], strict=False
        ):
            shared = together[place]
            assert ours[shared] == pytest.approx(row[place][shared], abs=1e-5)


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
