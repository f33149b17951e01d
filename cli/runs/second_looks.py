"""Commands that learn again from a run's history: curate, rescore, train."""

import os
from pathlib import Path

import typer

from agentrl.cli.options import CONFIG, RUN, SET, STORE

RULES = typer.Option(
    ...,
    "--rule",
    help="SELECT with the column episode_id, or FILE.sql. Repeatable: an episode must pass all.",
    show_default=False,
)
LINES = typer.Argument(
    ..., metavar="OUT", help="Output file (JSONL). It must not exist yet.", show_default=False
)
FUNCTION = typer.Option(
    ...,
    "--reward",
    help="Reward function: path.py:function or package.module:function.",
    show_default=False,
)
SOURCE = typer.Option(
    ...,
    "--from",
    metavar="RUN",
    help="Configuration file of the run with the history, or its name with --store.",
    show_default=False,
)
AGE = typer.Option(
    None,
    "--max-age",
    min=0,
    help="Largest number of updates between a policy that sampled a group and the one that is "
    "trained. Default: dispatch.max_staleness and dispatch.max_lag.",
)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(curate)
    app.command()(rescore)
    app.command()(train)


def curate(
    config: Path = CONFIG,
    out: Path = LINES,
    rule: list[str] = RULES,
    run: str = typer.Option(
        "", "--run", help="Run whose episodes are chosen. Default: the configuration's."
    ),
) -> None:
    """Choose episodes in SQL for fine-tuning.

    The output is chat JSONL, a line for each episode that passes every rule. A table shows how many
    finished episodes pass each rule, and how many are kept. The database is opened read-only.

    Example: agentrl curate runs/latest/config.toml solved.jsonl --rule "SELECT episode_id FROM
    episodes WHERE score >= 1 AND turns <= 4"
    """
    from agentrl.ops.export.curation import curate as write
    from agentrl.ops.export.episodes import ExportRequest

    print(write(ExportRequest(config, out, run), rule))


def rescore(
    run: str = RUN,
    function: str = FUNCTION,
    name: str = typer.Option("", "--name", help="Name of the new run. Default: RUN-rescored."),
    store: str = STORE,
) -> None:
    """Compute new rewards for a run's episodes.

    The episodes are copied into a new run, and nothing of the old one changes. The function gets a
    trajectory (agentrl.core.trajectory.Trajectory) and returns a number (the episode's reward), a
    list with one reward per step, or None to keep the recorded rewards.

    Example: agentrl rescore runs/latest/config.toml --reward rewards.py:shorter_is_better
    """
    from agentrl.core import config_loading
    from agentrl.ops.offline.rescore import rescore as score
    from agentrl.ops.runs.lifecycle import find_run_place

    where = find_run_place(run, store)
    name = name or f"{where.run}-rescored"
    print(score(where, function, name))
    if where.home is not None:
        own = os.environ | {f"{config_loading.PREFIX}RUN__NAME": name}
        print(f"train on it with: {config_loading.command('train --from', Path(run), own)}")
    else:
        print(f"train on it with: agentrl train --from {name} --store URL")


def train(
    source: str = SOURCE,
    name: str = typer.Option("", "--name", help="Name of the new run. Default: RUN-retrained."),
    changes: list[str] = SET,
    max_age: int | None = AGE,
    store: str = STORE,
) -> None:
    """Train a new run on recorded episodes of another run.

    No episode is played: each batch holds the groups that one update of the old run received, in
    the same order. After an interruption the same command continues. The report shows each update
    with its effective sample size, and which updates of the old run had groups that are too old.

    Example: agentrl train --from runs/latest/config.toml --set trainer.loss=gspo --set
    trainer.mixed_sequences=true
    """
    from agentrl.ops.offline.train_from import OfflineRequest, train_from
    from agentrl.ops.processes.entry import stop_on_signals
    from agentrl.ops.runs.lifecycle import find_run_place

    where = find_run_place(source, store)
    request = OfflineRequest(
        where=where,
        name=name or f"{where.run}-retrained",
        file=Path(source) if Path(source).is_file() else None,
        changes=changes,
        max_age=max_age,
    )
    print(train_from(request, stop_on_signals()))
