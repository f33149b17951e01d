"""`agentrl chaos`: inject faults into a training run and audit the result."""

import signal
import sys
from pathlib import Path

import typer

from agentrl.cli.options import CONFIG

RESTART = "Shell command that restarts the {0}. Default: none; the {0} is never restarted."
CONTROL = (
    "Command that runs rabbitmqctl on the broker's host. Default: none; no broker alarm is raised."
)
ONLY = "Words (comma-separated): inject only faults whose name contains one. Default: all faults."


def add(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(chaos)


def chaos(
    config: Path = CONFIG,
    kills: int = typer.Option(20, min=1, help="Number of faults to inject, of any kind."),
    seed: int = typer.Option(0, help="Seed of the fault schedule."),
    only: str = typer.Option("", help=ONLY),
    restart_broker: str = typer.Option("", help=RESTART.format("broker")),
    restart_store: str = typer.Option("", help=RESTART.format("store")),
    rabbitmqctl: str = typer.Option("", help=CONTROL),
    patience: float = typer.Option(
        60.0, min=1.0, help="Seconds without progress after which the run counts as hung."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print only the result, as one line of JSON."
    ),
) -> None:
    """Inject faults into a training run and audit the result.

    The faults are killed processes, restarted services, cut connections, full disks and lost
    commits. The command starts a new run with its own name under the home of CONFIG.

    The exit code is 1 if a trajectory was lost or trained twice, if the view accounting is not
    empty, if no injected fault explains a failed attempt or a rolled-back update, or if the run
    hung.

    Example: agentrl chaos configs/chaos.toml --kills 20 --seed 1
    """
    from agentrl.ops.chaos.experiment import ChaosRequest, chaos
    from agentrl.ops.chaos.faults import Means

    commands = {"broker": restart_broker, "store": restart_store}
    restarts = {service: command for service, command in commands.items() if command}
    request = ChaosRequest(
        path=config,
        kills=kills,
        seed=seed,
        patience_s=patience,
        only=tuple(filter(None, only.split(","))),
        means=Means(restarts, rabbitmqctl),
    )

    def tell(line: str) -> None:
        if not as_json:
            print(line, file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    verdict = chaos(request, tell)
    print(verdict.line())
    if not verdict.sound:
        raise typer.Exit(1)
