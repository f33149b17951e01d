"""The verb `quickstart`."""

import typer

RECIPE = typer.Argument(
    "tiny", help="tiny: a policy of a million parameters; smollm: SmolLM2-135M, of `make smollm`."
)


def add(app: typer.Typer) -> None:
    """Register the verb."""
    app.command()(quickstart)


def quickstart(
    recipe: str = RECIPE,
    seed: int = typer.Option(0, help="Of items, sampling and learning."),
    updates: int | None = typer.Option(None, min=1, help="Optimizer steps to train."),
    fast: bool = typer.Option(
        False, "--fast", help="A shorter version: fewer updates, fewer items."
    ),
    as_json: bool = typer.Option(False, "--json", help="End with one JSON line."),
    cross_policy: bool = typer.Option(
        True, help="Sample some steps from a lagged checkpoint; --no-cross-policy turns it off."
    ),
    task_norm: bool = typer.Option(
        True, help="Normalise advantages by task; --no-task-norm turns it off."
    ),
) -> None:
    """Train a small agent on two tasks with the whole pipeline, on this machine, in minutes.

    RECIPE smollm trains a pretrained language model; the same command goes on with it after an
    interruption.

    Example: agentrl quickstart --seed 7
    """
    from agentrl.ops.quickstart.quickstart import Choices
    from agentrl.ops.quickstart.quickstart import quickstart as run
    from agentrl.ops.quickstart.recipes import recipe as named

    run(
        named(recipe),
        Choices(
            seed=seed,
            updates=updates,
            fast=fast,
            as_json=as_json,
            cross_policy=cross_policy,
            task_norm=task_norm,
        ),
    )
