"""Commands for the database as a whole: sql, db upgrade, check, reader, stats, export, prune."""

from enum import StrEnum
from pathlib import Path

import typer

from agentrl.cli.options import CONFIG, JSON_OBJECT, OPTIONAL_CONFIG, STORE

OUT = typer.Option(..., "--out", help="Output folder. It must not exist yet.", show_default=False)


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


FORMAT = typer.Option(Format.TABLE, "--format", help="Output format.")


def add(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(sql)
    db = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for verb in (upgrade, check, reader, stats, export, prune):
        db.command()(verb)
    app.add_typer(db, name="db", help="Manage the database: migrate, inspect, export, prune.")


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

    Example: agentrl sql runs/latest/config.toml -c "SELECT * FROM accounting"
    """
    from agentrl.ops.runs.lifecycle import find_run_place
    from agentrl.ops.store import sql

    if (query != "") + (question != "") + listed > 1:
        raise typer.BadParameter("-c, --question and --questions exclude each other")
    if listed:
        sql.list_questions(form.value)
    elif question:
        sql.ask_question(find_run_place(config, store), question, form.value)
    else:
        sql.sql(find_run_place(config, store).url, query, form.value)


def upgrade(config: Path = CONFIG) -> None:
    """Create the database schema, or migrate it to this version.

    A lock keeps concurrent migrations apart.

    Example: agentrl db upgrade configs/quickstart.toml
    """
    from agentrl.ops.store.schema import upgrade as apply

    print(apply(config))


def check(config: Path = CONFIG) -> None:
    """Check that the database schema matches this version.

    Example: agentrl db check runs/latest/config.toml
    """
    from agentrl.ops.store.schema import check as compare

    print(compare(config))


def stats(
    config: str = OPTIONAL_CONFIG,
    as_json: bool = JSON_OBJECT,
    store: str = STORE,
) -> None:
    """Show rows and bytes per table and per run.

    On Postgres the report also shows dead rows and the time of the last vacuum.

    Example: agentrl db stats runs/latest/config.toml
    """
    from agentrl.ops.runs.lifecycle import find_run_place
    from agentrl.ops.store.storage import stats as show

    show(find_run_place(config, store).url, as_json=as_json)


def export(
    config: str = OPTIONAL_CONFIG,
    out: Path = OUT,
    run: str = typer.Option("", "--run", help="Name of the run to export. Default: all runs."),
    tables: str = typer.Option(
        "", "--tables", help="Tables to export (comma-separated). Default: all."
    ),
    bodies: bool = typer.Option(
        False, "--bodies", help="Also export the bodies of trajectories (tokens)."
    ),
    store: str = STORE,
) -> None:
    """Export tables as Parquet files.

    All files show the same moment. If the export fails, no folder is left behind.

    Example: agentrl db export runs/latest/config.toml --out exported
    """
    from agentrl.ops.runs.lifecycle import find_run_place
    from agentrl.ops.store.storage import export as write

    named = [name.strip() for name in tables.split(",") if name.strip()]
    print(write(find_run_place(config, store).url, out, run=run, tables=named, bodies=bodies))


def prune(
    config: str = OPTIONAL_CONFIG,
    keep_runs: int = typer.Option(
        None, "--keep-runs", min=0, help="Delete finished runs except the newest N."
    ),
    older_than: float = typer.Option(
        None, "--older-than", min=0, help="Delete runs that ended more than N days ago."
    ),
    bodies: bool = typer.Option(
        False,
        "--bodies",
        help="Also delete, in all other runs of any age, the bodies that no trainer needs.",
    ),
    yes: bool = typer.Option(
        False, "--yes", help="Delete. Without it the command only lists what it would delete."
    ),
    store: str = STORE,
) -> None:
    """Delete finished runs or trajectory bodies from the database.

    Without --yes nothing changes. With both --keep-runs and --older-than, only runs that match
    both are deleted. Neither limits --bodies.

    Example: agentrl db prune runs/latest/config.toml --older-than 30 --bodies
    """
    from agentrl.ops.runs.lifecycle import find_run_place
    from agentrl.ops.store.storage import Rules
    from agentrl.ops.store.storage import prune as forget

    days = None if older_than is None else older_than * 86_400
    forget(find_run_place(config, store).url, Rules(keep_runs, days, bodies), yes=yes)


def reader(
    config: Path = CONFIG,
    password_env: str = typer.Option(
        ...,
        "--password-env",
        help="Environment variable with the password of the role.",
        show_default=False,
    ),
) -> None:
    """Enable login for the read-only database role (Postgres).

    The role is agentrl_reader. A dashboard on another machine can log in with it.

    Example: agentrl db reader configs/compose.toml --password-env AGENTRL_READER_PASSWORD
    """
    from agentrl.ops.store.schema import reader as let_in

    print(let_in(config, password_env))
