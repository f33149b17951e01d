"""`agentrl experiment`: the studies, which a clone of the repository has and the wheel lacks."""

from importlib.util import find_spec

import typer

from agentrl.core.errors import ConfigError


def add(app: typer.Typer) -> None:
    """Register the commands of `experiments/`, or one that says where they are."""
    if find_spec("agentrl.experiments"):
        from agentrl.experiments import commands

        commands.add(app)
    else:
        options = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command("experiment", context_settings=options)(explain_absence)


def explain_absence() -> None:
    """Run a study that answers a question about learning. Only a clone of the repository can."""
    raise ConfigError(
        "the installed package has no experiments: they are a folder of the repository",
        hint="clone it, run `make setup` there, and run the same command",
    )
