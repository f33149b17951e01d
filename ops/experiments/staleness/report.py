"""Writes the report of the study from its files: DIR.md beside DIR, with plots and figures in DIR.

training-*.json ─▶ Figures ─▶ figures.json, *.svg ─▶ page (reading.md first)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.core.statistics import Estimate
from agentrl.ops.experiments.findings import as_json, read_study
from agentrl.ops.experiments.plots import line, picture
from agentrl.ops.experiments.staleness import page
from agentrl.ops.experiments.staleness.figures import (
    BOUND,
    INTERVAL,
    MEAN,
    Figures,
    Learned,
    figures,
    place,
)
from agentrl.ops.experiments.staleness.findings import Course


def write(out: Path) -> Path:
    """Write the page; return its path. Raises ConfigError without results, or for mixed designs."""
    courses = read_study(out, Course)
    found = figures(courses)
    (out / "figures.json").write_bytes(as_json(found))
    pictures = [
        picture(out / "throughput.svg", _panels(found), _throughput),
        picture(out / "learning.svg", found.learned, _learning),
    ]
    path = out.with_name(f"{out.name}.md")
    path.write_text("\n".join(page.lines(out, found, courses[0].design, pictures)) + "\n", "utf-8")
    return path


def _panels(found: Figures) -> Mapping[str, Mapping[int, tuple[Estimate, Estimate]]]:
    """Return panels by kind of arm: throughput and final success, mean of the tasks.

    The reference arm of intervals is the interval 1.
    """
    panels: dict[str, dict[int, tuple[Estimate, Estimate]]] = {}
    for kind in (BOUND, INTERVAL):
        arms = {place(arm)[1]: arm for arm in found.pace if arm.startswith(kind)}
        base = next((found.base[arm] for arm in arms.values()), "")
        if kind == INTERVAL and base in found.pace:
            arms[1] = base
        panels[kind] = {
            number: (found.pace[arm].throughput, found.learned[MEAN][arm].final)
            for number, arm in sorted(arms.items())
        }
    return {kind: panel for kind, panel in panels.items() if panel}


def _throughput(axes: Any, kind: str, arms: Mapping[int, tuple[Estimate, Estimate]]) -> None:
    at = list(range(len(arms)))
    line(axes, at, [pace for pace, _ in arms.values()], ("C0", "o-", "throughput"))
    name = "bound of the queue" if kind == BOUND else "updates between two loads"
    axes.set(xlabel=name, ylabel="tokens trained a second of the clock", title=kind)
    axes.set_xticks(at, [str(number) for number in arms])
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    line(other, at, [final for _, final in arms.values()], ("C1", "s--", "final success"))
    other.set(ylabel="final success, mean of the tasks (dashed)", ylim=(0, 1))


def _learning(axes: Any, task: str, arms: Mapping[str, Learned]) -> None:
    for number, (arm, learned) in enumerate(arms.items()):
        seconds = [at for at, _ in learned.curve]
        line(axes, seconds, [each for _, each in learned.curve], (f"C{number}", "o-", arm))
    axes.set(xlabel="seconds of the clock", ylabel="held-out success at T = 1", title=task)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=6)
