"""Verbs over a store as a whole: db upgrade, check, reader, stats, export, prune."""

from pathlib import Path

import typer

from agentrl.cli.history import STORE, WHERE
from agentrl.cli.processes import CONFIG

OUT = typer.Option(..., "--out", help="A folder that is not there yet.", show_default=False)


def add(app: typer.Typer) -> None:
    """Register the verbs."""
    db = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for verb in (upgrade, check, reader, stats, export, prune):
        db.command()(verb)
    app.add_typer(db, name="db", help="A store: its schema, its size, its export, what may go.")


def upgrade(config: Path = CONFIG) -> None:
    """Make the schema, or apply what is missing, under a lock.

    Example: agentrl db upgrade configs/quickstart.toml
    """
    from agentrl.ops.store.schema import upgrade as apply

    print(apply(config))


def check(config: Path = CONFIG) -> None:
    """Whether the store is at this code's schema and differs nowhere.

    Example: agentrl db check configs/quickstart.toml
    """
    from agentrl.ops.store.schema import check as compare

    print(compare(config))


def stats(
    config: str = WHERE,
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
    store: str = STORE,
) -> None:
    """Rows and bytes by table and by run, and what the database has to clean.

    Example: agentrl db stats configs/quickstart.toml
    """
    from agentrl.ops.runs.lifecycle import place
    from agentrl.ops.store.storage import stats as show

    show(place(config, store).url, as_json=as_json)


def export(
    config: str = WHERE,
    out: Path = OUT,
    run: str = typer.Option("", "--run", help="Of one run, by name; else of all."),
    tables: str = typer.Option("", "--tables", help="Names with commas between; else all."),
    bodies: bool = typer.Option(False, "--bodies", help="With the bodies of trajectories."),
    store: str = STORE,
) -> None:
    """Write tables as Parquet files, all of one moment, whole or not at all.

    Example: agentrl db export configs/quickstart.toml --out exported
    """
    from agentrl.ops.runs.lifecycle import place
    from agentrl.ops.store.storage import export as write

    named = [name.strip() for name in tables.split(",") if name.strip()]
    print(write(place(config, store).url, out, run=run, tables=named, bodies=bodies))


def prune(
    config: str = WHERE,
    keep_runs: int = typer.Option(
        None, "--keep-runs", min=0, help="Remove runs that are over but the newest so many."
    ),
    older_than: float = typer.Option(
        None, "--older-than", min=0, help="Remove runs that ended so many days ago."
    ),
    bodies: bool = typer.Option(
        False, "--bodies", help="Empty the bodies that no trainer will ask for."
    ),
    yes: bool = typer.Option(False, "--yes", help="Do it; else only say what would go."),
    store: str = STORE,
) -> None:
    """Let a store forget: whole runs that are over, or bodies. Without --yes nothing changes.

    With both --keep-runs and --older-than a run goes where both say so.

    Example: agentrl db prune configs/quickstart.toml --older-than 30 --bodies
    """
    from agentrl.ops.runs.lifecycle import place
    from agentrl.ops.store.storage import Rules
    from agentrl.ops.store.storage import prune as forget

    days = None if older_than is None else older_than * 86_400
    forget(place(config, store).url, Rules(keep_runs, days, bodies), yes=yes)


def reader(
    config: Path = CONFIG,
    password_env: str = typer.Option(
        ..., "--password-env", help="The variable with its password.", show_default=False
    ),
) -> None:
    """Let the role that only reads log in, for a dashboard of its own (Postgres).

    Example: agentrl db reader configs/compose.toml --password-env AGENTRL_READER_PASSWORD
    """
    from agentrl.ops.store.schema import reader as let_in

    print(let_in(config, password_env))
