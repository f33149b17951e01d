"""Verbs that answer questions about learning: `experiment cross-policy`."""

from pathlib import Path

import typer

FILE = Path(__file__).parents[1] / "configs" / "cross-policy.toml"
OUT = typer.Option(..., "--out", help="Folder of the findings; the page is OUT.md.")
CONFIG = typer.Option(FILE, "--config", help="What every arm shares.", show_default=False)
ARMS = typer.Option("current,mixed,uniform,adaptive", "--arms", help="Comma-separated.")
TASKS = typer.Option("", "--tasks", help="Comma-separated; all of the file where empty.")
MODEL = typer.Option(None, "--model", help="The policy to start from; the file's where absent.")


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    experiment = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    experiment.callback()(group)
    experiment.command("cross-policy")(cross_policy)
    app.add_typer(experiment, name="experiment", help="Answer a question about learning.")


def group() -> None:
    """Answer a question about learning, on this machine."""


def cross_policy(
    out: Path = OUT,
    config: Path = CONFIG,
    arms: str = ARMS,
    tasks: str = TASKS,
    model: Path | None = MODEL,
    seeds: int = typer.Option(5, min=1, help="Trainings of each arm."),
    tokens: int = typer.Option(75_000, min=1, help="Sampled tokens of one training."),
    items: int = typer.Option(10, min=1, help="Held-out items a task, after training."),
    attempts: int = typer.Option(64, min=1, help="At each of them; k of pass@k."),
    checks: int = typer.Option(4, min=0, help="Of the policy on the way, evenly spaced."),
    drift_seeds: int = typer.Option(1, min=0, help="Longer trainings that measure KL by lag."),
    drift_updates: int = typer.Option(60, min=1, help="Updates of each of those."),
    threads: int = typer.Option(1, min=1, help="Of torch."),
    only_report: bool = typer.Option(False, "--report", help="Make the page of what is there."),
) -> None:
    """Does drawing the policy anew at every step explore?

    Trains the same start with each arm and seed on equal tokens, one after the other; a training
    that is there is not repeated, so Ctrl-C loses one at most. Then writes the page.

    Example: agentrl experiment cross-policy --out runs/cross-policy --seeds 2 --tokens 20000
    """
    from ops.experiments import report
    from ops.experiments.study import Wish, study

    wish = Wish(
        out=out,
        config=config,
        seeds=seeds,
        tokens=tokens,
        arms=tuple(filter(None, arms.split(","))),
        tasks=tuple(filter(None, tasks.split(","))),
        model=model,
        threads=threads,
        items=items,
        attempts=attempts,
        checks=checks,
        drift_seeds=drift_seeds,
        drift_updates=drift_updates,
    )
    print(report.write(out) if only_report else study(wish))
