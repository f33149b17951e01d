"""`agentrl experiment turn-credit`: studies which credit of turns learns long episodes faster.

    seeds × arms ─▶ Trainee.train ─▶ DIR/training-ARM-SEED.json ─▶ report: DIR.md

Arms differ in `trainer.credit`, and in whether progress is rewarded (docs/credit.md).
"""

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from agentrl.core import config_loading, logging
from agentrl.core.config.config import Config
from agentrl.core.config.sections import ProcessRewards
from agentrl.core.errors import ConfigError, nearest
from agentrl.core.types import CURRENT
from agentrl.envs import registry
from agentrl.experiments.findings import Training, require_same_design
from agentrl.experiments.report.comparison import START
from agentrl.experiments.runner import QUICK, Sizes, Work, in_order, make_missing
from agentrl.experiments.simulation.training import Arm, Told, Trainee, train_arm
from agentrl.experiments.turn_credit import report
from agentrl.experiments.turn_credit.report import ARMS
from agentrl.ops.configuration.configs import check_model

SIZES = Sizes(seeds=5, items=32, attempts=4, checks=2, check_items=8)


@dataclass(frozen=True, slots=True)
class TurnCreditRequest:
    """Options of the study. `tokens`: sampled tokens of one training."""

    out: Path
    config: Path
    sizes: Sizes = SIZES
    tokens: int = 120_000
    arms: Sequence[str] = tuple(ARMS)


def study(request: TurnCreditRequest) -> Path:
    """Create missing files and the page; return its path.

    Raises SimulationInterrupted, ConfigError, ItemError, CheckpointError.
    """
    logging.configure("experiment", level="WARNING")
    for name in request.arms:
        if name not in ARMS:
            raise ConfigError(f"unknown arm {name}{nearest(name, ARMS)}")
    make_missing(list(plan_works(request)), request.sizes.threads)
    return report.write(request.out)


def quick(request: TurnCreditRequest) -> TurnCreditRequest:
    """Return the study with one seed and sizes of about a minute."""
    return dataclasses.replace(request, sizes=QUICK, tokens=6000)


def plan_works(request: TurnCreditRequest) -> Iterator[Work]:
    """Return the files of the study, first seeds first. Raises ConfigError, ItemError."""
    config = config_loading.load(request.config)
    check_model(Path(config.model.path), config.model)
    config = replace(config, trainer=replace(config.trainer, threads=request.sizes.threads))
    design = request.sizes.design(config, tokens=request.tokens)
    request.out.mkdir(parents=True, exist_ok=True)
    require_same_design(request.out, design, Training)
    sources = {
        name: registry.source(name, task.options, task.source)
        for name, task in config.tasks.items()
    }

    def training(name: str, seed: int, told: Told, stop: threading.Event) -> Training:
        arm = Arm(name, [CURRENT], config.sampling)
        return train_arm(Trainee(arm_config(config, name), sources, design, arm, seed, told, stop))

    for path, arm, seed in in_order(request.out, request.sizes.seeds, (START, *request.arms)):
        yield Work(path, request.tokens, partial(training, arm, seed))


def arm_config(config: Config, arm: str) -> Config:
    """Return the configuration of one arm; that of the starting policy stays as it is."""
    if arm == START:
        return config
    chosen = ARMS[arm]
    rewards = ProcessRewards(progress=chosen.progress)
    tasks = {name: replace(task, process_rewards=rewards) for name, task in config.tasks.items()}
    return replace(config, tasks=tasks, trainer=replace(config.trainer, credit=chosen.credit))
