"""The commands `agentrl data …`: benchmark data, which each user downloads from its publisher."""

import typer

from agentrl.cli.options import DATA, JSON_ARRAY, TASK, TASKS


def add(app: typer.Typer) -> None:
    """Register the commands."""
    data = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    data.command("list")(list_datasets)
    data.command()(show)
    data.command()(check)
    data.command()(build)
    app.add_typer(data, name="data", help="List, show, check or build benchmark data.")


def list_datasets(data: str = DATA, as_json: bool = JSON_ARRAY) -> None:
    """List the datasets of all tasks and whether each is present.

    Example: agentrl data list --data ~/benchmarks
    """
    from agentrl.ops.tasks.data import list_datasets as show_all

    show_all(data, as_json=as_json)


def show(task: str = TASK, data: str = DATA, as_json: bool = JSON_ARRAY) -> None:
    """Show the source, the licence and the local files of a task's data.

    Example: agentrl data show alfworld
    """
    from agentrl.ops.tasks.data import show as show_task

    show_task(task, data, as_json=as_json)


def check(tasks: list[str] = TASKS, data: str = DATA, as_json: bool = JSON_ARRAY) -> None:
    """Check that the tasks can read the local data.

    The exit code is 1 if a file cannot be read or no data is found.

    Example: agentrl data check dbbench kg
    """
    from agentrl.ops.tasks.data import check as read

    raise typer.Exit(0 if read(tasks or [], data, as_json=as_json) else 1)


def build(
    task: str = TASK,
    data: str = DATA,
    out: str = typer.Option("", "--out", help="Output folder. Default: inside the data folder."),
) -> None:
    """Build the files that a task derives from its data.

    Only webshop has such files: its catalogue and its search index.

    Example: agentrl data build webshop
    """
    from agentrl.ops.tasks.data import build as make

    make(task, data, out)
