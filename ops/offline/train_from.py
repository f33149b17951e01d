"""`agentrl train --from`: trains a new run on the history of another one, without playing.

history ─▶ HistorySource ─▶ trainer/loop.py with the learner and the ledger of every trainer
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from sqlalchemy.orm import Session

from agentrl.checkpoints import checkpoint_store
from agentrl.core import config_loading, logging
from agentrl.core.config.config import Config
from agentrl.core.config.sections.base import check_name
from agentrl.core.errors import ConfigError, StoreError
from agentrl.core.types import RUN_OVER, GroupState, RunState
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.queries import history_batches
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store
from agentrl.db.transitions import lifecycle, runs, updates
from agentrl.db.transitions.trajectories import group_copies
from agentrl.ops.configuration.configs import check_task_weights
from agentrl.ops.configuration.teachers import check_teachers
from agentrl.ops.offline.history_source import History, HistorySource
from agentrl.ops.processes.trainer import bounds, ledger_config
from agentrl.ops.runs import relocation
from agentrl.ops.runs.begin import open_checkpoint_store
from agentrl.ops.runs.lifecycle import RunPlace, current_config, fork_checkpoint, open_place
from agentrl.ops.runs.teachers import resolve_teachers, serve_policies, with_teachers
from agentrl.ops.tables import console, plain
from agentrl.trainer.algorithm.presets import batch_groups, resolve_settings
from agentrl.trainer.batch import several_policies
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.group_selection import InboxBounds

COLUMNS = {  # of the table of updates: metric, how it is written
    "reward": ("reward", "{:.3f}"),
    "ESS": ("effective_sample_size", "{:.3f}"),
    "max ratio": ("max_ratio", "{:.2f}"),
}


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """What to train. `file`: the configuration's; None: the run's own. `max_age`: None: its bounds.

    `name`: of the new run; one that was interrupted with the same configuration continues.
    `changes`: SECTION.KEY=VALUE.
    """

    where: RunPlace
    name: str
    file: Path | None = None
    changes: Sequence[str] = ()
    max_age: int | None = None


def train_from(request: OfflineRequest, stop: threading.Event) -> str:
    """Train until the history or a stop rule ends the run, or `stop`; return the message to print.

    Raises StoreError, ConfigError, CheckpointError.
    """
    check_name(request.name, "--name")
    with open_place(request.where, stop) as (store, source):
        config = _configure(request, store, source)
        logging.configure("train", level=config.logs.level, form=config.logs.format)
        with store.read() as session:
            history = read_history(session, source, config, request.max_age)
            _refuse_mixed(session, source, history, config)
            start = history_batches.starting_checkpoint(session, source)
            session.expunge_all()
        if start is None:
            raise StoreError(
                f"run {source.name}: the run of its first checkpoint, {source.forked_from}, was "
                "deleted"
            )
        run_id = _find_or_fork(store, source, start, config)
        limits = bounds(config, resolve_settings(config.trainer))
        batches = HistorySource(store, run_id, limits, history)
        _train(store, run_id, config, batches, stop)
        if batches.is_used_up and not stop.is_set():  # else the last update may not be committed
            end = partial(
                runs.move_run, run_id=run_id, state=RunState.COMPLETED, reason="end of the history"
            )
            store.transact(end)
        with store.read() as session:
            return _report(session, run_id, source, history, limits)


def _configure(request: OfflineRequest, store: Store, source: Run) -> Config:
    """Return the new run's configuration. Raises ConfigError."""
    config = current_config(request.where, store, source)
    if request.file is not None:
        config = relocation.with_home(config_loading.load(request.file), config.home())
    config = config_loading.with_changes(config, request.changes)
    if config.trainer.engine != "torch":
        raise ConfigError(
            f'trainer.engine = "{config.trainer.engine}": --from trains in one process',
            hint="add --set trainer.engine=torch",
        )
    section, dispatch = msgspec.structs.replace(config.run, name=request.name), config.dispatch
    if request.max_age is not None:
        age = request.max_age
        dispatch = msgspec.structs.replace(dispatch, max_staleness=age, max_lag=age)
    check_task_weights(config)  # before a run is created
    check_teachers(config)
    return msgspec.structs.replace(config, run=section, dispatch=dispatch)


def read_history(
    session: Session, source: Run, config: Config, max_age: int | None = None
) -> History:
    """Return the batches of a run, and how far its policies are from weights that `config` trains.

    Raises StoreError if there is none, or if the run has only some of its copies.
    """
    group_copies.refuse_partial(source)
    batches = history_batches.read_batches(session, source.run_id)
    if not batches:
        raise StoreError(
            f"run {source.name} has no trained or closed group yet",
            hint="wait for its first update (`agentrl status CONFIG`)",
        )
    played = history_batches.played_run(session, batches)
    forks = updates.forks(session, played.run_id) if played else {}
    parted = 0 if max_age is not None else _parting(session, source, played, config)
    if parted is not None:
        sampled = history_batches.sampled_versions(session, source.run_id)
        away = [key for key, version in sampled.items() if version > parted]
        forks |= {key: min(parted, forks.get(key, parted)) for key in away}
    return History(batches, forks)


def _parting(session: Session, source: Run, played: Run | None, config: Config) -> int | None:
    """Return the version from which the new weights are not those of the history; None: never."""
    if played is None:
        return 0
    then = config_loading.from_json(played.config, f"run {played.name}")
    if _learning(then) != _learning(config):
        return 0
    others = (
        history_batches.first_changed_batch(session, source.run_id),
        history_batches.first_incomplete_batch(session, source.run_id, played.run_id),
    )
    return min((batch - 1 for batch in others if batch is not None), default=None)


def _learning(config: Config) -> tuple[object, ...]:
    """Return all settings on which the weights of an update depend."""
    trainer, dispatch = config.trainer, config.dispatch
    apis = [config.policy_server(name).external for name in sorted(config.teacher_policies())]
    return (
        resolve_settings(trainer),
        config.teacher,
        [(api.url, api.model, api.parameters) for api in apis],
        Hardware.from_config(config.model, trainer),
        trainer.engine,
        batch_groups(trainer, dispatch),
        dispatch.max_staleness,
        dispatch.max_lag,
    )


def _refuse_mixed(session: Session, source: Run, history: History, config: Config) -> None:
    """Raise ConfigError before a run is created that could not learn from an episode."""
    settings = resolve_settings(config.trainer)
    if settings.needs_one_policy:
        groups = {group_id for batch in history.batches for group_id, _ in batch.group_ids}
        for group_id, episode_id in history_batches.mixed_episodes(session, source.run_id):
            if group_id in groups:
                raise several_policies(settings, episode_id)


def _find_or_fork(store: Store, source: Run, start: Checkpoint, config: Config) -> str:
    """Create the run, or find one that was interrupted; return its id.

    Raises StoreError, and ConfigError if it began with another configuration.
    """
    name = config.run.name
    with store.read() as session:
        run = runs.find_run(session, name)
        if (
            run is not None
            and run.history_of == source.run_id
            and run.state not in RUN_OVER
            and not group_copies.has_played_groups(session, run.run_id)
        ):
            _refuse_changes(run, config)
            return run.run_id
        lifecycle.require_new_name(session, name)
    return fork_checkpoint(store, source, start, config, history_of=source.run_id)


def _refuse_changes(run: Run, config: Config) -> None:
    """Raise ConfigError if an interrupted run began with another configuration, its home aside."""
    stored = config_loading.from_json(run.config, f"run {run.name}")
    section = msgspec.structs.replace(stored.run, name=config.run.name, home=config.run.home)
    former = config_loading.dumps(msgspec.structs.replace(stored, run=section))
    changes = config_loading.describe_changes(former, config_loading.dumps(config))
    if changes:
        raise ConfigError(
            f"run {run.name} began with another configuration: {', '.join(changes)}",
            hint="continue with the same options, or give --name",
        )


def _train(
    store: Store, run_id: str, config: Config, batches: HistorySource, stop: threading.Event
) -> None:
    from agentrl.trainer.engines.torch_learner import TorchLearner
    from agentrl.trainer.lease import trainer_lease
    from agentrl.trainer.ledger import Ledger
    from agentrl.trainer.loop import train

    settings = resolve_settings(config.trainer)
    first = store.ask(lambda session: checkpoints.live_checkpoints(session, run_id)[0].path)
    hardware = Hardware.from_config(config.model, config.trainer)
    path = checkpoint_store.fetch(first, config.cache())
    teachers = resolve_teachers(config, store)
    files = open_checkpoint_store(config, run_id, stop)
    ledger = Ledger(ledger_config(config, teachers), run_id, store, lambda _event: None, files)
    with serve_policies(config, stop) as policies:
        own = TorchLearner(path, settings, hardware)
        learner = with_teachers(own, teachers, path, config, hardware, policies)
        with trainer_lease(store, run_id, lambda: ledger.epoch):
            train(batches, learner, ledger, settings, stop)


def _report(
    session: Session, run_id: str, source: Run, history: History, limits: InboxBounds
) -> str:
    run = runs.require_run(session, run_id)
    table = plain("update", "groups", "tokens", *COLUMNS)
    made = lifecycle.latest_updates(session, run_id, run.version, only_live=True)
    for each in reversed(made):
        cells = (_cell(each.metrics, *column) for column in COLUMNS.values())
        table.add_row(str(each.version), str(each.groups), str(each.loss_tokens), *cells)
    console().print(table)
    found = group_copies.count_outcomes(session, run_id)
    looked_at = sum(len(batch.group_ids) for batch in history.batches)
    copied = sum(counts.total() for counts in found.values())
    lines = [
        f"run {run_id}: {run.version} updates from {source.name}, "
        f"{found[GroupState.TRAINED].total()} of {looked_at} groups trained, "
        f"{found[GroupState.FILTERED].total()} filtered, "
        f"{found[GroupState.STALE].total()} too old, "
        f"{found[GroupState.CANCELLED].total()} left over, "
        f"{looked_at - copied} without stored bodies or not reached"
    ]
    if stale := found[GroupState.STALE]:
        lines.append(_where_too_old(stale, limits))
    if run.state not in RUN_OVER:
        lines.append("interrupted: the same command continues")
    return "\n".join(lines)


def _where_too_old(stale: Counter[int], limits: InboxBounds) -> str:
    spans = lifecycle.spans(sorted(stale))
    return (
        f"too old: {stale.total()} groups of the history's updates {spans}: their policies are "
        f"more than {limits.max_staleness} updates away (track current), or {limits.max_lag} "
        "(other tracks); raise it with --max-age"
    )


def _cell(metrics: Mapping[str, float], name: str, form: str) -> str:
    return form.format(metrics[name]) if name in metrics else "–"
