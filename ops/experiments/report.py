"""Writes the report of the study from its files: DIR.md beside DIR, with plots and figures in DIR.

training-*.json, drift-*.json ─▶ Figures ─▶ figures.json, *.svg ─▶ page (reading.md first)
"""

from pathlib import Path

from agentrl.core.types import CURRENT
from agentrl.ops.experiments import page, plots
from agentrl.ops.experiments.figures import figures
from agentrl.ops.experiments.findings import Drift, Training, as_json, read, read_study
from agentrl.ops.experiments.formatting import place

ORDER = ("start", CURRENT, "mixed", "uniform", "adaptive")


def write(out: Path) -> Path:
    """Write the page; return its path. Raises ConfigError without results, or for mixed designs."""
    trainings, drifts = read_study(out, Training), read(out, "drift", Drift)
    ordered = sorted(trainings, key=lambda each: (place(each.arm, ORDER), each.seed))
    found = figures(ordered, drifts)
    (out / "figures.json").write_bytes(as_json(found))
    pictures = plots.draw(found, out)
    path = out.with_name(f"{out.name}.md")
    design = trainings[0].design
    path.write_text("\n".join(page.lines(out, found, design, pictures)) + "\n", "utf-8")
    return path
