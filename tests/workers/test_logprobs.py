"""Tokens all the way: what the engine sampled is what the trainer's forward pass computes."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policy_servers import CLAIMED, FixedPool, serve
from random_model import save_random_qwen3
from torch_device import DEVICE

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.training import Trainer
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
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import EpisodeLoop
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import Sampler

EPISODES = 6
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two random Qwen3 with one tokenizer."""
    words = tokenizer.train(["weight of emu? select from where zoo food"], 320)
    shape = {"vocab_size": words.get_vocab_size(), "max_position_embeddings": 1024}
    found = {}
    for seed, name in enumerate(("c0", "c1")):
        found[name] = tmp_path_factory.mktemp(name)
        save_random_qwen3(found[name], seed, **shape)
        tokenizer.save(words, found[name])
    return found


@pytest.fixture(scope="module")
def trajectories(models: dict[str, Path]) -> Iterator[list[Trajectory]]:
    """Real episodes of several turns, each step of either policy."""
    torch.set_num_threads(1)
    template = ChatTemplate.load(models["c0"])
    source = registry.source("dbbench", {"style": "compact", "difficulty": "easy"})
    tracks = {"c0": ("lagged(4)", models["c0"]), "c1": ("current", models["c1"])}
    sampling = Sampling(strategy="uniform", temperature=0.9, max_step_tokens=24, max_tokens=900)
    with serve(LocalEngine(DEVICE), tracks) as server, closing(PolicyClient()) as client:
        pool = FixedPool(
            LivePolicy("s", server.url, "lagged(4)", "c0", 0),
            LivePolicy("s", server.url, "current", "c1", 1),
        )
        context = EpisodeContext(
            template=template,
            style="plain",
            stop_ids=sorted(template.stop_ids),
            sampling=sampling,
            client=client,
            clock=time.time,
            stop=threading.Event(),
        )
        played = []
        for number, item in enumerate(source.items("train")[:EPISODES]):
            with closing(source.make(item)) as env:
                loop = EpisodeLoop(
                    CLAIMED, "run", env, Sampler(pool, sampling, str(number)), context
                )
                played.append(loop.run(EpisodeLimits(6, 60.0, 20.0)))
        yield played


def test_the_trainers_own_forward_pass_gives_the_stored_log_probabilities(
    trajectories: list[Trajectory], models: dict[str, Path]
) -> None:
    batch = assemble_batch(
        [TrainableGroup("g", "dbbench", tuple(trajectories))],
        resolve_settings(Trainer(normalise="none")),
    )
    for index, name in ((0, "c0"), (1, "c1")):
        found = _forward(models[name], batch)
        ids = np.concatenate([_checkpoints(each) for each in trajectories])
        own = batch.loss_mask & (ids == index)
        assert own.sum() > 100
        assert np.abs(found[own] - batch.behaviour[own]).max() < TOLERANCE
        other = batch.loss_mask & (ids != index)
        assert np.abs(found[other] - batch.behaviour[other]).mean() > 0.1


def test_the_episodes_took_several_turns_of_both_policies(trajectories: list[Trajectory]) -> None:
    for each in trajectories:
        check(each)
    assert max(len(each.steps) for each in trajectories) > 2
    assert any(len(each.policies) == 2 for each in trajectories)


def _checkpoints(trajectory: Trajectory) -> Any:
    """[T] the number of the checkpoint that sampled each token; -1 where none did."""
    table = np.array([int(policy.checkpoint_id[1]) for policy in trajectory.policies])
    return np.where(trajectory.mask() == 1, table[trajectory.sampled_by()], -1)


def _forward(path: Path, batch: Batch) -> Floats:
    """[N] the log-probabilities that the learner records before its first step."""
    chosen = resolve_settings(Trainer(normalise="none"))
    return TorchLearner(path, chosen, Hardware(DEVICE))._accumulate(batch).logprobs
