"""Commands for dead letters: dead list|show|requeue."""

from pathlib import Path

import typer

from agentrl.cli.options import CONFIG, JSON_ARRAY

LETTER = typer.Argument(
    ..., metavar="LETTER", help="Name of the dead letter, from `dead list`.", show_default=False
)
OUT = typer.Option(
    None, "--out", help="File to write the message body to. Default: none.", show_default=False
)
LETTERS = typer.Argument(
    None, metavar="LETTER", help="Names of dead letters, from `dead list`.", show_default=False
)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    dead = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    dead.command("list")(show_all)
    dead.command()(show)
    dead.command()(requeue)
    app.add_typer(
        dead, name="dead", help="List, show or requeue messages that could not be processed."
    )


def show_all(
    config: Path = CONFIG,
    as_json: bool = JSON_ARRAY,
) -> None:
    """List the dead letters of a run with their reasons, oldest first.

    Example: agentrl dead list runs/latest/config.toml
    """
    from agentrl.ops.runs.dead_letters import show_all as listed

    listed(config, as_json=as_json)


def show(
    config: Path = CONFIG,
    letter: str = LETTER,
    out: Path = OUT,
) -> None:
    """Show one dead letter, as far as it can be decoded.

    Example: agentrl dead show runs/latest/config.toml 0f3c9a41d2be
    """
    from agentrl.ops.runs.dead_letters import show as shown

    shown(config, letter, out)


def requeue(
    config: Path = CONFIG,
    letters: list[str] = LETTERS,
    every: bool = typer.Option(False, "--all", help="Requeue all dead letters of the run."),
) -> None:
    """Move dead letters back to the queues that they came from.

    Example: agentrl dead requeue runs/latest/config.toml 0f3c9a41d2be
    """
    from agentrl.ops.runs.dead_letters import requeue as put_back

    print(put_back(config, letters or [], every=every))
