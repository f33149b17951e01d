"""Verbs of the engine `deepspeed`: build."""

from pathlib import Path

import typer

from agentrl.cli.configs import OPTIONAL


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    deepspeed = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    deepspeed.callback()(root)
    deepspeed.command()(build)
    app.add_typer(deepspeed, name="deepspeed", help="Prepare the engine deepspeed.")


def root() -> None:
    """Prepare the engine deepspeed."""


def build(config: Path | None = OPTIONAL) -> None:
    """Compile what `trainer.deepspeed.offload` needs, once for this machine and these versions.

    Example: agentrl deepspeed build configs/quickstart.toml
    """
    from agentrl.ops.doctor.extensions import build as compiled

    print(compiled(config))
