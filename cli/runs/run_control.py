"""Commands over the runs of a database: runs, sql, run …"""

import os
from enum import StrEnum
from pathlib import Path

import typer

from agentrl.cli.options import JSON_ARRAY, OPTIONAL_CONFIG, RUN, STORE


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


FORMAT = typer.Option(Format.TABLE, "--format", help="Output format.")


def add(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(runs)
    app.command()(sql)
    run = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    run.command()(pause)
    run.command()(resume)
    run.command()(stop)
    run.command()(fork)
    run.command()(delete)
    app.add_typer(run, name="run", help="Pause, resume, stop, fork or delete a run.")


def runs(
    config: str = OPTIONAL_CONFIG,
    store: str = STORE,
    as_json: bool = JSON_ARRAY,
) -> None:
    """List the runs in a database.

    The columns are state, version, updates, episodes, success per task over the last ten updates,
    and age.

    Example: agentrl runs configs/quickstart.toml
    """
    from agentrl.ops.runs.lifecycle import find_run_place
    from agentrl.ops.runs.listing import runs as show

    show(find_run_place(config, store), as_json=as_json)


def sql(
    config: str = OPTIONAL_CONFIG,
    query: str = typer.Option("", "--command", "-c", help="SQL statement. Default: open a prompt."),
    question: str = typer.Option("", "--question", help="Name of a saved question to ask."),
    listed: bool = typer.Option(False, "--questions", help="List the saved questions."),
    form: Format = FORMAT,
    store: str = STORE,
) -> None:
    """Query the database in SQL (read-only).

    Without -c a prompt opens: `.tables` lists tables and views, `.quit` ends it.

    Example: agentrl sql configs/quickstart.toml -c "SELECT * FROM accounting"
    """
    from agentrl.ops.runs.lifecycle import find_run_place
    from agentrl.ops.store import sql

    if listed:
        sql.list_questions(form.value)
    elif question:
        sql.ask_question(find_run_place(config, store), question, form.value)
    else:
        sql.sql(find_run_place(config, store).url, query, form.value)


def pause(run: str = RUN, store: str = STORE) -> None:
    """Pause a run.

    No new episodes start; running episodes end normally.

    Example: agentrl run pause configs/quickstart.toml
    """
    _control(run, store, "pause")


def resume(run: str = RUN, store: str = STORE) -> None:
    """Resume a paused run.

    Example: agentrl run resume configs/quickstart.toml
    """
    _control(run, store, "resume")


def stop(run: str = RUN, store: str = STORE) -> None:
    """Stop a run for good.

    Open episodes are cancelled and the processes of the run end. A stopped run cannot be resumed.

    Example: agentrl run stop my-run --store sqlite:///runs/run/store.db
    """
    _control(run, store, "stop")


def fork(
    run: str = RUN,
    at: str = typer.Option("latest", "--at", help="Version to start from, or `latest`."),
    name: str = typer.Option(..., "--name", help="Name of the new run.", show_default=False),
    store: str = STORE,
) -> None:
    """Create a new run from a checkpoint of another run.

    Example: agentrl run fork configs/quickstart.toml --at 20 --name bolder
    """
    from agentrl.core import config_loading
    from agentrl.ops.runs.lifecycle import find_run_place, write_config
    from agentrl.ops.runs.lifecycle import fork as begin

    where = find_run_place(run, store)
    run_id = begin(where, at, name)
    if where.home is not None:  # of a file, which means the new run under another name
        own = os.environ | {f"{config_loading.PREFIX}RUN__NAME": name}
        start = config_loading.command("up", Path(run), own)
    else:
        start = config_loading.command("up", write_config(where, name), {})
    print(f"run {run_id}; start it with: {start}")


def delete(
    run: str = RUN,
    yes: bool = typer.Option(False, "--yes", help="Delete without confirmation."),
    store: str = STORE,
) -> None:
    """Delete a run: its rows, checkpoints and queues.

    The command is refused while a process of the run is alive.

    Example: agentrl run delete configs/quickstart.toml --yes
    """
    from agentrl.ops.runs.lifecycle import delete as remove
    from agentrl.ops.runs.lifecycle import find_run_place

    where = find_run_place(run, store)
    if not yes:
        typer.confirm(f"Delete run {where.run} with its rows, checkpoints and queues?", abort=True)
    print(remove(where))


def _control(run: str, store: str, action: str) -> None:
    from agentrl.ops.runs.lifecycle import control, find_run_place

    print(control(find_run_place(run, store), action))
