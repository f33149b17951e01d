"""Verbs that measure policies: `eval CONFIG …`, `eval compare CONFIG A B`."""

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from agentrl.cli.processes import CONFIG

ABOUT = """Measure policies on tasks, or compare two.

`eval CONFIG …` is `eval measure CONFIG …`, whose --help tells its options.

Example: agentrl eval configs/quickstart.toml --checkpoints 0,8,latest --items 100 --repeats 8
"""
MEASURE = "measure"  # what `eval` does where no verb of its group is named
CHECKPOINTS = typer.Option(
    "", help="Of the file's run, comma-separated: versions, latest or all. The latest if absent."
)
POLICIES = typer.Option(
    [],
    "--policy",
    help="A directory, hub:OWNER/NAME, external(NAME), a checkpoint's id, RUN@VERSION. Repeatable.",
    show_default=False,
)
TASKS = typer.Option("", help="Comma-separated; all of the file if absent.")
SPLITS = typer.Option("", help="Comma-separated; each task's eval_split if absent.")
ITEMS = typer.Option(None, min=1, help="Of each task; all of the split if absent.")
NAMED = "A directory, external(NAME), a checkpoint's id, RUN@VERSION or a version of the run."
FIRST = typer.Argument(..., metavar="A", help=NAMED, show_default=False)
SECOND = typer.Argument(..., metavar="B", help="As A.", show_default=False)


class Measuring(TyperGroup):
    """A group whose own arguments, where they name no verb of it, are those of `measure`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [MEASURE, *args]
        return super().parse_args(ctx, args)


def add(app: typer.Typer) -> None:
    """Register the verbs."""
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
    repeats: int = typer.Option(1, min=1, help="Episodes of each item; k of pass@k."),
    temperature: float | None = typer.Option(None, min=0.0, help="The file's where absent."),
    greedy: bool = typer.Option(False, "--greedy", help="As --temperature 0."),
    again: bool = typer.Option(False, "--again", help="Also what is measured already."),
    as_json: bool = typer.Option(False, "--json", help="One JSON array, no progress."),
) -> None:
    """Measure policies on tasks and splits; the word `measure` may be left out.

    Success with its 95 % interval, pass@k, turns, tokens, cost and statuses. Every episode is kept
    in the file's store as it ends, and none is played twice: the command goes on where it ended.

    Example: agentrl eval measure configs/quickstart.toml --checkpoints 0,8,latest --repeats 8
    """
    from agentrl.ops.evaluation.command import Wish, evaluate

    wish = Wish(
        checkpoints=_words(checkpoints),
        policies=tuple(policy),
        tasks=_words(tasks),
        splits=_words(splits),
        items=items,
        repeats=repeats,
        temperature=0.0 if greedy else temperature,
        again=again,
    )
    evaluate(config, wish, as_json=as_json)


def compare(
    config: Path = CONFIG,
    first: str = FIRST,
    second: str = SECOND,
    tasks: str = TASKS,
    splits: str = typer.Option("", help="Comma-separated; all that were measured if absent."),
    as_json: bool = typer.Option(False, "--json", help="One JSON array."),
) -> None:
    """Is B better than A? A paired test by item over what `eval` measured of both.

    Example: agentrl eval compare configs/quickstart.toml 0 latest
    """
    from agentrl.ops.evaluation.compare import Pair
    from agentrl.ops.evaluation.compare import compare as ask

    ask(config, Pair(first, second, _words(tasks), _words(splits)), as_json=as_json)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
