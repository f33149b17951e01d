"""The configuration of a quickstart: a recipe's file with the choices of the command line."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.ops.quickstart.recipes import ROOT, Recipe
from agentrl.trainer.model.bfloat16_cost import is_bfloat16_slow


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of the command line."""

    seed: int = 0
    updates: int | None = None
    fast: bool = False
    as_json: bool = False
    cross_policy: bool = True
    task_norm: bool = True


def prepare(recipe: Recipe, choices: Choices, runs_folder: Path) -> tuple[Config, Path]:
    """Write the recipe's configuration with the choices, and return it with its file."""
    home = runs_folder / _run_name(recipe, choices)
    written = config_loading.load(recipe.file, {})
    size = recipe.size(fast=choices.fast)
    model = home / "start" if size.clones else recipe.model_path()
    overrides: dict[str, str] = {
        "RUN__NAME": f'"{home.name}"',
        "RUN__HOME": str(home.resolve()),
        "RUN__SEED": str(choices.seed),
        "MODEL__PATH": str(model.resolve()),
        **recipe.overrides(),
        **size.settings,
    }
    for task in written.tasks:
        overrides[f"TASKS__{task.upper()}__OPTIONS__SEED"] = str(choices.seed)
    updates = choices.updates or size.updates
    if updates is not None:
        overrides["RUN__STOP_UPDATES"] = str(updates)
    if not choices.cross_policy:
        overrides["SAMPLING__STRATEGY"] = '"current"'
    if not choices.task_norm:
        overrides["TRAINER__NORMALISE"] = '"none"'
    config = load_recipe(recipe, overrides)
    home.mkdir(parents=True, exist_ok=not recipe.begin_anew)
    path = home / "config.toml"
    path.write_text(config_loading.to_toml(config))
    _link_latest(home)
    return config, path


def _link_latest(home: Path) -> None:
    """Let the link `latest` beside the run's folder lead to it: the examples of --help name it."""
    latest, link = home.with_name("latest"), home / ".latest"
    if latest.is_dir() and not latest.is_symlink():  # a folder of the user
        return
    link.unlink(missing_ok=True)
    link.symlink_to(home.name)
    link.replace(latest)


def load_recipe(recipe: Recipe, overrides: Mapping[str, str]) -> Config:
    """Load the recipe's file with overrides by key, and those of the environment.

    The file's chat template is found from every working directory.
    On a CPU that is slower in bfloat16 it computes in float32, unless the environment says
    otherwise.
    """
    environ = dict(os.environ)
    model = config_loading.load(recipe.file, environ).model
    if model.dtype == "bfloat16" and is_bfloat16_slow(model.device):
        overrides = {**overrides, "MODEL__DTYPE": '"float32"'}
    if model.chat_template:
        overrides = {**overrides, "MODEL__CHAT_TEMPLATE": str(ROOT / model.chat_template)}
    prefixed = {config_loading.PREFIX + key: value for key, value in overrides.items()}
    return config_loading.load(recipe.file, prefixed | environ)


def _run_name(recipe: Recipe, choices: Choices) -> str:
    """Return the chosen run name, or a new one."""
    if recipe.begin_anew:
        return f"quickstart-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    chosen: Mapping[str, bool] = {
        "fast": choices.fast,
        f"seed-{choices.seed}": choices.seed != 0,
        "no-cross-policy": not choices.cross_policy,
        "no-task-norm": not choices.task_norm,
    }
    return "-".join([recipe.name, *(name for name, is_so in chosen.items() if is_so)])
