"""An update whose members share their prompt against the same update where none does."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch_device import DEVICE

from agentrl.core.config.sections.training import Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model import packing

MakeTrajectory = Callable[..., Trajectory]
SETTINGS = resolve_settings(Trainer(task_norm_min_tokens=8, micro_batch_tokens=1000))


def test_members_that_share_a_prompt_are_learned_from_as_if_each_had_its_own(
    tiny: Path, make_trajectory: MakeTrajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [
        make_trajectory([(30, 34 + n), (50, 53)], 60, seed=n, reward=float(n % 2)) for n in range(4)
    ]
    prompt = members[0].token_ids[: 4 * 30]
    members = [
        msgspec.structs.replace(each, token_ids=prompt + each.token_ids[4 * 30 :])
        for each in members
    ]
    batch = assemble_batch([TrainableGroup("g", "db", tuple(members))], SETTINGS)
    assert packing.micro_batches(batch, 1000)[0].tokens.size == 29 + 4 * (52 - 29)
    found = []
    for fewest in (packing.FEWEST_SHARED, 1000):
        monkeypatch.setattr(packing, "FEWEST_SHARED", fewest)
        learner = TorchLearner(tiny, SETTINGS, Hardware(DEVICE))
        recorded = learner._accumulate(batch)
        gradients = [each.grad.flatten() for each in learner._model.parameters()]
        found.append((recorded, torch.cat(gradients)))
    (shared, one), (apart, other) = found
    assert np.abs(shared.logprobs - apart.logprobs).max() < 1e-5
    assert np.abs(shared.entropy - apart.entropy).max() < 1e-5
    assert (one - other).norm() < 1e-5 * other.norm()
