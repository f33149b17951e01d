"""What the arguments of gpu.py describe: sections, settings, the memory plan, the local
engine, batches.
"""

import argparse
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from agentrl.core.config.config import Config
from agentrl.core.config.sections.base import Dtype
from agentrl.core.config.sections.episodes import Sampling, Worker
from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Lora, Trainer
from agentrl.core.trajectory import Trajectory
from agentrl.ops.configuration.model_spec import ModelSpec
from agentrl.ops.doctor.machine import Machine
from agentrl.ops.doctor.memory import memory_items
from agentrl.ops.doctor.memory_items import device_of
from agentrl.serving.local.engine import LocalEngine
from agentrl.trainer.algorithm.presets import Settings, resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from helpers.random_models import make_trajectory

DTYPE: Dtype = "bfloat16"


def trainer_of(chosen: argparse.Namespace) -> Trainer:
    return Trainer(
        micro_batch_tokens=chosen.tokens,
        gradient_checkpointing=chosen.checkpointing,
        learning_rate=1e-6,
        lora=Lora(rank=chosen.rank),
    )


def settings_of(chosen: argparse.Namespace) -> Settings:
    return resolve_settings(trainer_of(chosen))


def model_of(chosen: argparse.Namespace) -> Model:
    return Model(path=str(chosen.folder), device=chosen.device, dtype=DTYPE)


def hardware(chosen: argparse.Namespace) -> Hardware:
    return Hardware.from_config(model_of(chosen), Trainer())


def planned_bytes(chosen: argparse.Namespace, spec: ModelSpec, *processes: str) -> int:
    """Bytes that `agentrl doctor` plans on the device for `trainer`, `policy` or both."""
    config = Config(
        tasks={"task": Task()},
        model=model_of(chosen),
        sampling=Sampling(max_tokens=chosen.length),
        trainer=trainer_of(chosen),
        worker=Worker(concurrency=max(chosen.concurrent)),
        policy=[PolicyServer(name="local")],
    )
    return sum(
        item.size
        for item in memory_items(config, spec, Machine(None, {}))
        if item.process.startswith(processes) and item.device == device_of(config)
    )


def load_engine(chosen: argparse.Namespace, path: Path) -> LocalEngine:
    engine = LocalEngine(chosen.device, DTYPE, max_batch=max(chosen.concurrent))
    engine.load("policy", path)
    return engine


def random_batch(chosen: argparse.Namespace, spec: ModelSpec, settings: Settings) -> Batch:
    """`--episodes` trajectories of `--length` random tokens, half of them sampled."""
    random = np.random.default_rng(0)
    members = []
    for _ in range(chosen.episodes):
        blank = make_trajectory(random, "task", chosen.length, 4)
        tokens = random.integers(0, spec.vocabulary, chosen.length)
        mask = np.frombuffer(blank.loss_mask, np.uint8)
        logprobs = -mask.astype("<f4") * np.float32(np.log(spec.vocabulary))
        members.append(fill_trajectory(blank, tokens.tolist(), mask, logprobs))
    return assemble_batch([TrainableGroup("group", "task", tuple(members))], settings)


def make_sampled(prompt: list[int], answer: list[int], logprobs: list[float]) -> Trajectory:
    random = np.random.default_rng(answer[0])
    length = len(prompt) + len(answer)
    blank = make_trajectory(random, "task", length, 1)
    mask = np.r_[np.zeros(len(prompt), np.uint8), np.ones(len(answer), np.uint8)]
    found = np.r_[np.zeros(len(prompt)), logprobs].astype("<f4")
    return fill_trajectory(blank, prompt + answer, mask, found)


def fill_trajectory(blank: Trajectory, tokens: list[int], mask: Any, logprobs: Any) -> Trajectory:
    return msgspec.structs.replace(
        blank,
        token_ids=np.asarray(tokens, "<i4").tobytes(),
        loss_mask=mask.tobytes(),
        logprobs=logprobs.tobytes(),
    )
