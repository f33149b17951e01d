"""Conclusions that the intervals support: pure functions of figures."""

from agentrl.core.statistics import Estimate
from agentrl.core.types import CURRENT
from agentrl.ops.experiments.figures import Figures
from agentrl.ops.experiments.formatting import difference


def verdict(found: Figures) -> list[str]:
    """Return one sentence per arm and task: which differences from `current` the intervals show."""
    lines = []
    for task, arms in found.trained.items():
        for arm, trained in arms.items():
            if arm in (CURRENT, "start") or not trained.versus:
                continue
            shown = [
                f"{name} {difference(each)}" for name, each in trained.versus.items() if each.sign
            ]
            few = min(each.n for each in trained.versus.values()) < 2
            text = "one seed shows nothing" if few else "; ".join(shown) or "no difference shown"
            lines.append(f"- **{task}, {arm}** against `current`: {text}.")
    return lines


def compared(found: Figures) -> list[Estimate]:
    """Return all comparisons."""
    return [
        each
        for arms in found.trained.values()
        for arm, trained in arms.items()
        if arm != "start"
        for each in trained.versus.values()
    ]
