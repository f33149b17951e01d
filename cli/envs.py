"""The commands `agentrl envs …`: inspect, play, check and serve tasks."""

from pathlib import Path

import typer

from agentrl.cli.options import CONFIG, DATA, JSON_ARRAY, SUPERVISED, TASK, TASKS

ORIGIN = typer.Option("", "--origin", help="Dataset to take items from. Default: generated items.")
ITEM = typer.Option("0", "--item", help="Index of the item in its split, or its id.")
SPLIT = typer.Option("", "--split", help="Split of the task. Default: its first split.")
DIFFICULTY = typer.Option(
    "", "--difficulty", help="Difficulty of generated items: easy, medium or hard."
)
OPTION = typer.Option([], "--option", "-o", help="Option of the task: NAME=VALUE. Repeatable.")
DOCKER = typer.Option("", "--docker", help="Address of the Docker engine. Default: DOCKER_HOST.")
IMAGE = typer.Option(
    "", "--image", help="Docker image of the sandboxes. Default: python:3.11-slim."
)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    envs = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    envs.command("list")(list_tasks)
    envs.command()(show)
    envs.command()(play)
    envs.command()(check)
    envs.command()(audit)
    envs.command()(serve)
    app.add_typer(envs, name="envs", help="List, show, play, check, audit or serve tasks.")


def list_tasks(as_json: bool = JSON_ARRAY) -> None:
    """List the tasks with their data sources, splits and turn limits.

    Example: agentrl envs list --json
    """
    from agentrl.ops.tasks.show import list_tasks as show_all

    show_all(as_json=as_json)


def show(
    task: str = TASK,
    item: str = ITEM,
    split: str = SPLIT,
    difficulty: str = DIFFICULTY,
    origin: str = ORIGIN,
    option: list[str] = OPTION,
    data: str = DATA,
    docker: str = DOCKER,
    image: str = IMAGE,
    gold: bool = typer.Option(False, "--gold", help="Also print the item with its answer."),
) -> None:
    """Show an item: the agent's first messages and its tools.

    Example: agentrl envs show dbbench --difficulty hard --item 3
    """
    from agentrl.ops.tasks.show import ItemChoice, read_options, show_item

    options = read_options(option, difficulty=difficulty, origin=origin, data=data)
    show_item(ItemChoice(task, options, split, item, docker, image), gold=gold)


def play(
    task: str = TASK,
    item: str = ITEM,
    split: str = SPLIT,
    difficulty: str = DIFFICULTY,
    origin: str = ORIGIN,
    option: list[str] = OPTION,
    data: str = DATA,
    docker: str = DOCKER,
    image: str = IMAGE,
) -> None:
    """Play an episode yourself.

    Type tool calls as `name key=value …` or `name {"key": "value"}`. Type `:expert` to let the
    expert play the next turn and `:help` for all commands.

    Example: agentrl envs play alfworld --item 3
    """
    from agentrl.ops.tasks.play import play as begin
    from agentrl.ops.tasks.show import ItemChoice, read_options

    options = read_options(option, difficulty=difficulty, origin=origin, data=data)
    begin(ItemChoice(task, options, split, item, docker, image))


def check(
    tasks: list[str] = TASKS,
    origin: str = ORIGIN,
    limit: int = typer.Option(
        0, "--limit", min=0, help="Items per check; 0 leaves the number to each check."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of generated items."),
    docker: str = DOCKER,
    image: str = IMAGE,
    data: str = DATA,
    as_json: bool = JSON_ARRAY,
) -> None:
    """Check tasks: expert play, random and constant play, and splits.

    Constant play uses one fixed strategy for every item. The exit code is 1 if a check fails (✗).

    Example: agentrl envs check dbbench --limit 50
    """
    from agentrl.envs.tasks.check import Settings
    from agentrl.ops.tasks.check import CheckRequest
    from agentrl.ops.tasks.check import check as measure

    settings = Settings(data, limit, seed, docker, image)
    sound = measure(CheckRequest(tasks or [], origin, settings, as_json))
    raise typer.Exit(0 if sound else 1)


def audit(
    task: str = TASK,
    items: int = typer.Option(20, min=1, help="Held-out items for rewards and repetition."),
    episodes: int = typer.Option(1000, min=1, help="Random episodes for times and memory."),
    timeout: float = typer.Option(
        60.0, min=0.1, help="Seconds after which a call counts as hanging."
    ),
    option: list[str] = OPTION,
    data: str = DATA,
    origin: str = ORIGIN,
    docker: str = DOCKER,
    image: str = IMAGE,
    as_json: bool = JSON_ARRAY,
) -> None:
    """Measure an environment before training on it.

    The table shows items shared by splits, whether repeated actions get the same answers, the
    rewards of expert, random and constant play (the same call every turn), call times, hanging
    calls and leaked memory. The exit code is 1 if a figure is out of its bounds (✗).

    Example: agentrl envs audit gymnasium:Blackjack-v1 --json
    """
    from agentrl.envs.tasks.audit import AuditSettings
    from agentrl.ops.tasks.check import audit as measure
    from agentrl.ops.tasks.show import read_options

    options = read_options(option, origin=origin, data=data)
    settings = AuditSettings(items, episodes, timeout, docker, image)
    raise typer.Exit(0 if measure(task, options, settings, as_json=as_json) else 1)


def serve(
    config: Path = CONFIG,
    supervised: bool = SUPERVISED,
) -> None:
    """Serve the tasks of the configuration over HTTP.

    Only this process talks to Docker. It removes all of its containers when it ends.

    Example: agentrl envs serve configs/cluster-cpu.toml
    """
    from agentrl.ops.processes.entry import run_role

    run_role("envs", config, supervised=supervised)
