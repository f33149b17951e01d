"""Plots of a report as deterministic SVG."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.core.statistics import Estimate
from agentrl.ops.experiments.figures import MIXTURE, POLICY, ArmFigures, Figures

COLOURS = {"start": "0.5", "current": "C0", "mixed": "C1", "uniform": "C2", "adaptive": "C3"}
STYLES = {POLICY: "-", MIXTURE: "--"}


Paint = Callable[[Any, str, Any], None]  # axes, the panel's name, what it shows


def draw(found: Figures, folder: Path) -> list[str]:
    """Write the pictures; return their file names."""
    paints: Mapping[str, tuple[Paint, Mapping[str, Any]]] = {
        "pass-at-k": (_pass_at_k, found.trained),
        "learning": (_learning, found.trained),
        "lag": (_lag, found.lags),
    }
    return [
        picture(folder / f"{name}.svg", panels, paint)
        for name, (paint, panels) in paints.items()
        if panels
    ]


def picture(path: Path, panels: Mapping[str, Any], paint: Paint) -> str:
    """Write a picture with adjacent panels, one per entry; return its file name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "agentrl", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(
            1, len(panels), figsize=(4.2 * len(panels), 3.4), layout="constrained", squeeze=False
        )
        for place, name in zip(axes[0], panels, strict=True):
            paint(place, name, panels[name])
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
    return path.name


def _pass_at_k(axes: Any, task: str, arms: Mapping[str, ArmFigures]) -> None:
    for arm, trained in arms.items():
        for acting, curve in trained.passed.items():
            if acting == MIXTURE and arm in ("start", "current"):
                continue
            label = arm if acting == POLICY else f"{arm}, acting mixture"
            line(axes, list(curve), list(curve.values()), (COLOURS.get(arm), STYLES[acting], label))
    axes.set(xscale="log", xlabel="k", ylabel="pass@k", title=task, ylim=(0, 1))
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes.minorticks_off()
    axes.legend(fontsize=6)


def _learning(axes: Any, task: str, arms: Mapping[str, ArmFigures]) -> None:
    for arm, trained in arms.items():
        if len(trained.curve) > 1:
            tokens = [at for at, _ in trained.curve]
            line(axes, tokens, [each for _, each in trained.curve], (COLOURS.get(arm), "-", arm))
    axes.set(xlabel="sampled tokens", ylabel="held-out success at T = 1", title=task)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def _lag(axes: Any, task: str, lags: Mapping[int, Any]) -> None:
    at = list(lags)
    line(axes, at, [each.divergence for each in lags.values()], ("C0", "o-", "KL(μ ‖ π)"))
    axes.set(xlabel="lag, updates", ylabel="KL(μ ‖ π), nats a token", title=task)
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    line(other, at, [each.effective for each in lags.values()], ("C1", "s--", "effective"))
    other.set(ylabel="effective sample size, share (dashed)", ylim=(0, 1))


def line(
    axes: Any, x: Sequence[float], y: Sequence[Estimate], look: tuple[str | None, str, str]
) -> None:
    """Draw means with their intervals as a band; no band for unknown intervals.

    look: colour, style, label.
    """
    colour, style, label = look
    axes.plot(x, [each.mean for each in y], style, color=colour, label=label, markersize=3)
    low, high = [each.low for each in y], [each.high for each in y]
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
