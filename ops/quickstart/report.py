"""The final report of the quickstart: a table, a plot, next commands, or one JSON line."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.db.queries.curves import Point
from agentrl.ops.evaluation.evaluate import PlanResult

POINTS = 24  # of the curve
POINT_GROUPS = 32  # of all tasks, that closed last before each of its points

ByTask = Mapping[str, Mapping[float, PlanResult]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of a quickstart. `curve`: of training episodes.

    `model`: describes the starting model. `seconds`: duration of this call; `training_seconds`: the
    part of it between the two evaluations.
    """

    model: str

    before: ByTask
    after: ByTask
    seconds: float
    training_seconds: float
    updates: int
    episodes: int
    disagreements: Sequence[tuple[str, str]]
    policy_mix: Mapping[str, int]
    curve: Sequence[Point]


def report(
    console: Console, config: Config, path: Path, outcome: Outcome, *, as_json: bool
) -> None:
    """Print the report."""
    picture = draw(outcome, config.home() / "reward-curve.png")
    console.print(_table(outcome))
    console.print(
        f"{outcome.updates} updates, {outcome.episodes} episodes in {outcome.seconds:.0f} s, "
        f"of which training took {outcome.training_seconds:.0f} s; "
        f"steps sampled by {_mix(outcome.policy_mix)}"
    )
    console.print(_accounting(outcome))
    console.print(
        f"start: {relative_path(Path(config.model.path))}, {outcome.model}\n"
        "       made with `agentrl warmstart` on other items than the evaluated ones",
        soft_wrap=True,
        highlight=False,
    )
    console.print(
        f"curve: {relative_path(picture)}\nnext:  {agentrl()} eval compare {path} 0 latest\n"
        f"       {agentrl()} sql {path}\n"
        f"       {'' if find_spec('streamlit') else 'make setup && '}{agentrl()} dashboard {path}",
        soft_wrap=True,
        highlight=False,
    )
    if as_json:
        print(json.dumps(summary(outcome, config.sampling.temperature)))


def require_picture() -> None:
    """Raise ConfigError before training if `draw` would fail after it."""
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "the quickstart needs matplotlib, which is not installed",
            hint="run `pip install matplotlib`",
        )


def agentrl() -> str:
    """Return the agentrl command for this shell; `make quickstart` calls it in .venv."""
    own = Path(sys.argv[0])
    named = own.name == "agentrl" and not shutil.which("agentrl")
    return str(relative_path(own.absolute())) if named else "agentrl"


def resume_command(path: Path) -> str:
    """Return the commands that continue an interrupted run and print its table.

    `path`: its file.
    """
    return f"{agentrl()} up {relative_path(path)} resumes the run; then {eval_command(path)}"


def eval_command(path: Path) -> str:
    """Return the commands that print the table of a finished run. `path`: its file."""
    command, file = agentrl(), relative_path(path)
    return (
        f"{command} eval {file} --checkpoints 0,latest and {command} eval compare {file} 0 latest "
        "print the table"
    )


def relative_path(path: Path) -> Path:
    """Return the shortest form of a path from the working directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def summary(outcome: Outcome, temperature: float) -> dict[str, object]:
    """Return the JSON line; success is the sampled one, as in training."""
    return {
        "before": {task: round(m[temperature].success, 4) for task, m in outcome.before.items()},
        "after": {task: round(m[temperature].success, 4) for task, m in outcome.after.items()},
        "before_greedy": {task: round(m[0.0].success, 4) for task, m in outcome.before.items()},
        "after_greedy": {task: round(m[0.0].success, 4) for task, m in outcome.after.items()},
        "seconds": round(outcome.seconds, 1),
        "training_seconds": round(outcome.training_seconds, 1),
        "updates": outcome.updates,
        "episodes": outcome.episodes,
        "accounting_ok": not outcome.disagreements,
        "policy_mix": dict(outcome.policy_mix),
    }


def task_curve(curve: Sequence[Point], task: str) -> tuple[list[int], list[float]]:
    """Return versions, and the success before each.

    It is that of whole groups: by the time at which episodes end, short ones that win come first.
    """
    points = [point for point in curve if point.task == task]
    return [point.span.version for point in points], [point.solves.mean for point in points]


def draw(outcome: Outcome, path: Path) -> Path:
    """Plot the success of training episodes by version, and held-out success before and after."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for number, task in enumerate(outcome.before):
        colour = f"C{number}"
        axes.plot(*task_curve(outcome.curve, task), ".-", color=colour, label=task)
        sampled = max(outcome.before[task])
        held_out = [m[task][sampled].success for m in (outcome.before, outcome.after)]
        axes.plot([0, outcome.updates], held_out, "*", color=colour, markersize=14)
    axes.set(
        xlabel=f"version (the last {POINT_GROUPS} groups); ★ held-out items before and after",
        ylabel="success",
        ylim=(0, 1),
        title=f"{outcome.updates} updates, {outcome.episodes} episodes",
    )
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _table(outcome: Outcome) -> Table:
    table = Table(title="success on held-out items, before → after (95 % interval)")
    for column in ("task", "decoding", "before", "after", "change"):
        table.add_column(column, justify="left" if column in ("task", "decoding") else "right")
    for task, measured in outcome.before.items():
        for temperature in sorted(measured, reverse=True):
            old, new = measured[temperature], outcome.after[task][temperature]
            name = f"sampled, T = {temperature:g}" if temperature else "greedy"
            change = f"{new.success - old.success:+.3f}"
            table.add_row(task, name, _rate(old), _rate(new), change)
    return table


def _rate(measured: PlanResult) -> str:
    return f"{measured.success:.3f} ({measured.low:.2f}–{measured.high:.2f})"


def _mix(mix: Mapping[str, int]) -> str:
    total = max(sum(mix.values()), 1)
    return ", ".join(f"{track} {count / total:.0%}" for track, count in sorted(mix.items()))


def _accounting(outcome: Outcome) -> str:
    if not outcome.disagreements:
        return "accounting: every episode ended once, every trained token has its checkpoint ✓"
    kinds = sorted({kind for kind, _ in outcome.disagreements})
    return f"accounting: {len(outcome.disagreements)} disagreements ({', '.join(kinds)})"
