from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from engine_updates import plain_logprobs
from trajectories import trajectory

from agentrl.core.config.sections.training import Trainer
from agentrl.experiments.simulation.gradients import Gauge, part
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner

MODEL = Path(__file__).parents[2] / "models" / "tiny-kg"
SETTINGS = resolve_settings(Trainer(learning_rate=1e-3, task_weights={"kg": 3.0}))


@pytest.fixture
def batch() -> Batch:
    """Two tasks of one group each, members of several lengths; kg's rewards are up to 5."""
    groups = []
    for task, spans, scale in (("dbbench", ((5, 3), (4, 6)), 1.0), ("kg", ((7, 5),), 5.0)):
        first, (observed, sampled) = spans[:-1], spans[-1]
        members = tuple(
            msgspec.structs.replace(
                trajectory(member=member, spans=(*first, (observed, sampled + member))),
                task=task,
                reward=scale * (member % 2),
            )
            for member in range(4)
        )
        groups.append(TrainableGroup(task, task, members))
    batch = assemble_batch(groups, SETTINGS)
    return replace(batch, behaviour=np.full_like(batch.behaviour, -12.0))  # tokens are unlikely


def plain_norm(batch: Batch, chosen: str) -> float:
    """Norm of the gradient of one task's part of the loss, through plain transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    logprobs = plain_logprobs(model, batch)
    weights = (logprobs.detach() - torch.from_numpy(batch.behaviour)).exp().clamp(max=2.0)
    own = batch.token_tasks == batch.tasks.index(chosen)
    pulls = weights * torch.from_numpy(batch.advantages * batch.shares * own)
    torch.autograd.backward(-(pulls * logprobs).sum())
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))


def test_each_tasks_norm_is_that_of_its_own_part_of_the_loss(batch: Batch) -> None:
    learner = TorchLearner(MODEL, SETTINGS, Hardware())
    norms = Gauge(MODEL, SETTINGS, Hardware()).norms(batch, learner.state())
    expected = {task: plain_norm(batch, task) for task in ("dbbench", "kg")}
    assert norms == pytest.approx(expected, rel=1e-3)


def test_measuring_leaves_the_learner_as_it_was(batch: Batch) -> None:
    measured, plain = (TorchLearner(MODEL, SETTINGS, Hardware()) for _ in range(2))
    gauge = Gauge(MODEL, SETTINGS, Hardware())
    for _ in range(2):
        gauge.norms(batch, measured.state())
        assert measured.update(batch).values["loss"] == plain.update(batch).values["loss"]
    for name, tensor in plain.state().tensors.items():
        assert torch.equal(measured.state().tensors[name], tensor), name


def test_a_later_state_has_other_gradients(batch: Batch) -> None:
    learner, gauge = TorchLearner(MODEL, SETTINGS, Hardware()), Gauge(MODEL, SETTINGS, Hardware())
    first = gauge.norms(batch, learner.state())
    assert gauge.norms(batch, learner.state()) == first
    learner.update(batch)
    assert gauge.norms(batch, learner.state()) != first


def test_parts_share_out_the_loss_and_a_task_without_a_loss_brings_nothing(batch: Batch) -> None:
    parts = [part(batch, index) for index in range(2)]
    assert sum(float(each.shares.sum()) for each in parts) == pytest.approx(1.0)
    kg = batch.tasks.index("kg")
    assert float(parts[kg].shares.sum()) == pytest.approx(3 * 26 / (3 * 26 + 42))  # tokens
    without = replace(batch, shares=parts[kg].shares)
    learner = TorchLearner(MODEL, SETTINGS, Hardware())
    norms = Gauge(MODEL, SETTINGS, Hardware()).norms(without, learner.state())
    assert norms["dbbench"] == 0.0
    assert norms["kg"] > 0.0
