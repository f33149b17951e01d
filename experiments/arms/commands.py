"""Commands that run the studies of arms: `experiment turn-credit | teachers | tool-use | …`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentrl.experiments.options import (
    CONFIGS,
    Attempts,
    AttemptsForPassAtK,
    CheckItems,
    Checks,
    ConfigFile,
    Items,
    OnlyReport,
    Out,
    Quick,
    Seeds,
    Threads,
    Tokens,
    names,
)

if TYPE_CHECKING:
    from agentrl.experiments.arms.declaration import ArmStudy


def add(experiment: typer.Typer) -> None:
    """Register the commands."""
    experiment.command("turn-credit")(turn_credit)
    experiment.command("teachers")(teachers)
    experiment.command("tool-use")(tool_use)
    experiment.command("specialists")(specialists)


def turn_credit(
    out: Out,
    config: ConfigFile = CONFIGS / "turn-credit.toml",
    arms: str = typer.Option(
        "outcome,discounted,gigpo,outcome-progress,turn-progress,filter,horizon",
        "--arms",
        help="Credits, with or without a reward for progress, and two ways to choose what is "
        "trained on (comma-separated).",
    ),
    seeds: Seeds = 5,
    tokens: Tokens = 60_000,
    items: Items = 32,
    attempts: Attempts = 4,
    checks: Checks = 2,
    check_items: CheckItems = 16,
    threads: Threads = 1,
    quick: Quick = False,
    only_report: OnlyReport = False,
) -> None:
    """Study which credit of turns learns long episodes faster.

    The command trains one starting policy with each arm and seed on equal numbers of tokens, one
    training after the other, and writes a report. Finished trainings are kept: after Ctrl-C the
    same command continues.

    Example: agentrl experiment turn-credit --out runs/turn-credit --arms outcome,gigpo --seeds 2
    """
    from agentrl.experiments.arms.turn_credit import STUDY

    sizes = (seeds, items, attempts, checks, check_items, threads)
    conduct(STUDY, out, config, sizes, tokens, names(arms), quick, only_report)


def tool_use(
    out: Out,
    config: ConfigFile = CONFIGS / "tool-use.toml",
    seeds: Seeds = 3,
    tokens: Tokens = 60_000,
    items: Items = 64,
    attempts: Attempts = 4,
    checks: Checks = 2,
    check_items: CheckItems = 8,
    threads: Threads = 1,
    quick: Quick = False,
    only_report: OnlyReport = False,
) -> None:
    """Study whether a policy learns to use a tool.

    The command trains one starting policy with and without the tool on equal numbers of tokens, one
    training after the other, and writes a report. The starting policy is created first, with the
    command that stands in the configuration. Finished trainings are kept: after Ctrl-C the same
    command continues.

    Example: agentrl experiment tool-use --out runs/tool-use --seeds 1 --tokens 20000
    """
    from agentrl.experiments.arms.tool_use import STUDY

    sizes = (seeds, items, attempts, checks, check_items, threads)
    conduct(STUDY, out, config, sizes, tokens, STUDY.trained_arms, quick, only_report)


def teachers(
    out: Out,
    config: ConfigFile = CONFIGS / "teachers.toml",
    arms: str = typer.Option(
        "joint,alfworld-alone,dbbench-alone,distilled,distilled-rewards",
        "--arms",
        help="Trainings (comma-separated). distilled* need both *-alone.",
    ),
    seeds: Seeds = 3,
    tokens: Tokens = 40_000,
    items: Items = 32,
    attempts: Attempts = 4,
    checks: Checks = 2,
    check_items: CheckItems = 8,
    threads: Threads = 1,
    quick: Quick = False,
    only_report: OnlyReport = False,
) -> None:
    """Study whether specialists can be distilled into one policy.

    The command trains, in turn, two specialists on one task each, a policy that they teach, and a
    policy on both tasks' rewards. It writes a report. Finished trainings are kept: after Ctrl-C the
    same command continues.

    Example: agentrl experiment teachers --out runs/teachers --seeds 1 --tokens 20000
    """
    from agentrl.experiments.arms.teachers import STUDY

    sizes = (seeds, items, attempts, checks, check_items, threads)
    conduct(STUDY, out, config, sizes, tokens, names(arms), quick, only_report)


def specialists(
    out: Out,
    config: ConfigFile = CONFIGS / "cross-policy.toml",
    arms: str = typer.Option(
        "current,alfworld-alone,kg-alone,far,specialists,seeds",
        "--arms",
        help="Trainings (comma-separated). `specialists` needs those that end in -alone, and "
        "`seeds` needs `current`.",
    ),
    seeds: Seeds = 5,
    tokens: Tokens = 75_000,
    items: Items = 10,
    attempts: AttemptsForPassAtK = 64,
    checks: Checks = 2,
    check_items: CheckItems = 16,
    threads: Threads = 1,
    quick: Quick = False,
    only_report: OnlyReport = False,
) -> None:
    """Study whether unlike policies in the pool help to explore.

    The command trains specialists, then policies in whose trainings they, far older checkpoints or
    a policy of another seed act in some steps, one training after the other, and writes a report.
    Finished trainings are kept: after Ctrl-C the same command continues.

    Example: agentrl experiment specialists --out runs/specialists --seeds 2 --tokens 20000
    """
    from agentrl.experiments.arms.specialists import STUDY

    sizes = (seeds, items, attempts, checks, check_items, threads)
    conduct(STUDY, out, config, sizes, tokens, names(arms), quick, only_report)


def conduct(
    study: "ArmStudy",
    out: Path,
    config: Path,
    sizes: tuple[int, int, int, int, int, int],
    tokens: int,
    arms: Sequence[str],
    quick: bool,
    only_report: bool,
) -> None:
    """Run the study and print the path of its page. `sizes`: the fields of Sizes, in order."""
    from agentrl.experiments.arms.study import ArmStudyRequest, run
    from agentrl.experiments.runner import Sizes

    request = ArmStudyRequest(out, config, Sizes(*sizes), tokens, arms)
    print(run(study, request, quick=quick, only_report=only_report))
