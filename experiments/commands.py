"""Commands that run studies about learning: `experiment cross-policy | task-norm | …`."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl.experiments.arms import commands as arms
from agentrl.experiments.options import (
    CONFIGS,
    AttemptsForPassAtK,
    CheckItems,
    Checks,
    ConfigFile,
    ConfigFolder,
    Items,
    OnlyReport,
    Out,
    Quick,
    Seeds,
    Threads,
    Tokens,
    names,
)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    experiment = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    experiment.callback()(group)
    experiment.command("cross-policy")(cross_policy)
    experiment.command("task-norm")(task_norm)
    experiment.command("staleness")(staleness)
    arms.add(experiment)
    experiment.command("smollm")(smollm)
    app.add_typer(
        experiment, name="experiment", help="Run a study that answers a question about learning."
    )


def group() -> None:
    """Run a study that answers a question about learning, on this machine."""


def cross_policy(
    out: Out,
    config: ConfigFile = CONFIGS / "cross-policy.toml",
    arms: str = typer.Option(
        "current,mixed,uniform,adaptive", "--arms", help="Sampling strategies (comma-separated)."
    ),
    tasks: str = typer.Option(
        "", "--tasks", help="Tasks (comma-separated). Default: all in --config."
    ),
    model: Annotated[
        Path | None,
        typer.Option("--model", help="Policy to start from. Default: the configuration's."),
    ] = None,
    seeds: Seeds = 5,
    tokens: Tokens = 75_000,
    items: Items = 10,
    attempts: AttemptsForPassAtK = 64,
    checks: Checks = 4,
    check_items: CheckItems = 16,
    drift_seeds: int = typer.Option(1, min=0, help="Longer trainings, which measure KL by lag."),
    drift_updates: int = typer.Option(60, min=1, help="Updates per longer training."),
    threads: Threads = 1,
    only_report: OnlyReport = False,
) -> None:
    """Study whether cross-policy sampling improves exploration.

    The command trains one starting policy with each arm and seed on equal numbers of tokens, one
    training after the other, and writes a report. Finished trainings are kept: after Ctrl-C the
    same command continues.

    Example: agentrl experiment cross-policy --out runs/cross-policy --seeds 2 --tokens 20000
    """
    from agentrl.experiments.cross_policy import report
    from agentrl.experiments.cross_policy.study import CrossPolicyRequest, study
    from agentrl.experiments.runner import Sizes

    request = CrossPolicyRequest(
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
    print(report.write(out) if only_report else study(request))


def task_norm(
    out: Out,
    configs: ConfigFolder = CONFIGS,
    parts: str = typer.Option("pair,scales", "--parts", help="Parts (comma-separated)."),
    arms: str = typer.Option(
        "none,task,weighted,environment", "--arms", help="Normalisations (comma-separated)."
    ),
    seeds: Seeds = 5,
    tokens: Tokens = 45_000,
    items: Items = 24,
    attempts: AttemptsForPassAtK = 8,
    checks: Checks = 2,
    check_items: CheckItems = 8,
    threads: Threads = 1,
    quick: Quick = False,
    only_report: OnlyReport = False,
) -> None:
    """Study whether normalising advantages per task helps.

    The command trains one starting policy with each arm and seed on equal numbers of tokens, one
    training after the other, and writes a report. Finished trainings are kept: after Ctrl-C the
    same command continues.

    Example: agentrl experiment task-norm --out runs/task-norm --parts scales --arms none,task
    """
    from agentrl.experiments.runner import Sizes
    from agentrl.experiments.task_norm import report, study

    request = study.TaskNormRequest(
        out=out,
        configs=configs,
        parts=names(parts),
        arms=names(arms),
        sizes=Sizes(seeds, items, attempts, checks, check_items, threads),
        tokens=tokens,
    )
    request = study.quick(request) if quick else request
    print(report.write(out) if only_report else study.study(request))


def staleness(
    out: Out,
    config: ConfigFile = CONFIGS / "staleness.toml",
    bounds: str = typer.Option(
        "0,1,2,4,8,16", "--bounds", help="Values of dispatch.max_staleness (comma-separated)."
    ),
    intervals: str = typer.Option(
        "10,25,50", "--intervals", help="Updates between two policy reloads (comma-separated)."
    ),
    seeds: Seeds = 3,
    updates: int = typer.Option(60, min=1, help="Updates per training."),
    items: Items = 24,
    attempts: AttemptsForPassAtK = 8,
    checks: Checks = 2,
    check_items: CheckItems = 8,
    threads: Threads = 1,
    quick: Quick = False,
    only_report: OnlyReport = False,
) -> None:
    """Study what a long queue and rare policy reloads cost.

    Both make episodes stale. The command trains one starting policy with each bound and each
    interval, on a simulated clock that counts the cost of generation and training, and writes a
    report. Finished trainings are kept: after Ctrl-C the same command continues.

    Example: agentrl experiment staleness --out runs/staleness --bounds 0,4 --intervals 10
    """
    from agentrl.experiments.runner import Sizes
    from agentrl.experiments.staleness import report, study

    request = study.StalenessRequest(
        out=out,
        config=config,
        bounds=study.numbers("--bounds", bounds),
        intervals=study.numbers("--intervals", intervals),
        sizes=Sizes(seeds, items, attempts, checks, check_items, threads),
        updates=updates,
    )
    request = study.quick(request) if quick else request
    print(report.write(out) if only_report else study.study(request))


def smollm(
    out: Out,
    arms: str = typer.Option(
        "whole,no-task-norm,no-cross-policy", "--arms", help="Ablations (comma-separated)."
    ),
    seeds: int | None = typer.Option(
        None, min=1, help="Runs per arm. Default: 2 of whole, 1 of the others."
    ),
    updates: int | None = typer.Option(
        None, min=1, help="Updates per run. Default: the configuration's."
    ),
    clones: int | None = typer.Option(
        None, min=1, help="Optimizer steps of the warm start. Default: those of `make smollm`."
    ),
    items: int | None = typer.Option(
        None, min=1, help="Largest number of evaluated items per split. Default: 140."
    ),
    recipe: str = typer.Option(
        "smollm", "--recipe", help="smollm, or smollm-gpu for a machine with a GPU."
    ),
    only: str = typer.Option(
        "",
        "--only",
        help="Files to create, without .json (comma-separated): training-ARM-SEED, "
        "measured-POLICY. Several commands can then share the folder.",
    ),
    quick: Quick = False,
    only_report: OnlyReport = False,
) -> None:
    """Study whether a pretrained language model learns real tasks.

    The command warm-starts SmolLM2-135M, trains it with the whole system for each arm and seed,
    and evaluates every policy. It can run for days: Ctrl-C stops it, the same command continues.
    It needs `make models/smollm2` and AGENTRL_DATA.

    Example: agentrl experiment smollm --out runs/smollm-study --arms whole --seeds 1
    """
    from dataclasses import replace

    from agentrl.experiments.pretrained import report, study
    from agentrl.ops.quickstart import recipes

    chosen = recipes.recipe(recipe)
    size = replace(chosen.full, updates=updates, clones=clones or chosen.full.clones)
    request = study.SmollmRequest(
        out=out,
        recipe=chosen,
        size=size,
        arms=names(arms),
        seeds=seeds,
        items=items,
        only=names(only),
    )
    request = study.quick(request) if quick else request
    print(report.write(out) if only_report else study.study(request))
