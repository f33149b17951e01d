"""Verbs over a store's history: runs, sql, run …"""

import os
from enum import StrEnum
from pathlib import Path

import typer

WHERE = typer.Argument("", help="The run's TOML file.", show_default=False)
RUN = typer.Argument(..., help="The run's TOML file, or its name in --store.", show_default=False)
STORE = typer.Option("", "--store", help="URL of the store, instead of the file's.")


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


FORMAT = typer.Option(Format.TABLE, "--format", help="How rows are written.")


def add(app: typer.Typer) -> None:
    """Register the verbs."""
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
    config: str = WHERE,
    store: str = STORE,
    as_json: bool = typer.Option(False, "--json", help="One JSON array."),
) -> None:
    """List the runs of a store.

    State, version, updates, episodes, success by task over the last ten updates, age.

    Example: agentrl runs configs/quickstart.toml
    """
    from agentrl.ops.runs.lifecycle import place
    from agentrl.ops.runs.listing import runs as show

    show(place(config, store), as_json=as_json)


def sql(
    config: str = WHERE,
    query: str = typer.Option("", "--command", "-c", help="One statement; a prompt without."),
    question: str = typer.Option("", "--question", help="A question by name, of the run named."),
    listed: bool = typer.Option(False, "--questions", help="List the questions."),
    form: Format = FORMAT,
    store: str = STORE,
) -> None:
    """Ask a store in SQL, read-only.

    Without -c a prompt; `.tables` lists what there is, `.quit` ends.

    Example: agentrl sql configs/quickstart.toml -c "SELECT * FROM accounting"
    """
    from agentrl.ops.runs.lifecycle import place
    from agentrl.ops.store import sql

    if listed:
        sql.list_questions(form.value)
    elif question:
        sql.ask_question(place(config, store), question, form.value)
    else:
        sql.sql(place(config, store).url, query, form.value)


def pause(run: str = RUN, store: str = STORE) -> None:
    """Admit and claim nothing more; what runs ends.

    Example: agentrl run pause configs/quickstart.toml
    """
    _control(run, store, "pause")


def resume(run: str = RUN, store: str = STORE) -> None:
    """Go on with a paused run.

    Example: agentrl run resume configs/quickstart.toml
    """
    _control(run, store, "resume")


def stop(run: str = RUN, store: str = STORE) -> None:
    """End a run for good: what is open is cancelled, its processes end.

    Example: agentrl run stop my-run --store sqlite:///runs/run/store.db
    """
    _control(run, store, "stop")


def fork(
    run: str = RUN,
    at: str = typer.Option("latest", "--at", help="The version to begin from."),
    name: str = typer.Option(..., "--name", help="Of the new run.", show_default=False),
    store: str = STORE,
) -> None:
    """Begin a new run from a checkpoint of another.

    Example: agentrl run fork configs/quickstart.toml --at 20 --name bolder
    """
    from agentrl.core import loading
    from agentrl.ops.runs.lifecycle import fork as begin
    from agentrl.ops.runs.lifecycle import place, write_config

    where = place(run, store)
    run_id = begin(where, at, name)
    if where.home is not None:  # of a file, which means the new run under another name
        own = os.environ | {f"{loading.PREFIX}RUN__NAME": name}
        start = loading.command("up", Path(run), own)
    else:
        start = loading.command("up", write_config(where, name), {})
    print(f"run {run_id}; start it with: {start}")


def delete(
    run: str = RUN,
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
    store: str = STORE,
) -> None:
    """Remove a run's rows, checkpoints and queues; refused while a process of it lives.

    Example: agentrl run delete configs/quickstart.toml --yes
    """
    from agentrl.ops.runs.lifecycle import delete as remove
    from agentrl.ops.runs.lifecycle import place

    where = place(run, store)
    if not yes:
        typer.confirm(f"Delete run {where.run} and all it learned?", abort=True)
    print(remove(where))


def _control(run: str, store: str, action: str) -> None:
    from agentrl.ops.runs.lifecycle import control, place

    print(control(place(run, store), action))
