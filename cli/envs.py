"""The verbs `envs …`: environments outside the workers."""

from pathlib import Path

import typer

from agentrl.cli.processes import CONFIG, SUPERVISED

TASK = typer.Argument(..., help="A task's name.", show_default=False)
TASKS = typer.Argument(None, help="Names of tasks; all without.", show_default=False)
DATA = typer.Option("", "--data", help="The data folder, instead of AGENTRL_DATA.")
ORIGIN = typer.Option("", "--origin", help="A dataset's items, instead of generated ones.")
JSON = typer.Option(False, "--json", help="One JSON array.")
ITEM = typer.Option("0", "--item", help="An item's place in its split, or its id.")
SPLIT = typer.Option("", "--split", help="The split; the first without.")
DIFFICULTY = typer.Option("", "--difficulty", help="easy, medium or hard.")
OPTION = typer.Option([], "--option", "-o", help="An option of the task: name=value.")
PEER = typer.Option([], "--peer", help="To measure against, or with: mariadb=URL, docker=URL, …")
DOCKER = typer.Option("", "--docker", help="The Docker engine's address, instead of DOCKER_HOST.")
IMAGE = typer.Option("", "--image", help="The image of sandboxes.")


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    envs = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    envs.command("list")(list_tasks)
    envs.command()(show)
    envs.command()(play)
    envs.command()(check)
    envs.command()(serve)
    app.add_typer(envs, name="envs", help="List, show, play, check or serve tasks.")


def list_tasks(as_json: bool = JSON) -> None:
    """List the tasks: where their items come from, splits, turns.

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
    gold: bool = typer.Option(False, "--gold", help="Also the item's content, answer and all."),
) -> None:
    """Show what an agent is told at the start of an episode: messages and tools.

    Example: agentrl envs show dbbench --difficulty hard --item 3
    """
    from agentrl.ops.tasks.show import Chosen, given, show_item

    options = given(option, difficulty=difficulty, origin=origin, data=data)
    show_item(Chosen(task, options, split, item, docker, image), gold=gold)


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
    """Act in an episode yourself: tool calls as `name key=value …` or `name {"key": "value"}`.

    `:expert` plays the expert's next turn, `:help` tells the rest.

    Example: agentrl envs play alfworld --item 3
    """
    from agentrl.ops.tasks.play import play as begin
    from agentrl.ops.tasks.show import Chosen, given

    options = given(option, difficulty=difficulty, origin=origin, data=data)
    begin(Chosen(task, options, split, item, docker, image))


def check(
    tasks: list[str] = TASKS,
    origin: str = ORIGIN,
    limit: int = typer.Option(0, "--limit", min=0, help="Items of a figure; 0: its own number."),
    seed: int = typer.Option(0, "--seed", help="Of generated items."),
    peer: list[str] = PEER,
    data: str = DATA,
    as_json: bool = JSON,
) -> None:
    """Measure tasks: experts, chance, splits, and each task's own figures. Exit code 1 for a ✗.

    Example: agentrl envs check dbbench --limit 50
    """
    from agentrl.ops.tasks.check import Asked, settings
    from agentrl.ops.tasks.check import check as measure

    sound = measure(Asked(tasks or [], origin, settings(data, limit, seed, peer), as_json))
    raise typer.Exit(0 if sound else 1)


def serve(config: Path = CONFIG, supervised: bool = SUPERVISED) -> None:
    """Serve the file's tasks; it alone talks to Docker, and removes every container at its end.

    Example: agentrl envs serve configs/cluster-cpu.toml
    """
    from agentrl.ops.processes.entry import run_role

    run_role("envs", config, supervised=supervised)
