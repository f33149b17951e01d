"""Commands that start, stop and show processes: up, down, status, and each role alone."""

from collections.abc import Callable
from pathlib import Path

import typer

from agentrl.cli.options import CONFIG, JSON_OBJECT, SUPERVISED

ROLES = {
    "dispatcher": "Admit groups and send their episodes to the workers.",
    "worker": "Run episodes (a Celery worker).",
    "recorder": "Store finished trajectories in the database.",
    "trainer": "Train the policy and publish checkpoints.",
    "evaluator": "Evaluate checkpoints during training, as [eval] configures.",
}
EXAMPLES = {"evaluator": "AGENTRL__EVAL__EVERY=4 agentrl evaluator configs/quickstart.toml"}


def add(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(health)
    for role, text in ROLES.items():
        example = EXAMPLES.get(role, f"agentrl {role} configs/quickstart.toml")
        app.command(name=role, help=f"{text}\n\nExample: {example}")(_role(role))
    app.command()(policy)
    app.command()(tracker)


def _role(role: str) -> Callable[[Path, bool], None]:
    def verb(config: Path = CONFIG, supervised: bool = SUPERVISED) -> None:
        from agentrl.ops.processes.entry import run_role

        run_role(role, config, supervised=supervised)

    return verb


def policy(
    config: Path = CONFIG,
    name: str = typer.Option("", help="Name of the [[policy]] to serve. Default: the first."),
    supervised: bool = SUPERVISED,
) -> None:
    """Serve the checkpoints of one [[policy]] over HTTP.

    Example: agentrl policy configs/quickstart.toml --name policy
    """
    from agentrl.ops.processes.entry import run_role

    run_role("policy", config, supervised=supervised, name=name)


def tracker(config: Path = CONFIG, supervised: bool = SUPERVISED) -> None:
    """Export metrics to W&B, MLflow and TensorBoard.

    The key trackers.use selects the trackers; to set it without editing the file, export
    AGENTRL__TRACKERS__USE='["tensorboard"]'. The command ends with the run. If you start it again,
    even after the run, it continues where it stopped.

    Example: AGENTRL__TRACKERS__USE='["tensorboard"]' agentrl tracker configs/quickstart.toml
    """
    from agentrl.ops.processes.entry import run_role

    run_role("tracker", config, supervised=supervised)


def up(
    config: Path = CONFIG,
    detach: bool = typer.Option(
        False, "--detach", "-d", help="Return when all processes have started, or after a minute."
    ),
) -> None:
    """Start all processes of a run on this machine.

    Ctrl-C stops them. Run `agentrl up` again to resume.

    Example: agentrl up configs/quickstart.toml
    """
    from agentrl.ops.supervisor.up import up as start

    start(config, detach=detach)


def down(config: Path = CONFIG) -> None:
    """Stop the processes that `agentrl up` started.

    The run can be resumed with `agentrl up`.

    Example: agentrl down configs/quickstart.toml
    """
    from agentrl.ops.supervisor.up import down as end

    end(config)


def status(
    config: Path = CONFIG,
    as_json: bool = JSON_OBJECT,
) -> None:
    """Show the state, processes and live policies of a run.

    Example: agentrl status runs/latest/config.toml
    """
    from agentrl.ops.runs.status import status as show

    show(config, as_json=as_json)


def health(
    config: Path = CONFIG,
    role: str = typer.Argument(
        ...,
        metavar="ROLE",
        help="dispatcher, worker, recorder, trainer, policy, envs or dashboard.",
        show_default=False,
    ),
    name: str = typer.Option("", help="Name of the policy server. Default: the first."),
    alive: bool = typer.Option(
        False, "--alive", help="Also pass while the database or RabbitMQ is unavailable."
    ),
) -> None:
    """Check whether a process on this machine is healthy.

    The command is made for container probes: the exit code is 1 if the process is not healthy. Use
    --alive where a failed probe restarts the process: during an outage every process waits and
    goes on afterwards. dispatcher, worker and dashboard need Postgres; recorder and trainer also
    need RabbitMQ. For embedded runs use `agentrl status`.

    Example: agentrl health configs/compose.toml policy --name policy-lagged
    """
    from agentrl.ops.runs.health import health as probe

    print(probe(config, role, name, alive=alive))
