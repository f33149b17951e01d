"""Commands that list and control the runs of a database: runs, run …"""

import os
from pathlib import Path

import typer

from agentrl.cli.options import JSON_ARRAY, MOST_ROWS, OPTIONAL_CONFIG, RUN, STORE
from agentrl.core.types import EpisodeState

STATE = typer.Option(EpisodeState.FINISHED, "--state", help="List episodes in this state.")

LIMIT = 20  # listed episodes


def add(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(runs)
    app.command()(episodes)
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

    Example: agentrl runs runs/latest/config.toml
    """
    from agentrl.ops.runs.lifecycle import find_run_place
    from agentrl.ops.runs.listing import runs as show

    show(find_run_place(config, store), as_json=as_json)


def episodes(
    run: str = RUN,
    episode: str = typer.Argument(
        "", metavar="EPISODE", help="Id of an episode to print.", show_default=False
    ),
    task: str = typer.Option("", "--task", help="List episodes of this task only."),
    item: str = typer.Option("", "--item", help="List episodes of this item only."),
    state: EpisodeState = STATE,
    text: str = typer.Option("", "--text", help="Text in a call or an answer, ignoring case."),
    limit: int | None = typer.Option(
        None, min=1, max=MOST_ROWS, help="Largest number of listed episodes. Default: 20."
    ),
    store: str = STORE,
    as_json: bool = typer.Option(
        False, "--json", help="Print one JSON array, or one JSON object for EPISODE."
    ),
) -> None:
    """List a run's newest episodes, or print one turn by turn.

    For one episode, it prints the prompt, and per step the policy, the parsed calls and the
    environment's answer.

    Example: agentrl episodes runs/latest/config.toml dbbench-0-3
    """
    from agentrl.db.queries.episodes.filter import EpisodeFilter
    from agentrl.ops.runs.episodes import list_episodes, show_episode
    from agentrl.ops.runs.lifecycle import find_run_place

    is_filtered = bool(task or item or text) or state != EpisodeState.FINISHED
    if episode and (is_filtered or limit is not None):
        raise typer.BadParameter("EPISODE excludes --task, --item, --state, --text and --limit")
    where = find_run_place(run, store)
    if episode:
        show_episode(where, episode, as_json=as_json)
        return
    wanted = EpisodeFilter(state=state, task=task, item_id=item, words=text)
    list_episodes(where, wanted, limit or LIMIT, as_json=as_json)


def pause(run: str = RUN, store: str = STORE) -> None:
    """Pause a run.

    No new episodes start; running episodes end normally.

    Example: agentrl run pause runs/latest/config.toml
    """
    _control(run, store, "pause")


def resume(run: str = RUN, store: str = STORE) -> None:
    """Resume a paused run.

    Example: agentrl run resume runs/latest/config.toml
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

    The new run starts at version 0: set run.stop_updates to the number of further updates. The
    command prints how to start the run.

    Example: agentrl run fork runs/latest/config.toml --at 8 --name bolder
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

    Example: agentrl run delete runs/latest/config.toml
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
