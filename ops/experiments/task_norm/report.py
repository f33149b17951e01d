"""Writes the report of the study from its files: DIR.md beside DIR, with plots and figures in DIR.

PART/training-*.json ─▶ Part ─▶ figures.json, *.svg ─▶ page (reading.md first)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.core.errors import ConfigError
from agentrl.ops.experiments.findings import Design, Training, as_json, read_study
from agentrl.ops.experiments.plots import line, picture
from agentrl.ops.experiments.task_norm import page
from agentrl.ops.experiments.task_norm.figures import ARMS, MEAN, Learned, Part, figures

ORDER = ("start", *ARMS)
COLOURS = {"none": "C0", "task": "C1", "weighted": "C2", "environment": "C3"}


def write(out: Path) -> Path:
    """Write the page; return its path. Raises ConfigError without results, or for mixed designs."""
    folders = sorted(path.parent for path in out.glob("*/training-none-0.json"))
    if not folders:
        raise ConfigError(f"{out} contains no finished training", hint="run the experiment first")
    parts: dict[str, tuple[Design, Part]] = {}
    for folder in folders:
        trainings = [each for each in read_study(folder, Training) if each.arm in ORDER]
        ordered = sorted(trainings, key=lambda each: (ORDER.index(each.arm), each.seed))
        parts[folder.name] = ordered[0].design, figures(ordered)
    (out / "figures.json").write_bytes(as_json({name: found for name, (_, found) in parts.items()}))
    pictures = [each for name, (_, found) in parts.items() for each in draw(name, found, out)]
    path = out.with_name(f"{out.name}.md")
    path.write_text("\n".join(page.lines(out, parts, pictures)) + "\n", "utf-8")
    return path


def draw(name: str, found: Part, folder: Path) -> list[str]:
    """Write a part's pictures; return their file names."""
    tasks = {task: arms for task, arms in found.learned.items() if task != MEAN}
    return [
        picture(folder / f"{name}-learning.svg", found.learned, _learning),
        picture(folder / f"{name}-gradient.svg", {name: tasks}, _gradient),
    ]


def _learning(axes: Any, task: str, arms: Mapping[str, Learned]) -> None:
    for arm, learned in arms.items():
        if len(learned.curve) > 1:
            tokens = [at for at, _ in learned.curve]
            line(axes, tokens, [each for _, each in learned.curve], (COLOURS[arm], "o-", arm))
    axes.set(xlabel="sampled tokens", ylabel="held-out success at T = 1", title=task)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def _gradient(axes: Any, name: str, tasks: Mapping[str, Mapping[str, Learned]]) -> None:
    """Draw stacked shares, one bar per arm."""
    arms = [arm for arm in ARMS if all(arm in of for of in tasks.values())]
    below = [0.0] * len(arms)
    for task, of in tasks.items():
        shares = [each.mean if (each := of[arm].gradient) else 0.0 for arm in arms]
        axes.bar(arms, shares, bottom=below, label=task)
        below = [low + share for low, share in zip(below, shares, strict=True)]
    axes.set(ylabel="share of the gradient's norms", title=name, ylim=(0, 1))
    axes.legend(fontsize=7)
