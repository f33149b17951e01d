"""Pictures of a report as small, deterministic SVG."""

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.core.statistics import Estimate
from agentrl.experiments.findings import Training
from agentrl.experiments.report.comparison import Comparison, T, curve
from agentrl.experiments.report.measures import success_by_tokens

SETTINGS: Any = {
    "svg.hashsalt": "agentrl",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.ymargin": 0.02,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


def picture(path: Path, panels: Sequence[str], paint: Callable[[Any, str], None]) -> None:
    """Write a picture with adjacent panels. `paint` receives the axes and the panel's name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(SETTINGS):
        figure, axes = pyplot.subplots(
            1, len(panels), figsize=(4.2 * len(panels), 3.4), layout="constrained", squeeze=False
        )
        for place, name in zip(axes[0], panels, strict=True):
            paint(place, name)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    path.write_text(shortened(text.getvalue()), "utf-8")


def shortened(svg: str) -> str:
    """Drop comments, metadata and invisible digits: most of what matplotlib writes."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<!DOCTYPE[^>]*>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(\d+\.\d)\d+", r"\1", svg)
    return re.sub(r"\s*\n\s*", "\n", svg)


def line(
    axes: Any, x: Sequence[float], y: Sequence[Estimate], look: tuple[str | None, str, str]
) -> None:
    """Draw means with their intervals as a band; no band for unknown intervals.

    look: colour, style, label.
    """
    colour, style, name = look
    axes.plot(x, [each.mean for each in y], style, color=colour, label=name, markersize=3)
    low, high = [each.low for each in y], [each.high for each in y]
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)


def curves(
    axes: Any,
    found: Comparison[T],
    points: Callable[[T], Sequence[tuple[float, float]]],
    look: Callable[[str], tuple[str | None, str]],
    least: int = 2,
) -> None:
    """Draw the curve of every arm that has at least `least` points. look: colour, style."""
    for arm, seeds in found.arms.items():
        of_arm = curve(seeds, points)
        if len(of_arm) >= least:
            x, y = zip(*of_arm, strict=True)
            line(axes, x, y, (*look(arm), arm))


def learning_curves(
    axes: Any, found: Comparison[Training], task: str, look: Callable[[str], tuple[str | None, str]]
) -> None:
    """Draw the held-out success of every arm by the tokens that it has sampled."""
    curves(axes, found, partial(success_by_tokens, task), look)
    label(axes, task, "sampled tokens", "held-out success at T = 1")


def label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=6)
