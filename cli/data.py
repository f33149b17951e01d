"""The verbs `data …`: the benchmarks' own items, which every user gets from the benchmarks."""

import typer

from agentrl.cli.envs import DATA, JSON, TASK, TASKS


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    data = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    data.command("list")(list_datasets)
    data.command()(show)
    data.command()(check)
    data.command()(build)
    app.add_typer(data, name="data", help="List, show, check or build benchmark data.")


def list_datasets(data: str = DATA, as_json: bool = JSON) -> None:
    """List the datasets that tasks read, and which are here.

    Example: agentrl data list --data ~/benchmarks
    """
    from agentrl.ops.tasks.data import list_datasets as show_all

    show_all(data, as_json=as_json)


def show(task: str = TASK, data: str = DATA, as_json: bool = JSON) -> None:
    """Show where a task's data comes from, under which licence, and which files are here.

    Example: agentrl data show alfworld
    """
    from agentrl.ops.tasks.data import show as show_task

    show_task(task, data, as_json=as_json)


def check(tasks: list[str] = TASKS, data: str = DATA, as_json: bool = JSON) -> None:
    """Read what is here as the tasks do. Exit code 1 where it cannot be read or nothing is.

    Example: agentrl data check dbbench kg
    """
    from agentrl.ops.tasks.data import check as read

    raise typer.Exit(0 if read(tasks or [], data, as_json=as_json) else 1)


def build(
    task: str = TASK,
    data: str = DATA,
    out: str = typer.Option("", "--out", help="Where to; in the data folder without."),
) -> None:
    """Build what a task reads besides the benchmark's files: webshop's catalogue and its index.

    Example: agentrl data build webshop
    """
    from agentrl.ops.tasks.data import build as make

    make(task, data, out)
