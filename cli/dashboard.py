"""The command `agentrl dashboard`."""

from pathlib import Path

import typer

from agentrl.cli.options import CONFIG


def add(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(dashboard)


def dashboard(
    config: Path = CONFIG,
    port: int = typer.Option(8501, min=1, max=65535, help="Port to listen on."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    token_env: str = typer.Option(
        "",
        metavar="VARIABLE",
        help="Environment variable with the access token. Required unless --host is loopback.",
    ),
) -> None:
    """Show a run in the browser (read-only).

    Example: agentrl dashboard runs/latest/config.toml
    """
    from agentrl.ops.processes.dashboard import run

    run(config, port, host, token_env)
