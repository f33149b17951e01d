"""The entry point: verbs, one clear line for every known error, exit code 2.

Each verb parses its arguments and calls one function of `ops`, imported inside the verb, so that
`--help` imports nothing heavy.
"""

import errno
import os
import sys
import traceback

import typer

from agentrl.cli import (
    chaos,
    configs,
    dashboard,
    data,
    dead,
    deepspeed,
    envs,
    evaluations,
    experiments,
    hindsight,
    history,
    models,
    policies,
    processes,
    quickstart,
    stores,
)
from agentrl.core.errors import AgentRLError
from agentrl.core.process import forbid_inspection

WRITABLE = "choose a folder that you may write"
HINTS = {
    errno.ENOSPC: "make room on that disk",
    errno.EROFS: WRITABLE,
    errno.EACCES: "look at who may use it",
}

app = typer.Typer(
    name="agentrl",
    help="Reinforcement learning for LLM agents over many turns and many tasks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,
)
quickstart.add(app)
processes.add(app)
history.add(app)
hindsight.add(app)
stores.add(app)
dead.add(app)
policies.add(app)
evaluations.add(app)
models.add(app)
configs.add(app)
dashboard.add(app)
envs.add(app)
data.add(app)
deepspeed.add(app)
experiments.add(app)
chaos.add(app)


def tell_version(*, wanted: bool) -> None:
    """Print the installed version and end."""
    if wanted:
        from importlib.metadata import version

        print(f"agentrl-system {version('agentrl-system')}")
        raise typer.Exit


@app.callback()
def root(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of errors."),
    _version: bool = typer.Option(
        False,
        "--version",
        help="Tell the installed version.",
        is_eager=True,
        callback=lambda value: tell_version(wanted=value),
    ),
) -> None:
    """Shared options."""
    if debug:
        os.environ["AGENTRL_DEBUG"] = "1"


def main() -> None:
    """Run a verb. A known error is one line on stderr and exit code 2; `--debug` shows it all."""
    forbid_inspection()  # the environment holds passwords and tokens
    try:
        app()
    except AgentRLError as error:
        if os.environ.get("AGENTRL_DEBUG"):
            traceback.print_exc()
            sys.exit(error.exit_code)  # the supervisor reads it
        hint = f" — {error.hint}" if error.hint else ""
        print(f"agentrl: {error}{hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if os.environ.get("AGENTRL_DEBUG"):
            raise
        where = f" ({error.filename})" if error.filename else ""
        hint = f" — {HINTS[error.errno]}" if error.errno in HINTS else ""
        print(f"agentrl: {error.strerror or error}{where}{hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
