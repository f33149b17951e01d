"""Verbs that look before a run begins: config show|check|keys, doctor."""

from pathlib import Path

import typer

from agentrl.cli.processes import CONFIG

SECTION = typer.Argument("", help="A section or SECTION.KEY; all without.", show_default=False)
OPTIONAL = typer.Argument(None, help="A run's TOML file.", show_default=False)


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    config = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    config.command()(show)
    config.command()(check)
    config.command()(keys)
    app.add_typer(config, name="config", help="Show or check a configuration, list its keys.")
    app.command()(doctor)


def show(
    config: Path = CONFIG, as_json: bool = typer.Option(False, "--json", help="JSON, not TOML.")
) -> None:
    """Print the effective configuration: defaults filled in, AGENTRL__… applied, secrets as names.

    Example: agentrl config show configs/quickstart.toml
    """
    from agentrl.ops.configuration.configs import show as written

    print(written(config, as_json=as_json), end="")


def check(config: Path = CONFIG) -> None:
    """Say whether a run could begin with it, without connecting to anything.

    Example: agentrl config check configs/quickstart.toml
    """
    from agentrl.ops.configuration.configs import report

    print(report(config))


def keys(
    section: str = SECTION,
    as_json: bool = typer.Option(False, "--json", help="One JSON array."),
    markdown: bool = typer.Option(False, "--markdown", help="As docs/configuration.md has them."),
) -> None:
    """List the keys of a run's file: type, default, meaning.

    Example: agentrl config keys trainer.lora
    """
    if as_json and markdown:
        raise typer.BadParameter("--json or --markdown, not both")
    from agentrl.ops.configuration.keys import tell

    tell(section, as_json=as_json, markdown=markdown)


def doctor(
    config: Path | None = OPTIONAL,
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Say what is missing, and what mends it.

    What is installed, reachable, free; with a file, whether its run could begin: if not, exit
    code 2.

    Example: agentrl doctor configs/quickstart.toml
    """
    from agentrl.ops.doctor.doctor import doctor as examine

    if not examine(config, as_json=as_json):
        raise typer.Exit(2)
