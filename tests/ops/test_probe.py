"""Trainer and local engine, which never import each other, agree about a checkpoint's weights."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from running import ROOT
from torch_device import DEVICE

from agentrl.checkpoints import directories, manifest
from agentrl.checkpoints.manifest import Manifest
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.serving.checkpoint_loader import median_gap
from agentrl.serving.local.engine import LocalEngine
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.trainable_model import trainable_parameters

TINY = ROOT / "models" / "tiny"
NEAR = {"float32": 1e-4, "bfloat16": 0.06}  # medians
TEXT = [random.Random(3).randrange(768) for _ in range(200)]


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(dtype: str) -> Iterator[LocalEngine]:
    engine = LocalEngine(DEVICE, dtype)
    yield engine
    engine.close()


def moved(rank: int, dtype: str) -> TorchLearner:
    """Away from its start, by noise as large as many updates."""
    chosen = resolve_settings(Trainer(lora=Lora(rank=rank)))
    learner = TorchLearner(TINY, chosen, Hardware(DEVICE, dtype))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trainable_parameters(learner._model).values():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return learner


def published(learner: TorchLearner, path: Path) -> Manifest:
    def fill(target: Path) -> manifest.SaveReport:
        return replace(learner.copy_weights()(target), probe=learner.probe())

    return directories.publish(path, fill, checkpoint_id=path.name, version=1, parent=None)


def off(one: list[float] | None, other: list[float]) -> float:
    assert one is not None
    return median_gap(one, other)


@pytest.mark.parametrize("rank", [0, 4], ids=["whole", "adapter"])
def test_the_engine_says_of_the_probe_what_the_trainer_wrote(
    tmp_path: Path, engine: LocalEngine, dtype: str, rank: int
) -> None:
    learner = moved(rank, dtype)
    probe = published(learner, tmp_path / "c1").probe
    assert probe is not None
    engine.load("c1", tmp_path / "c1")
    assert off(engine.score("c1", probe.token_ids), probe.logprobs) < NEAR[dtype]
    engine.load("first", TINY)
    assert off(engine.score("first", probe.token_ids), probe.logprobs) > 3 * NEAR[dtype]
    assert off(engine.score("c1", TEXT), _of(learner, TEXT)) < NEAR[dtype]


def _of(learner: TorchLearner, tokens: list[int]) -> list[float]:
    """As an update computes it."""
    ids = torch.tensor([tokens], device=DEVICE)
    with torch.no_grad(), learner._objective.precision():
        every = learner._model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
    found: list[float] = every.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return found
