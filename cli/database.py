"""Commands for the database as a whole: db upgrade, check, reader, stats, export, prune."""

from pathlib import Path

import typer

from agentrl.cli.options import CONFIG, JSON_OBJECT, OPTIONAL_CONFIG, STORE

OUT = typer.Option(..., "--out", help="Output folder. It must not exist yet.", show_default=False)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    db = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for verb in (upgrade, check, reader, stats, export, prune):
        db.command()(verb)
    app.add_typer(db, name="db", help="Manage the database: migrate, inspect, export, prune.")


def upgrade(config: Path = CONFIG) -> None:
    """Create the database schema, or migrate it to this version.

    A lock keeps concurrent migrations apart.

    Example: agentrl db upgrade configs/quickstart.toml
    """
    from agentrl.ops.store.schema import upgrade as apply

    print(apply(config))


def check(config: Path = CONFIG) -> None:
    """Check that the database schema matches this version.

    Example: agentrl db check configs/quickstart.toml
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

    Example: agentrl db stats configs/quickstart.toml
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

    Example: agentrl db export configs/quickstart.toml --out exported
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
        False, "--bodies", help="Delete the bodies of trajectories that no trainer needs."
    ),
    yes: bool = typer.Option(
        False, "--yes", help="Delete. Without it the command only lists what it would delete."
    ),
    store: str = STORE,
) -> None:
    """Delete finished runs or trajectory bodies from the database.

    Without --yes nothing changes. With both --keep-runs and --older-than, only runs that match
    both are deleted.

    Example: agentrl db prune configs/quickstart.toml --older-than 30 --bodies
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
