"""Commands that run studies about learning: `experiment cross-policy | task-norm | …`."""

from pathlib import Path

import typer

CONFIGS = Path(__file__).parent / "configs"
OUT = typer.Option(..., "--out", help="Folder for the results. The report is OUT.md.")
FILE = CONFIGS / "cross-policy.toml"
FOLDER = typer.Option(
    CONFIGS, "--configs", help="Folder with the files task-norm-PART.toml.", show_default=False
)
STALENESS = typer.Option(
    CONFIGS / "staleness.toml",
    "--config",
    help="Configuration that all arms share.",
    show_default=False,
)
CONFIG = typer.Option(
    FILE, "--config", help="Configuration that all arms share.", show_default=False
)
ARMS = typer.Option(
    "current,mixed,uniform,adaptive", "--arms", help="Sampling strategies (comma-separated)."
)
TASKS = typer.Option("", "--tasks", help="Tasks (comma-separated). Default: all of the file.")
ATTEMPTS = typer.Option(8, min=1, help="Attempts per held-out item (the k in pass@k).")
CHECKS = typer.Option(2, min=0, help="Evaluations during each training, evenly spaced.")
ITEMS = typer.Option(24, min=1, help="Held-out items per task in the final evaluation.")
CHECK_ITEMS = typer.Option(
    8, min=1, help="Held-out items per task in each evaluation during training."
)
QUICK = typer.Option(False, "--quick", help="Run one seed at a tiny size, to test the setup.")
REPORT = typer.Option(False, "--report", help="Only write the report of the finished trainings.")
THREADS = typer.Option(1, min=1, help="Threads that torch uses.")
CREDIT = typer.Option(
    CONFIGS / "turn-credit.toml",
    "--config",
    help="Configuration that all arms share.",
    show_default=False,
)
TOOL = typer.Option(
    CONFIGS / "tool-use.toml",
    "--config",
    help="Configuration that all arms share.",
    show_default=False,
)
MODEL = typer.Option(None, "--model", help="Policy to start from. Default: the configuration's.")


def add(app: typer.Typer) -> None:
    """Register the commands."""
    experiment = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    experiment.callback()(group)
    experiment.command("cross-policy")(cross_policy)
    experiment.command("task-norm")(task_norm)
    experiment.command("staleness")(staleness)
    experiment.command("turn-credit")(turn_credit)
    experiment.command("tool-use")(tool_use)
    experiment.command("smollm")(smollm)
    app.add_typer(
        experiment, name="experiment", help="Run a study that answers a question about learning."
    )


def group() -> None:
    """Run a study that answers a question about learning, on this machine."""


def cross_policy(
    out: Path = OUT,
    config: Path = CONFIG,
    arms: str = ARMS,
    tasks: str = TASKS,
    model: Path | None = MODEL,
    seeds: int = typer.Option(5, min=1, help="Trainings per arm."),
    tokens: int = typer.Option(75_000, min=1, help="Sampled tokens per training."),
    items: int = typer.Option(10, min=1, help="Held-out items per task in the final evaluation."),
    attempts: int = typer.Option(64, min=1, help="Attempts per held-out item (the k in pass@k)."),
    checks: int = typer.Option(4, min=0, help="Evaluations during each training, evenly spaced."),
    check_items: int = typer.Option(
        16, min=1, help="Held-out items per task in each evaluation during training."
    ),
    drift_seeds: int = typer.Option(1, min=0, help="Longer trainings, which measure KL by lag."),
    drift_updates: int = typer.Option(60, min=1, help="Updates per longer training."),
    threads: int = THREADS,
    only_report: bool = REPORT,
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
    out: Path = OUT,
    configs: Path = FOLDER,
    parts: str = typer.Option("pair,scales", "--parts", help="Parts (comma-separated)."),
    arms: str = typer.Option(
        "none,task,weighted,environment", "--arms", help="Normalisations (comma-separated)."
    ),
    seeds: int = typer.Option(5, min=1, help="Trainings per arm."),
    tokens: int = typer.Option(45_000, min=1, help="Sampled tokens per training."),
    items: int = ITEMS,
    attempts: int = ATTEMPTS,
    checks: int = CHECKS,
    check_items: int = CHECK_ITEMS,
    threads: int = THREADS,
    quick: bool = QUICK,
    only_report: bool = REPORT,
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
    if only_report:
        print(report.write(out))
    else:
        print(study.study(study.quick(request) if quick else request))


def staleness(
    out: Path = OUT,
    config: Path = STALENESS,
    bounds: str = typer.Option(
        "0,1,2,4,8,16", "--bounds", help="Values of dispatch.max_staleness (comma-separated)."
    ),
    intervals: str = typer.Option(
        "10,25,50", "--intervals", help="Updates between two policy reloads (comma-separated)."
    ),
    seeds: int = typer.Option(3, min=1, help="Trainings per arm."),
    updates: int = typer.Option(60, min=1, help="Updates per training."),
    items: int = ITEMS,
    attempts: int = ATTEMPTS,
    checks: int = CHECKS,
    check_items: int = CHECK_ITEMS,
    threads: int = THREADS,
    quick: bool = QUICK,
    only_report: bool = REPORT,
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
    if only_report:
        print(report.write(out))
    else:
        print(study.study(study.quick(request) if quick else request))


def turn_credit(
    out: Path = OUT,
    config: Path = CREDIT,
    arms: str = typer.Option(
        "outcome,discounted,gigpo,outcome-progress,turn-progress",
        "--arms",
        help="Credits, with or without a reward for progress (comma-separated).",
    ),
    seeds: int = typer.Option(5, min=1, help="Trainings per arm."),
    tokens: int = typer.Option(120_000, min=1, help="Sampled tokens per training."),
    items: int = typer.Option(32, min=1, help="Held-out items per task in the final evaluation."),
    attempts: int = typer.Option(4, min=1, help="Attempts per held-out item."),
    checks: int = CHECKS,
    check_items: int = CHECK_ITEMS,
    threads: int = THREADS,
    quick: bool = QUICK,
    only_report: bool = REPORT,
) -> None:
    """Study which credit of turns learns long episodes faster.

    The command trains one starting policy with each arm and seed on equal numbers of tokens, one
    training after the other, and writes a report. Finished trainings are kept: after Ctrl-C the
    same command continues.

    Example: agentrl experiment turn-credit --out runs/turn-credit --arms outcome,gigpo --seeds 2
    """
    from agentrl.experiments.runner import Sizes
    from agentrl.experiments.turn_credit import report, study

    request = study.TurnCreditRequest(
        out=out,
        config=config,
        sizes=Sizes(seeds, items, attempts, checks, check_items, threads),
        tokens=tokens,
        arms=names(arms),
    )
    if only_report:
        print(report.write(out))
    else:
        print(study.study(study.quick(request) if quick else request))


def tool_use(
    out: Path = OUT,
    config: Path = TOOL,
    seeds: int = typer.Option(3, min=1, help="Trainings per arm."),
    tokens: int = typer.Option(60_000, min=1, help="Sampled tokens per training."),
    items: int = typer.Option(64, min=1, help="Held-out items per task in the final evaluation."),
    attempts: int = typer.Option(4, min=1, help="Attempts per held-out item."),
    checks: int = CHECKS,
    check_items: int = CHECK_ITEMS,
    threads: int = THREADS,
    quick: bool = QUICK,
    only_report: bool = REPORT,
) -> None:
    """Study whether a policy learns to use a tool.

    The command trains one starting policy with and without the tool on equal numbers of tokens, one
    training after the other, and writes a report. The starting policy is created first, with the
    command that stands in the configuration. Finished trainings are kept: after Ctrl-C the same
    command continues.

    Example: agentrl experiment tool-use --out runs/tool-use --seeds 1 --tokens 20000
    """
    from agentrl.experiments.runner import Sizes
    from agentrl.experiments.tool_use import report, study

    request = study.ToolUseRequest(
        out=out,
        config=config,
        sizes=Sizes(seeds, items, attempts, checks, check_items, threads),
        tokens=tokens,
    )
    if only_report:
        print(report.write(out))
    else:
        print(study.study(study.quick(request) if quick else request))


def smollm(
    out: Path = OUT,
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
    quick: bool = QUICK,
    only_report: bool = REPORT,
) -> None:
    """Study whether a pretrained language model learns real tasks.

    The command warm-starts SmolLM2-135M, trains it with the whole system for each arm and seed,
    and evaluates every policy. It can run for days: Ctrl-C stops it, the same command continues.
    It needs `make models/smollm2` and AGENTRL_DATA.

    Example: agentrl experiment smollm --out runs/smollm-study --arms whole --seeds 1
    """
    from dataclasses import replace

    from agentrl.experiments.pretrained import report, study
    from agentrl.ops.quickstart.recipes import SMOLLM

    full = SMOLLM.full
    size = replace(full, updates=updates, clones=clones or full.clones)
    request = study.SmollmRequest(
        out=out, recipe=SMOLLM, size=size, arms=names(arms), seeds=seeds, items=items
    )
    if only_report:
        print(report.write(out))
    else:
        print(study.study(study.quick(request) if quick else request))


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(filter(None, text.split(",")))
