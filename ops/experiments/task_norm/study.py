"""`agentrl experiment task-norm`: does normalising advantages in each task help?

    parts × seeds × arms ─▶ Trainee.train ─▶ DIR/PART/training-ARM-SEED.json ─▶ report: DIR.md

A part is a mixture of tasks; arms differ in how advantages are normalised and tasks weighed.
"""

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from core import loading, logging
from core.config import Config
from core.errors import ConfigError, nearest
from core.types import CURRENT
from envs.contract import TaskSource
from ops.configs import check_model
from ops.experiments.findings import Design, Training, agreed
from ops.experiments.making import Work, make_missing, sections
from ops.experiments.study import START, trained
from ops.experiments.task_norm import report
from ops.experiments.task_norm.figures import ARMS
from ops.experiments.training import Arm, Told, Trainee
from ops.experiments.variants import variants

PARTS = ("pair", "scales")  # each with a file configs/task-norm-PART.toml
NORMALISED = {"none": "none", "task": "task", "weighted": "task", "environment": "environment"}
CHECK_ATTEMPTS = 4  # at each item


@dataclass(frozen=True, slots=True)
class Wish:
    """What to study. `tokens`: sampled ones of one training; `items`, `attempts`: at its end.

    `configs`: the folder of the parts' files. `checks`: of the policy on the way, on `check_items`
    items. `gradients`: updates between two whose gradient is measured task by task.
    """

    out: Path
    configs: Path
    seeds: int = 5
    tokens: int = 45_000
    parts: Sequence[str] = PARTS
    arms: Sequence[str] = ARMS
    threads: int = 1
    items: int = 24
    attempts: int = 8
    checks: int = 2
    check_items: int = 8
    gradients: int = 4


def study(wish: Wish) -> Path:
    """Make what is missing, then the page; its path.

    Raises Interrupted, ConfigError, ItemError, CheckpointError.
    """
    logging.configure("experiment", level="WARNING")
    for names, known in ((wish.arms, ARMS), (wish.parts, PARTS)):
        for name in names:
            if name not in known:
                raise ConfigError(f"no {name} here{nearest(name, known)}")
    works = {part: list(planned(wish, part)) for part in wish.parts}
    ordered = sorted((at, part) for part, own in works.items() for at in range(len(own)))
    make_missing([works[part][at] for at, part in ordered], wish.threads)
    return report.write(wish.out)


def quick(wish: Wish) -> Wish:
    """The same with one seed and sizes of a minute."""
    small = dataclasses.replace(wish, seeds=1, tokens=6000, items=2, attempts=2)
    return dataclasses.replace(small, checks=1, check_items=2)


def planned(wish: Wish, part: str) -> Iterator[Work]:
    """The files of a part, the first seeds of all arms first. Raises ConfigError, ItemError."""
    config = configured(wish, part)
    design = designed(wish, config)
    folder = wish.out / part
    folder.mkdir(parents=True, exist_ok=True)
    agreed(folder, design, Training)
    made = variants(config)
    for seed in range(wish.seeds):
        for arm in (START, *wish.arms):
            path = folder / f"training-{arm}-{seed}.json"
            yield Work(path, wish.tokens, partial(_make, config, made, design, (arm, seed)))


def configured(wish: Wish, part: str) -> Config:
    """The configuration that the arms of a part share. Raises ConfigError."""
    config = loading.load(wish.configs / f"task-norm-{part}.toml")
    check_model(Path(config.model.path))
    for task in config.trainer.task_weights.keys() - config.tasks.keys():
        near = nearest(task, config.tasks)
        raise ConfigError(f"trainer.task_weights: unknown task {task}{near}")
    return replace(config, trainer=replace(config.trainer, threads=wish.threads))


def designed(wish: Wish, config: Config) -> Design:
    """What every file of a part must have been made with."""
    return Design(
        tokens=wish.tokens,
        refresh=0,
        items=wish.items,
        attempts=wish.attempts,
        checks=wish.checks,
        check_items=wish.check_items,
        check_attempts=CHECK_ATTEMPTS,
        config=sections(config),
        gradients=wish.gradients,
    )


def chosen(config: Config, arm: str) -> Config:
    """The configuration of one arm: how it normalises, and the weights only of `weighted`."""
    trainer = replace(
        config.trainer,
        normalise=NORMALISED.get(arm),
        task_weights=config.trainer.task_weights if arm == "weighted" else {},
    )
    return replace(config, trainer=trainer)


def _make(
    config: Config,
    made: Mapping[str, TaskSource],
    design: Design,
    which: tuple[str, int],
    *now: Told | threading.Event,
) -> Training:
    name, seed = which
    arm = Arm(name, [CURRENT], config.sampling)
    return trained(Trainee(chosen(config, name), made, design, arm, seed, *now))  # type: ignore[arg-type]
