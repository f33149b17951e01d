import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_device import DEVICE

from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.errors import CheckpointError
from agentrl.core.trajectory import Trajectory
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.snapshots import snapshots
from agentrl.trainer.snapshots.snapshots import State

MakeTrajectory = Callable[..., Trajectory]
SETTINGS = resolve_settings(Trainer(learning_rate=1e-3, weight_decay=0.01, warmup_updates=4))


@pytest.fixture(
    params=["tiny", pytest.param("smollm2", marks=[pytest.mark.slow, pytest.mark.timeout(1500)])]
)
def model(request: pytest.FixtureRequest) -> tuple[Path, Hardware]:
    """A random one in float32, and a real one in bfloat16."""
    dtype = "float32" if request.param == "tiny" else "bfloat16"
    return request.getfixturevalue(request.param), Hardware(DEVICE, dtype)


def _batch(make_trajectory: MakeTrajectory, seed: int) -> Batch:
    members = tuple(
        make_trajectory([(3, 10)], 12, reward=float(member % 2), seed=10 * seed + member)
        for member in range(2)
    )
    return assemble_batch([TrainableGroup("g", "db", members)], SETTINGS)


def _save(directory: Path, state: State) -> None:
    snapshots.save(directory, state, checkpoint_id="c2", version=2)


@pytest.mark.parametrize("rank", [0, 4], ids=["whole", "adapter"])
def test_training_resumed_from_a_snapshot_is_bit_exact(
    model: tuple[Path, Hardware], make_trajectory: MakeTrajectory, tmp_path: Path, rank: int
) -> None:
    path, hardware = model
    settings = replace(SETTINGS, lora=Lora(rank=rank))
    batches = [_batch(make_trajectory, seed) for seed in range(2)]
    straight = TorchLearner(path, settings, hardware)
    for batch in batches:
        straight.update(batch)
    first = TorchLearner(path, settings, hardware)
    first.update(batches[0])
    _save(tmp_path / "c1", first.state())
    resumed = TorchLearner(path, settings, hardware)
    resumed.load_state(snapshots.load(tmp_path / "c1")[0])
    resumed.update(batches[1])
    expected, found = straight.state(), resumed.state()
    assert found.values["updates"] == expected.values["updates"] == 2
    assert set(found.tensors) == set(expected.tensors)
    assert any(name.startswith("optimizer/exp_avg_sq/") for name in found.tensors)
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name
    folders = [tmp_path / "straight", tmp_path / "resumed"]
    for folder in folders:
        folder.mkdir()
    written = [
        learner.copy_weights()(folder)
        for learner, folder in zip((straight, resumed), folders, strict=True)
    ]
    assert written[0] == written[1]  # the digests of their weights


@pytest.mark.parametrize(
    ("then", "steps"),
    [({"optimizer_steps": 1}, 12), ({"optimizer_steps": 8}, 1), ({}, 3)],
    ids=["fewer", "more", "of earlier code"],
)
def test_the_learning_rate_goes_on_by_updates_under_another_number_of_steps(
    tiny: Path, then: dict[str, int], steps: int
) -> None:
    """`trainer.optimizer_steps` was changed to 4: 3 steps of one are 12, of eight 1."""
    settings = replace(SETTINGS, optimizer_steps=4)
    learner = TorchLearner(tiny, settings, Hardware(DEVICE))
    state = learner.state()
    assert state.values["optimizer_steps"] == 4
    rest = {name: each for name, each in state.values.items() if name != "optimizer_steps"}
    learner.load_state(State(state.tensors, {**rest, "updates": 3, **then}))
    assert learner.state().values["updates"] == steps


def test_random_generators_continue_where_they_were(tmp_path: Path) -> None:
    np.random.seed(3)
    np.random.standard_normal()  # leaves a half-used pair of the legacy generator
    _save(tmp_path / "c2", snapshots.random_state())
    expected = (random.random(), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())
    snapshots.set_random_state(snapshots.load(tmp_path / "c2")[0])
    found = (random.random(), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())
    assert found == expected


def test_a_state_of_another_model_is_refused_by_the_name_of_the_weight(tiny: Path) -> None:
    learner = TorchLearner(tiny, SETTINGS, Hardware(DEVICE))
    state = learner.state()
    name = "weights/model.norm.weight"
    missing = {key: tensor for key, tensor in state.tensors.items() if key != name}
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        learner.load_state(State(missing, state.values))
    with pytest.raises(CheckpointError, match=r"shape of model\.norm\.weight"):
        learner.load_state(State({**state.tensors, name: torch.zeros(3)}, state.values))


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    _save(tmp_path / "c2", State({"a": torch.ones(2)}, {"updates": 1}))
    (tmp_path / "c2" / "state.json").write_text('{"updates": 2}')
    with pytest.raises(CheckpointError, match=r"state\.json"):
        snapshots.load(tmp_path / "c2")
