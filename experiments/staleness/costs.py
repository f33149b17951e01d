"""The simulated clock of the staleness study: costs of work, fitted once to this machine.

rounds of several sizes ─▶ processor time of waves, updates, loads ─▶ Costs ─▶ DIR/costs.json

The costs are CPU time, because wall time depends on other load. Two trainings with the same costs
have exactly the same schedule.
"""

import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.core.errors import ConfigError
from agentrl.core.trajectory import Trajectory
from agentrl.experiments.findings import Finding
from agentrl.experiments.simulation.lockstep_episode import Question, play
from agentrl.experiments.simulation.simulator import Wave
from agentrl.experiments.simulation.training import Rounds, Trainee, rounds
from agentrl.serving.local.served_model import load_model
from agentrl.trainer.algorithm.presets import resolve_settings
from agentrl.trainer.batch import Batch, TrainableGroup, assemble_batch
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner
from agentrl.workers.policies.client import Completion
from agentrl.workers.policies.pool import Sampler

ROUNDS = (1, 8, 2, 4, 1, 8)  # groups played at once
LOADS = 5
FILE = "costs.json"


class Costs(Finding, frozen=True):
    """Costs in seconds. Engine: `step`: per pass; `sampled`: per sampled token.

    `prompt`: per prompt token; `load`: per checkpoint. Trainer: `update`: per update; `token`: per
    trained token.
    """

    step: float
    sampled: float
    prompt: float
    load: float
    update: float
    token: float

    def wave(self, wave: Wave) -> float:
        """Return the cost of a wave, with as many passes as its longest answer has tokens."""
        tokens = self.sampled * wave.sampled + self.prompt * wave.prompt
        return self.step * wave.longest + tokens

    def training(self, batch: Batch) -> float:
        """Return the cost of an update, counting all tokens of its trajectories."""
        return self.update + self.token * batch.tokens.size


def costs(folder: Path, trainee: Trainee) -> Costs:
    """Read the folder's costs; if missing, measure and write them.

    Raises ConfigError for an invalid file.
    """
    path = folder / FILE
    if not path.exists():
        found = measure_costs(trainee)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Costs)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} cannot be decoded: {error}", hint="delete the file") from error


def measure_costs(trainee: Trainee) -> Costs:
    """Measure playing, training and loading, and fit the costs."""
    config = trainee.config
    waves: list[tuple[Sequence[float], float]] = []
    updates: list[tuple[Sequence[float], float]] = []
    hardware = Hardware.from_config(config.model, config.trainer)
    learner = TorchLearner(Path(config.model.path), resolve_settings(config.trainer), hardware)
    with rounds(trainee) as played:
        for count in ROUNDS:
            trainee.report_progress(f"measuring costs with {count} groups", 0)
            batch = assemble_batch(_played(played, count, waves), resolve_settings(config.trainer))
            updates.append(((1.0, float(batch.tokens.size)), _update(learner, batch)))
    step, sampled, prompt = fit_costs(waves)
    update, token = fit_costs(updates)
    loads = [_load(trainee) for _ in range(LOADS)]
    return Costs(step, sampled, prompt, round(median(loads), 6), update, token)


def fit_costs(found: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """Fit non-negative least squares: seconds ≈ Σ factor · amount.

    found: the amounts [K] and the seconds of each measurement. Returns factors [K] with six
    significant digits.
    """
    amounts = np.array([each for each, _ in found], np.float64)
    seconds = np.array([each for _, each in found], np.float64)
    count = amounts.shape[1]
    tries = [
        _solved(amounts, seconds, chosen)
        for size in range(1, count + 1)
        for chosen in combinations(range(count), size)
    ]
    best = min(
        (factors for factors in tries if (factors >= 0).all()),
        key=lambda factors: float(((amounts @ factors - seconds) ** 2).sum()),
    )
    return [float(f"{factor:.6g}") for factor in best]


def _solved(
    amounts: NDArray[np.float64], seconds: NDArray[np.float64], chosen: Sequence[int]
) -> NDArray[np.float64]:
    factors = np.zeros(amounts.shape[1])
    factors[list(chosen)] = np.linalg.lstsq(amounts[:, list(chosen)], seconds, rcond=None)[0]
    return factors


def _played(
    played: Rounds, count: int, waves: list[tuple[Sequence[float], float]]
) -> list[TrainableGroup]:
    """Play this many groups, and record amounts and CPU time of every wave."""
    simulator = played.simulator

    def answer(questions: Sequence[Question]) -> Sequence[Completion]:
        began = time.thread_time()
        found = simulator.answer(questions)
        wave, took = simulator.wave, time.thread_time() - began
        waves.append(((wave.longest, wave.sampled, wave.prompt), took))
        return found

    jobs = [job for _ in range(count) for job in played.admission.group(0)]
    sampling = simulator.config.sampling
    members: dict[str, list[Trajectory]] = {}
    works = (simulator.work(job, sampling, lambda a, s, j: Sampler(a, s, j.seed)) for job in jobs)
    for job, trajectory in play(works, answer):
        members.setdefault(job.group_id, []).append(trajectory)
    return [TrainableGroup(name, own[0].task, tuple(own)) for name, own in members.items()]


def _update(learner: TorchLearner, batch: Batch) -> float:
    began = time.thread_time()
    learner.update(batch)
    with tempfile.TemporaryDirectory(prefix="agentrl-experiment-") as folder:
        learner.copy_weights()(Path(folder))
    return time.thread_time() - began


def _load(trainee: Trainee) -> float:
    model = trainee.config.model
    began = time.thread_time()
    load_model(Path(model.path), model.device, getattr(torch, model.dtype))
    return time.thread_time() - began
