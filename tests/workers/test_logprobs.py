"""Tokens all the way: what the engine sampled is what the trainer's forward pass computes."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moved_weights import move_weights
from policy_servers import CLAIMED, FixedPool, serve
from random_model import save_random_qwen3
from torch_device import DEVICE

from agentrl.core.config.sections.base import Dtype
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import check
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.envs import registry
from agentrl.ops.warmstart import tokenizer
from agentrl.serving.local.engine import LocalEngine
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.trainer.model.packing import micro_batches
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style
from agentrl.workers.episode import EpisodeLoop
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import Sampler

RANKS = {"SmolLM2, whole": 0, "SmolLM2, adapter": 4}
REAL = [pytest.mark.slow, pytest.mark.timeout(1500)]
TOLERANCE = 1e-4  # of a log-probability in float32
K3 = 0.01  # of tokens of SmolLM2 in bfloat16; measured: 0.003
SETTINGS = resolve_settings(Trainer(normalise="none"))


@dataclass(frozen=True)
class Policies:
    """Two policies with one tokenizer: their checkpoints, and learners that hold their weights."""

    paths: dict[str, Path]
    learners: dict[str, TorchLearner]
    dtype: Dtype
    style: Style


@pytest.fixture(
    scope="module", params=["random", *(pytest.param(each, marks=REAL) for each in RANKS)]
)
def policies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policies:
    """Two random Qwen3; and SmolLM2 with what moved away from it, all weights or an adapter."""
    torch.set_num_threads(1)
    if request.param != "random":
        smollm2: Path = request.getfixturevalue("smollm2")
        return _moved(smollm2, RANKS[request.param], tmp_path_factory.mktemp("moved"))
    words = tokenizer.train(["weight of emu? select from where zoo food"], 320)
    shape = {"vocab_size": words.get_vocab_size(), "max_position_embeddings": 1024}
    found = {}
    for seed, name in enumerate(("c0", "c1")):
        found[name] = tmp_path_factory.mktemp(name)
        save_random_qwen3(found[name], seed, **shape)
        tokenizer.save(words, found[name])
    learners = {
        name: TorchLearner(path, SETTINGS, Hardware(DEVICE)) for name, path in found.items()
    }
    return Policies(found, learners, "float32", "plain")


def _moved(model: Path, rank: int, folder: Path) -> Policies:
    chosen = replace(SETTINGS, lora=Lora(rank=rank))
    first, moved = (TorchLearner(model, chosen, Hardware(DEVICE, "bfloat16")) for _ in range(2))
    move_weights(moved, rank, 0.05 if rank else 0.01)
    moved.copy_weights()(folder)
    return Policies({"c0": model, "c1": folder}, {"c0": first, "c1": moved}, "bfloat16", "hermes")


@pytest.fixture(scope="module")
def trajectories(policies: Policies) -> Iterator[list[Trajectory]]:
    """Real episodes of several turns, each step of either policy; few with the real model."""
    is_random = policies.dtype == "float32"
    episodes, tokens, turns = (6, 24, 6) if is_random else (1, 16, 3)
    template = ChatTemplate.load(policies.paths["c0"])
    source = registry.source("dbbench", {"style": "compact", "difficulty": "easy"})
    tracks = {"c0": ("lagged(4)", policies.paths["c0"]), "c1": ("current", policies.paths["c1"])}
    sampling = Sampling(strategy="uniform", temperature=0.9, max_step_tokens=tokens, max_tokens=900)
    engine = LocalEngine(DEVICE, policies.dtype)
    with serve(engine, tracks) as server, closing(PolicyClient()) as client:
        pool = FixedPool(
            LivePolicy("s", server.url, "lagged(4)", "c0", 0),
            LivePolicy("s", server.url, "current", "c1", 1),
        )
        context = EpisodeContext(
            template=template,
            style=policies.style,
            stop_ids=sorted(template.stop_ids),
            sampling=sampling,
            client=client,
            clock=time.time,
            stop=threading.Event(),
        )
        played = []
        for number, item in enumerate(source.items("train")[:episodes]):
            with closing(source.make(item)) as env:
                loop = EpisodeLoop(
                    CLAIMED, "run", env, Sampler(pool, sampling, str(number)), context
                )
                played.append(loop.run(EpisodeLimits(turns, 600.0, 20.0)))
        yield played


def test_the_trainers_own_forward_pass_gives_the_stored_log_probabilities(
    trajectories: list[Trajectory], policies: Policies
) -> None:
    """In bfloat16 up to rounding: SmolLM2's importance weights are nearly one."""
    batch = assemble_batch([TrainableGroup("g", "dbbench", tuple(trajectories))], SETTINGS)
    ids = np.concatenate([_checkpoints(each) for each in trajectories])
    for index, name in enumerate(("c0", "c1")):
        difference = _forward(policies.learners[name], batch) - batch.behaviour
        own, other = batch.loss_mask & (ids == index), batch.loss_mask & (ids != index)
        if policies.dtype == "float32":
            assert own.sum() > 100
            assert np.abs(difference[own]).max() < TOLERANCE
        else:
            assert own.any()
            assert _k3(difference[own]) < K3
        assert np.abs(difference[other]).mean() > 0.1


def _k3(difference: Floats) -> float:
    """Estimate KL(μ ‖ π) of log π − log μ over tokens of μ, as the metric `mismatch_k3` does."""
    return float(np.mean(np.expm1(difference.astype(np.float64)) - difference))


def test_the_episodes_took_several_turns_of_both_policies(trajectories: list[Trajectory]) -> None:
    for each in trajectories:
        check(each)
    assert max(len(each.steps) for each in trajectories) > 2
    assert any(len(each.policies) == 2 for each in trajectories)


def _checkpoints(trajectory: Trajectory) -> Any:
    """[T] the number of the checkpoint that sampled each token; -1 where none did."""
    table = np.array([int(policy.checkpoint_id[1]) for policy in trajectory.policies])
    return np.where(trajectory.mask() == 1, table[trajectory.sampled_by()], -1)


def _forward(learner: TorchLearner, batch: Batch) -> Floats:
    """[N] the log-probabilities that the learner records before its next step."""
    logprobs = np.zeros(batch.tokens.size, np.float32)
    for micro in micro_batches(batch, SETTINGS.micro_batch_tokens):
        logprobs[micro.sources] = learner._objective.logprobs(learner._model, micro)
    return logprobs
