"""`agentrl experiment cross-policy`: does drawing the policy anew at every step explore?

    seeds × arms ─▶ Trainee.train ─▶ DIR/training-ARM-SEED.json ─┐
    seeds        ─▶ drift         ─▶ DIR/drift-SEED.json ────────┴─▶ report: DIR.md and pictures

A file that is there is not made again, so an interrupted study goes on where it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.progress import Progress

from core import loading, logging
from core.config import Config
from core.errors import ConfigError, nearest
from core.types import CURRENT
from ops.configs import check
from ops.experiments import report
from ops.experiments.drift import LAGS, drift
from ops.experiments.findings import Design, Drift, Training, differing, keep, read
from ops.experiments.training import Arm, Trainee
from ops.process import stop_on_signals
from ops.roles import sources

START = "start"  # the policy that all arms begin with, measured and not trained
ARMS = (CURRENT, "mixed", "uniform", "adaptive")
REFRESH = 8  # updates between two re-loads of the lagged track
CHECK_ATTEMPTS = 4  # at each item
SECTIONS = ("tasks", "dispatch", "sampling", "model", "trainer")  # what a training depends on


@dataclass(frozen=True, slots=True)
class Wish:
    """What to study. `tokens`: sampled ones of one training; `items`, `attempts`: at its end.

    `checks`: of the policy on the way, on `check_items` items. `tasks` empty: all of the file.
    `drift_seeds`: of the long trainings of `drift_updates` updates.
    """

    out: Path
    config: Path
    seeds: int = 5
    tokens: int = 75_000
    arms: Sequence[str] = ARMS
    tasks: Sequence[str] = ()
    model: Path | None = None
    threads: int = 1
    items: int = 10
    attempts: int = 64
    checks: int = 4
    check_items: int = 16
    drift_seeds: int = 1
    drift_updates: int = 60


def study(wish: Wish) -> Path:
    """Make what is missing, then the page; its path.

    Raises Interrupted, ConfigError, ItemError, CheckpointError.
    """
    logging.configure("experiment", level="WARNING")
    config = configured(wish)
    check(config)
    design = designed(wish, config)
    wish.out.mkdir(parents=True, exist_ok=True)
    agreed(wish.out, design)
    torch.set_num_threads(wish.threads)
    stop = stop_on_signals()
    todo = [(path, arm, seed) for path, arm, seed in planned(wish) if not path.exists()]
    made = sources(config) if todo else {}
    with Progress(console=Console(stderr=True)) as bar:
        whole = bar.add_task(f"{len(todo)} to make", total=len(todo))
        for path, arm, seed in todo:
            line = bar.add_task(path.stem, total=design.tokens)

            def told(what: str, tokens: int, name: str = path.stem, line: int = line) -> None:
                bar.update(line, completed=tokens, description=f"{name} · {what}")  # type: ignore[arg-type]

            trainee = Trainee(config, made, design, chosen(arm, config), seed, told, stop)
            keep(path, found(trainee, wish, arm, design))
            bar.remove_task(line)
            bar.advance(whole)
    return report.write(wish.out)


def found(trainee: Trainee, wish: Wish, arm: str, design: Design) -> Training | Drift:
    """What one file holds."""
    if arm == "drift":
        return drift(trainee, wish.drift_updates)
    if arm == START:
        trainee.design = msgspec.structs.replace(design, tokens=0)
        return msgspec.structs.replace(trainee.train(), design=design, arm=START)
    return trainee.train()


def planned(wish: Wish) -> Iterator[tuple[Path, str, int]]:
    """File, arm and seed of everything, the first seeds of all arms first."""
    for seed in range(wish.seeds):
        for arm in (START, *wish.arms):
            yield wish.out / f"training-{arm}-{seed}.json", arm, seed
    for seed in range(wish.drift_seeds if wish.drift_updates >= min(LAGS) else 0):
        yield wish.out / f"drift-{seed}.json", "drift", seed


def configured(wish: Wish) -> Config:
    """The file's configuration with the wishes in it. Raises ConfigError."""
    config = loading.load(wish.config)
    for arm in wish.arms:
        if arm not in ARMS:
            raise ConfigError(f"no arm {arm}{nearest(arm, ARMS)}")
    for task in wish.tasks:
        if task not in config.tasks:
            raise ConfigError(f"no task {task} in {wish.config}{nearest(task, config.tasks)}")
    tasks = {name: config.tasks[name] for name in wish.tasks or config.tasks}
    trainer = msgspec.structs.replace(config.trainer, threads=wish.threads)
    model = config.model
    if wish.model is not None:
        model = msgspec.structs.replace(model, path=str(wish.model))
    return msgspec.structs.replace(config, tasks=tasks, trainer=trainer, model=model)


def designed(wish: Wish, config: Config) -> Design:
    """What every file of the study must have been made with."""
    return Design(
        tokens=wish.tokens,
        refresh=REFRESH,
        items=wish.items,
        attempts=wish.attempts,
        checks=wish.checks,
        check_items=wish.check_items,
        check_attempts=CHECK_ATTEMPTS,
        config={name: msgspec.to_builtins(getattr(config, name)) for name in SECTIONS},
    )


def chosen(arm: str, config: Config) -> Arm:
    """Every arm that mixes draws from the same pool, so that only the weights differ."""
    tracks = [CURRENT] if arm not in ARMS[1:] else [CURRENT, f"refreshed({REFRESH})"]
    strategy = arm if arm in ARMS else CURRENT
    sampling = msgspec.structs.replace(config.sampling, strategy=strategy)
    return Arm(arm, tracks, sampling)


def agreed(out: Path, design: Design) -> None:
    """Raise ConfigError where a file there was made with another design."""
    there: Mapping[str, Design] = {
        f"{each.arm}-{each.seed}": each.design for each in read(out, "training", Training)
    }
    if name := differing({"": design, **there}):
        raise ConfigError(
            f"{out}: {name} was made with other options or another configuration",
            mend="choose another --out, or remove it",
        )
