"""Verbs that answer questions about learning: `experiment cross-policy | task-norm | …`."""

from pathlib import Path

import typer

CONFIGS = Path(__file__).parents[1] / "configs"
OUT = typer.Option(..., "--out", help="Folder of the findings; the page is OUT.md.")
FILE = CONFIGS / "cross-policy.toml"
FOLDER = typer.Option(
    CONFIGS, "--configs", help="Folder of task-norm-PART.toml.", show_default=False
)
STALENESS = typer.Option(
    CONFIGS / "staleness.toml", "--config", help="What every arm shares.", show_default=False
)
CONFIG = typer.Option(FILE, "--config", help="What every arm shares.", show_default=False)
ARMS = typer.Option("current,mixed,uniform,adaptive", "--arms", help="Comma-separated.")
ABLATIONS = typer.Option("whole,no-task-norm,no-cross-policy", "--arms", help="Comma-separated.")
TASKS = typer.Option("", "--tasks", help="Comma-separated; all of the file where empty.")
ATTEMPTS = typer.Option(8, min=1, help="At each of them.")
CHECKS = typer.Option(2, min=0, help="Of the policy on the way, evenly spaced.")
ITEMS = typer.Option(24, min=1, help="Held-out items a task, after training.")
CHECK_ITEMS = typer.Option(8, min=1, help="Held-out items a task of each of them.")
QUICK = typer.Option(False, "--quick", help="One seed and a minute's sizes; shows nothing.")
REPORT = typer.Option(False, "--report", help="Make the page of what is there.")
THREADS = typer.Option(1, min=1, help="Of torch.")
MODEL = typer.Option(None, "--model", help="The policy to start from; the file's where absent.")


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    experiment = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    experiment.callback()(group)
    experiment.command("cross-policy")(cross_policy)
    experiment.command("task-norm")(task_norm)
    experiment.command("staleness")(staleness)
    experiment.command("smollm")(smollm)
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
    check_items: int = typer.Option(16, min=1, help="Held-out items a task of each of them."),
    drift_seeds: int = typer.Option(1, min=0, help="Longer trainings that measure KL by lag."),
    drift_updates: int = typer.Option(60, min=1, help="Updates of each of those."),
    threads: int = THREADS,
    only_report: bool = REPORT,
) -> None:
    """Does drawing the policy anew at every step explore?

    Trains the same start with each arm and seed on equal tokens, one after the other; a training
    that is there is not repeated, so Ctrl-C loses one at most. Then writes the page.

    Example: agentrl experiment cross-policy --out runs/cross-policy --seeds 2 --tokens 20000
    """
    from agentrl.ops.experiments import report
    from agentrl.ops.experiments.runner import Sizes
    from agentrl.ops.experiments.study import Wish, study

    wish = Wish(
        out=out,
        config=config,
        sizes=Sizes(seeds, items, attempts, checks, check_items, threads),
        tokens=tokens,
        arms=names(arms),
        tasks=names(tasks),
        model=model,
        drift_seeds=drift_seeds,
        drift_updates=drift_updates,
    )
    print(report.write(out) if only_report else study(wish))


def task_norm(
    out: Path = OUT,
    configs: Path = FOLDER,
    parts: str = typer.Option("pair,scales", "--parts", help="Comma-separated."),
    arms: str = typer.Option("none,task,weighted,environment", "--arms", help="Comma-separated."),
    seeds: int = typer.Option(5, min=1, help="Trainings of each arm."),
    tokens: int = typer.Option(45_000, min=1, help="Sampled tokens of one training."),
    items: int = ITEMS,
    attempts: int = ATTEMPTS,
    checks: int = CHECKS,
    check_items: int = CHECK_ITEMS,
    threads: int = THREADS,
    quick: bool = QUICK,
    only_report: bool = REPORT,
) -> None:
    """Does normalising advantages in each task help?

    Trains the same start with each arm and seed on equal tokens, one after the other; a training
    that is there is not repeated, so Ctrl-C loses one at most. Then writes the page.

    Example: agentrl experiment task-norm --out runs/task-norm --parts scales --arms none,task
    """
    from agentrl.ops.experiments.runner import Sizes
    from agentrl.ops.experiments.task_norm import report, study

    wish = study.Wish(
        out=out,
        configs=configs,
        parts=names(parts),
        arms=names(arms),
        sizes=Sizes(seeds, items, attempts, checks, check_items, threads),
        tokens=tokens,
    )
    if only_report:
        print(report.write(out))
    else:
        print(study.study(study.quick(wish) if quick else wish))


def staleness(
    out: Path = OUT,
    config: Path = STALENESS,
    bounds: str = typer.Option("0,1,2,4,8,16", "--bounds", help="Of the queue; comma-separated."),
    intervals: str = typer.Option(
        "10,25,50", "--intervals", help="Updates between two loads; comma-separated."
    ),
    seeds: int = typer.Option(3, min=1, help="Trainings of each arm."),
    updates: int = typer.Option(60, min=1, help="Of one training."),
    items: int = ITEMS,
    attempts: int = ATTEMPTS,
    checks: int = CHECKS,
    check_items: int = CHECK_ITEMS,
    threads: int = THREADS,
    quick: bool = QUICK,
    only_report: bool = REPORT,
) -> None:
    """What do running ahead and re-loading the policy rarely cost and bring?

    Trains the same start with each bound of the queue and each interval, on a clock that counts
    what generation and training cost; a training that is there is not repeated. Then writes the
    page.

    Example: agentrl experiment staleness --out runs/staleness --bounds 0,4 --intervals 10
    """
    from agentrl.ops.experiments.runner import Sizes
    from agentrl.ops.experiments.staleness import report, study

    wish = study.Wish(
        out=out,
        config=config,
        bounds=study.numbers("--bounds", bounds),
        intervals=study.numbers("--intervals", intervals),
        sizes=Sizes(seeds, items, attempts, checks, check_items, threads),
        updates=updates,
    )
    if only_report:
        print(report.write(out))
    else:
        print(study.study(study.quick(wish) if quick else wish))


def smollm(
    out: Path = OUT,
    arms: str = typer.Option(
        "whole,no-task-norm,no-cross-policy", "--arms", help="Comma-separated."
    ),
    seeds: int | None = typer.Option(
        None, min=1, help="Runs of each arm. Default: 2 of whole, 1 of the others."
    ),
    updates: int | None = typer.Option(None, min=1, help="Of each run. Default: the file's."),
    clones: int | None = typer.Option(
        None, min=1, help="Optimizer steps of the warm start. Default: those of `make smollm`."
    ),
    items: int | None = typer.Option(
        None, min=1, help="Most items measured of each split. Default: 140."
    ),
    quick: bool = QUICK,
    only_report: bool = REPORT,
) -> None:
    """Does a pretrained language model learn real tasks here?

    Warm-starts SmolLM2-135M, trains it with the whole system once for each arm and seed, and
    measures every policy. It may run over days: Ctrl-C stops it, the same command goes on.
    Needs `make models/smollm2` and AGENTRL_DATA.

    Example: agentrl experiment smollm --out runs/smollm-study --arms whole --seeds 1
    """
    from dataclasses import replace

    from agentrl.ops.experiments.pretrained import report, study
    from agentrl.ops.quickstart.recipes import SMOLLM

    full = SMOLLM.full
    size = replace(full, updates=updates, clones=clones or full.clones)
    wish = study.Wish(out=out, recipe=SMOLLM, size=size, arms=names(arms), seeds=seeds, items=items)
    if only_report:
        print(report.write(out))
    else:
        print(study.study(study.quick(wish) if quick else wish))


def names(text: str) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(filter(None, text.split(",")))
