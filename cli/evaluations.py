"""Commands that evaluate policies: `eval CONFIG …`, `eval compare CONFIG A B`."""

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from agentrl.cli.options import CONFIG, JSON_ARRAY, TEMPERATURE, choose_temperature

ABOUT = """Evaluate policies on tasks, or compare two policies.

`agentrl eval CONFIG …` is short for `agentrl eval measure CONFIG …`; for its options see
`agentrl eval measure --help`.

Example: agentrl eval runs/latest/config.toml --checkpoints 0,8,latest --items 100 --repeats 8
"""
MEASURE = "measure"  # the default command of the group `eval`
CHECKPOINTS = typer.Option(
    "",
    help="Versions of the run (comma-separated), `latest` or `all`. Default: latest, unless "
    "--policy is given.",
)
POLICIES = typer.Option(
    [],
    "--policy",
    help="Policy: a directory, hub:OWNER/NAME, external(NAME), expert, a checkpoint id or "
    "RUN@VERSION. Repeatable.",
    show_default=False,
)
TASKS = typer.Option("", help="Tasks (comma-separated). Default: all in CONFIG.")
SPLITS = typer.Option("", help="Splits (comma-separated). Default: each task's eval_split.")
ITEMS = typer.Option(None, min=1, help="Items per task, chosen from the whole split. Default: all.")
POLICY_HELP = (
    "Policy: a directory, external(NAME), a checkpoint id, RUN@VERSION or a version of the run."
)
FIRST = typer.Argument(..., metavar="A", help=POLICY_HELP, show_default=False)
SECOND = typer.Argument(..., metavar="B", help="Policy to compare with A.", show_default=False)


class Measuring(TyperGroup):
    """A group that runs `measure` if its first argument is not the name of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [MEASURE, *args]
        return super().parse_args(ctx, args)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    grouped: Any = Measuring
    evaluation = typer.Typer(cls=grouped, no_args_is_help=True, rich_markup_mode=None)
    evaluation.command(MEASURE)(measure)
    evaluation.command("compare")(compare)
    app.add_typer(evaluation, name="eval", help=ABOUT)


def measure(
    config: Path = CONFIG,
    checkpoints: str = CHECKPOINTS,
    policy: list[str] = POLICIES,
    tasks: str = TASKS,
    splits: str = SPLITS,
    items: int | None = ITEMS,
    repeats: int = typer.Option(1, min=1, help="Episodes per item (the k in pass@k)."),
    temperature: float | None = TEMPERATURE,
    greedy: bool = typer.Option(False, "--greedy", help="Same as --temperature 0."),
    again: bool = typer.Option(
        False,
        "--again",
        help="Measure anew: first delete all stored episodes of these evaluations, also those of "
        "other items and repeats.",
    ),
    paper: bool = typer.Option(
        False,
        "--paper",
        help="Measure the benchmarks as the paper does, greedily unless --temperature is given, "
        "and print its row beside ours. Refuse a configuration that differs from its protocol.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON array and no progress."),
) -> None:
    """Evaluate policies on tasks and splits. The word `measure` may be omitted.

    The report shows success with a 95 % interval, pass@k, turns, tokens, cost and statuses. Each
    episode is stored when it ends, so an interrupted command continues where it stopped.

    Example: agentrl eval measure runs/latest/config.toml --checkpoints 0,8,latest --repeats 8
    """
    from agentrl.ops.evaluation.command import EvalRequest, evaluate

    request = EvalRequest(
        checkpoints=_words(checkpoints),
        policies=tuple(policy),
        tasks=_words(tasks),
        splits=_words(splits),
        items=items,
        repeats=repeats,
        temperature=choose_temperature(temperature, greedy=greedy),
        again=again,
        paper=paper,
    )
    evaluate(config, request, as_json=as_json)


def compare(
    config: Path = CONFIG,
    first: str = FIRST,
    second: str = SECOND,
    tasks: str = TASKS,
    splits: str = typer.Option("", help="Splits (comma-separated). Default: all that both have."),
    as_json: bool = JSON_ARRAY,
) -> None:
    """Compare two evaluated policies, item by item, with a paired test.

    Example: agentrl eval compare runs/latest/config.toml 0 latest
    """
    from agentrl.ops.evaluation.compare import PairRequest
    from agentrl.ops.evaluation.compare import compare as ask

    ask(config, PairRequest(first, second, _words(tasks), _words(splits)), as_json=as_json)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
