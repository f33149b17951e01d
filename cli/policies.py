"""Verbs that make and hand out policies: export, warmstart."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentrl.cli.processes import CONFIG

if TYPE_CHECKING:
    from agentrl.ops.warmstart.cloning_trainer import Phase

FOUND = "A directory, or a checkpoint's id, RUN@VERSION or RUN@latest in the store of --config."
TARGET = typer.Argument(..., help=FOUND, show_default=False)
OUT = typer.Argument(..., help="The directory to make.", show_default=False)
OPTIONAL = typer.Option(None, "--config", help="Whose store knows the checkpoint.")
MADE = typer.Option(..., "--out", help="The directory to make.", show_default=False)
MODEL = typer.Option(None, "--model", help="Start from this model; none: a new tiny one.")
IMPORTED = typer.Option(None, "--imported", help="JSONL of messages, instead of experts.")
PHASES = typer.Option(
    ["1000:0.1", "240:0.4:0.35"],
    "--phase",
    help="STEPS[:NOISE[:UNTIL[:RATE]]]; NOISE: the experts' faults a turn, one number or "
    "TASK=NUMBER,…; UNTIL: sampled success at which the phase ends; RATE: of learning. Repeatable.",
)


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command()(export)
    app.command()(warmstart)


def export(
    checkpoint: str = TARGET,
    out: Path = OUT,
    config: Path | None = OPTIONAL,
    merge_lora: bool = typer.Option(False, "--merge-lora", help="Fold an adapter into its base."),
) -> None:
    """Write a checkpoint for plain transformers.

    Example: agentrl export quickstart@latest exported --config configs/quickstart.toml
    """
    from agentrl.ops.runs.export import export as write

    print(write(checkpoint, out, config, merge_lora=merge_lora))


def warmstart(
    config: Path = CONFIG,
    out: Path = MADE,
    model: Path | None = MODEL,
    imported: Path | None = IMPORTED,
    phase: list[str] = PHASES,
    episodes: int = typer.Option(6000, min=1, help="Of experts, for each task and phase."),
    batch_tokens: int = typer.Option(2048, min=1, help="Tokens of one step."),
    measured: int = typer.Option(200, min=1, help="Held-out items a task, at the end."),
    seed: int = typer.Option(0, help="Of demonstrations and learning."),
    threads: int = typer.Option(1, min=1, help="Of torch."),
) -> None:
    """Make a policy that acts, by cloning.

    From the tasks' experts, or from imported episodes; training begins there. Its products are in
    model.dtype of CONFIG. Interrupted, the same command goes on.

    Example: agentrl warmstart configs/quickstart.toml --out models/mine --seed 7
    """
    from agentrl.core import loading
    from agentrl.ops.warmstart.command import make
    from agentrl.ops.warmstart.warmstart import WarmstartOptions

    file = loading.load(config)
    make(
        WarmstartOptions(
            out=out,
            tasks=file.tasks,
            phases=tuple(_phase(text, list(file.tasks)) for text in phase),
            model=model,
            imported=imported,
            style=file.model.call_style,
            episodes=episodes,
            batch_tokens=batch_tokens,
            measured=measured,
            seed=seed,
            threads=threads,
            dtype=file.model.dtype,
            command=shlex.join(["agentrl", *sys.argv[1:]]),
        )
    )


def _phase(text: str, tasks: list[str]) -> "Phase":
    """A --phase. Raises typer.BadParameter."""
    from agentrl.ops.warmstart.cloning_trainer import Phase

    steps, noise, until, rate = (*text.split(":", 3), "", "", "")[:4]
    try:
        return Phase(
            noise=_noise(noise, tasks),
            steps=int(steps),
            until=float(until) if until else None,
            rate=float(rate) if rate else None,
        )
    except ValueError as error:
        raise typer.BadParameter(f"--phase {text}: {error}") from error


def _noise(text: str, tasks: list[str]) -> dict[str, float]:
    if "=" not in text:
        return dict.fromkeys(tasks, float(text or 0.0))
    pairs = [pair.partition("=") for pair in text.split(",")]
    unknown = [task for task, _, _ in pairs if task not in tasks]
    if unknown:
        raise ValueError(f"no task {unknown[0]} in the file")
    return {task: float(share) for task, _, share in pairs}
