"""Verbs that start, stop and show processes: up, down, status, and each role alone."""

from collections.abc import Callable
from pathlib import Path

import typer

CONFIG = typer.Argument(..., help="The run's TOML file.", show_default=False)
SUPERVISED = typer.Option(False, "--supervised", hidden=True, help="Started by a supervisor.")

ROLES = {
    "dispatcher": "Admit groups, send their episodes, re-issue what was lost.",
    "worker": "Drive episodes (Celery).",
    "recorder": "Store trajectories and steps.",
    "trainer": "Learn: batches in, checkpoints out.",
    "evaluator": "Measure checkpoints while the run trains, as [eval] says.",
}


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(health)
    for role, text in ROLES.items():
        app.command(name=role, help=f"{text}\n\nExample: agentrl {role} configs/quickstart.toml")(
            _role(role)
        )
    app.command()(policy)
    app.command()(track)


def _role(role: str) -> Callable[[Path, bool], None]:
    def verb(config: Path = CONFIG, supervised: bool = SUPERVISED) -> None:
        from agentrl.ops.processes.entry import run_role

        run_role(role, config, supervised=supervised)

    return verb


def policy(
    config: Path = CONFIG,
    name: str = typer.Option("", help="Which [[policy]] of the file; the first where empty."),
    supervised: bool = SUPERVISED,
) -> None:
    """Serve the checkpoints of one [[policy]] over HTTP.

    Example: agentrl policy configs/quickstart.toml --name policy
    """
    from agentrl.ops.processes.entry import run_role

    run_role("policy", config, supervised=supervised, name=name)


def track(config: Path = CONFIG, supervised: bool = SUPERVISED) -> None:
    """Tell the trackers of the file what the run's rows say (`trackers.use`).

    Ends with the run; goes on where it was, also after the run. A file without trackers gets them
    from the environment: AGENTRL__TRACKERS__USE='["tensorboard"]'.

    Example: agentrl track configs/quickstart.toml
    """
    from agentrl.ops.processes.entry import run_role

    run_role("track", config, supervised=supervised)


def up(
    config: Path = CONFIG,
    detach: bool = typer.Option(False, "--detach", "-d", help="Return once all have started."),
) -> None:
    """Start every process of a run on this machine; Ctrl-C ends them, `up` again resumes.

    Example: agentrl up configs/cluster-cpu.toml
    """
    from agentrl.ops.supervisor.up import up as start

    start(config, detach=detach)


def down(config: Path = CONFIG) -> None:
    """End the processes that `up` started; the run can be resumed.

    Example: agentrl down configs/cluster-cpu.toml
    """
    from agentrl.ops.supervisor.up import down as end

    end(config)


def status(
    config: Path = CONFIG, as_json: bool = typer.Option(False, "--json", help="One JSON object.")
) -> None:
    """Show a run's state, its processes and its live policies.

    Example: agentrl status configs/cluster-cpu.toml
    """
    from agentrl.ops.processes.status import status as show

    show(config, as_json=as_json)


def health(
    config: Path = CONFIG,
    role: str = typer.Argument(..., help="Of the process.", show_default=False),
    name: str = typer.Option("", help="Of a policy server; the first where empty."),
) -> None:
    """Say whether a process of this machine works; exit code 1 where not. For probes.

    dispatcher, worker, recorder, trainer, policy, envs or dashboard, on RabbitMQ.

    Example: agentrl health configs/compose.toml policy --name policy-lagged
    """
    from agentrl.ops.processes.health import health as probe

    print(probe(config, role, name))
