"""`agentrl chaos`: break a training at random instants and audit what came of it."""

import signal
import sys
from pathlib import Path

import typer

CONFIG = typer.Argument(..., help="The run's TOML file.", show_default=False)
RESTART = "Shell command that restarts the {}; without it that fault is left out."

CONTROL = "Command that runs rabbitmqctl where the broker is; without it, no alarms of the broker."


def add(app: typer.Typer) -> None:
    """Register the verb."""
    app.command()(chaos)


def chaos(
    config: Path = CONFIG,
    kills: int = typer.Option(20, min=1, help="How many faults."),
    seed: int = typer.Option(0, help="Of which fault comes when."),
    only: str = typer.Option("", help="Words, comma-separated: of faults, those that hold one."),
    restart_broker: str = typer.Option("", help=RESTART.format("broker")),
    restart_store: str = typer.Option("", help=RESTART.format("store")),
    rabbitmqctl: str = typer.Option("", help=CONTROL),
    patience: float = typer.Option(60.0, min=1.0, help="Seconds in which nobody acts: a hang."),
    as_json: bool = typer.Option(False, "--json", help="Nothing but the one JSON line."),
) -> None:
    """Train under faults: kills, restarts, cut connections, full disks, lost commits. Exit code 1
    unless nothing was lost, trained twice, unbalanced, rolled back or failed without a fault, and
    nothing hung.

    The training is one of its own, with its own name, under the home of CONFIG.

    Example: agentrl chaos configs/chaos.toml --kills 20 --seed 1
    """
    from agentrl.ops.chaos.experiment import Wish, chaos
    from agentrl.ops.chaos.faults import Means

    commands = {"broker": restart_broker, "store": restart_store}
    restarts = {service: command for service, command in commands.items() if command}
    wish = Wish(
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
    verdict = chaos(wish, tell)
    print(verdict.line())
    if not verdict.sound:
        raise typer.Exit(1)
