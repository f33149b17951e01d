"""The verb `dashboard`."""

from pathlib import Path

import typer

from agentrl.cli.processes import CONFIG


def add(app: typer.Typer) -> None:
    """Register the verb."""
    app.command()(dashboard)


def dashboard(
    config: Path = CONFIG,
    port: int = typer.Option(8501, min=1, max=65535, help="To listen on."),
    host: str = typer.Option("127.0.0.1", help="Another address asks for a token."),
    token_env: str = typer.Option(
        "", metavar="VARIABLE", help="Whose value the page asks for; required off loopback."
    ),
) -> None:
    """Show a run in the browser, read-only.

    Example: agentrl dashboard configs/quickstart.toml
    """
    from agentrl.ops.processes.dashboard import run

    run(config, port, host, token_env)
