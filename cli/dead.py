"""Verbs over dead letters: dead list|show|requeue."""

from pathlib import Path

import typer

from agentrl.cli.processes import CONFIG

LETTER = typer.Argument(..., help="Its name in `dead list`.", show_default=False)
OUT = typer.Option(None, "--out", help="Write its body there.", show_default=False)
LETTERS = typer.Argument(None, help="Their names in `dead list`.", show_default=False)


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    dead = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    dead.command("list")(show_all)
    dead.command()(show)
    dead.command()(requeue)
    app.add_typer(dead, name="dead", help="Messages that no consumer could use.")


def show_all(
    config: Path = CONFIG, as_json: bool = typer.Option(False, "--json", help="One JSON array.")
) -> None:
    """List a run's dead letters with their reasons, the oldest first.

    Example: agentrl dead list configs/quickstart.toml
    """
    from agentrl.ops.runs.dead_letters import show_all as listed

    listed(config, as_json=as_json)


def show(
    config: Path = CONFIG,
    letter: str = LETTER,
    out: Path = OUT,
) -> None:
    """Show what a dead letter is, as far as it can be read.

    Example: agentrl dead show configs/quickstart.toml 0f3c9a41d2be
    """
    from agentrl.ops.runs.dead_letters import show as shown

    shown(config, letter, out)


def requeue(
    config: Path = CONFIG,
    letters: list[str] = LETTERS,
    every: bool = typer.Option(False, "--all", help="All of them."),
) -> None:
    """Put dead letters back into their queues, once each.

    Example: agentrl dead requeue configs/quickstart.toml 0f3c9a41d2be
    """
    from agentrl.ops.runs.dead_letters import requeue as put_back

    print(put_back(config, letters or [], every=every))
