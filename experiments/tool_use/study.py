"""`agentrl experiment tool-use`: studies whether a policy learns to use a tool.

It also asks what the policy gains, by an ablation without the tool.

    seeds × arms ─▶ Trainee.train ─▶ DIR/training-ARM-SEED.json ─▶ report: DIR.md

Arms differ in the task's option `tool` alone (docs/tasks/maths.md). Of both, the untrained policy
is measured, too.
"""

import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from agentrl.core import config_loading, logging
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.core.types import CURRENT
from agentrl.envs import registry
from agentrl.experiments.findings import Training, require_same_design
from agentrl.experiments.runner import QUICK, Sizes, Work, in_order, make_missing
from agentrl.experiments.simulation.training import Arm, Told, Trainee, measure_untrained
from agentrl.experiments.tool_use import report
from agentrl.experiments.tool_use.report import ARMS
from agentrl.ops.configuration.configs import check_model

SIZES = Sizes(seeds=3, items=64, attempts=4, checks=2, check_items=16)


@dataclass(frozen=True, slots=True)
class ToolUseRequest:
    """Options of the study. `tokens`: sampled tokens of one training."""

    out: Path
    config: Path
    sizes: Sizes = SIZES
    tokens: int = 60_000


def study(request: ToolUseRequest) -> Path:
    """Create missing files and the page; return its path.

    Raises SimulationInterrupted, ConfigError, ItemError, CheckpointError.
    """
    logging.configure("experiment", level="WARNING")
    make_missing(list(plan_works(request)), request.sizes.threads)
    return report.write(request.out)


def quick(request: ToolUseRequest) -> ToolUseRequest:
    """Return the study with one seed and sizes of about a minute."""
    return dataclasses.replace(request, sizes=QUICK, tokens=3000)


def plan_works(request: ToolUseRequest) -> Iterator[Work]:
    """Return the files of the study, first seeds first. Raises ConfigError, ItemError."""
    config = config_loading.load(request.config)
    if not Path(config.model.path).exists():
        raise ConfigError(
            f"{config.model.path} does not exist",
            hint="create it with the command that stands in the configuration",
        )
    check_model(Path(config.model.path), config.model)
    config = replace(config, trainer=replace(config.trainer, threads=request.sizes.threads))
    design = request.sizes.design(config, tokens=request.tokens)
    request.out.mkdir(parents=True, exist_ok=True)
    require_same_design(request.out, design, Training)

    def training(name: str, seed: int, told: Told, stop: threading.Event) -> Training:
        offered = arm_config(config, name)
        sources = {
            task: registry.source(task, each.options, each.source)
            for task, each in offered.tasks.items()
        }
        arm = Arm(name, [CURRENT], config.sampling)
        trainee = Trainee(offered, sources, design, arm, seed, told, stop)
        return trainee.train() if ARMS[name].trained else measure_untrained(trainee)

    for path, arm, seed in in_order(request.out, request.sizes.seeds, tuple(ARMS)):
        yield Work(path, request.tokens, partial(training, arm, seed))


def arm_config(config: Config, arm: str) -> Config:
    """Return the configuration of one arm."""
    offered = {"tool": ARMS[arm].tool}
    tasks = {
        name: replace(task, options={**task.options, **offered})
        for name, task in config.tasks.items()
    }
    return replace(config, tasks=tasks)
