"""`agentrl eval`: a policy on tasks, through the episode loop that trains, served in this process.

target ─▶ directory ─▶ LocalEngine behind its HTTP face ─▶ Evaluator ─▶ table | JSON | rows
"""

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from broker import weights
from core import loading, logging, manifest
from core.config import Config, PolicyServer
from core.errors import ConfigError, nearest
from core.types import CURRENT
from db import lifecycle, registry, runs
from db.external import track_of
from db.models import Evaluation
from db.readonly import open_history
from db.registry import LivePolicy
from db.store import now, open_store
from ops import hub
from ops.configs import check_external, check_model
from ops.evaluate import Evaluator, Measured, Plan
from ops.hold import held
from ops.roles import sources
from ops.tables import console, plain


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured. `run_id`, `version`: of a checkpoint of the store; None of a directory.

    `external`: the server of an external model; `path` is then the model whose tokens count.
    """

    path: Path
    checkpoint_id: str
    run_id: str | None = None
    version: int | None = None
    external: PolicyServer | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What to measure. No task: all of the file; no split: each task's eval_split.

    `items` None: the whole split. `temperature` None: the file's.
    """

    tasks: Sequence[str] = ()
    split: str = ""
    items: int | None = None
    repeats: int = 1
    temperature: float | None = None


def evaluate(name: str, path: Path, wish: Wish, *, as_json: bool) -> None:
    """Measure, print, and keep the rows of a checkpoint of the store.

    Raises ConfigError, ItemError, CheckpointError, StoreError.
    """
    logging.configure("eval", level="WARNING")
    config = loading.load(path)
    plans = planned(config, wish)
    target = resolve(name, config)
    with held(config.store_url(), target):
        measured = measure(config, target, plans, quiet=as_json)
    if target.run_id is not None:
        keep(config.store_url(), target, measured)
    if as_json:
        print(msgspec.json.encode([described(target, one) for one in measured]).decode())
    else:
        show(measured)


def resolve(name: str, config: Config) -> Target:
    """A directory, a `hub:` name, `external(NAME)` of the file's servers, or a checkpoint's id,
    `run@version`, `run@latest` in the store.

    Raises ConfigError and StoreError where it is none, CheckpointError where it is corrupt.
    """
    if Path(name).is_dir():
        path = Path(name)
        identity = manifest.verify(path) if (path / manifest.FILE).exists() else None
        return Target(path, identity.checkpoint_id if identity else path.resolve().name)
    if name.startswith(hub.PREFIX):
        return Target(hub.fetch(name), name.removeprefix(hub.PREFIX).replace("/", "--"))
    if match := re.fullmatch(r"external\((.*)\)", name):
        return _external(match[1], config)
    if "/" in name:
        raise ConfigError(
            f"{name} is no directory", mend="name a model or checkpoint directory, or RUN@VERSION"
        )
    store = open_history(config.store_url())
    try:
        with store.read() as session:
            run, at, version = name.rpartition("@")
            found = registry.find_checkpoint(session, name)
            if at and found is None:
                found = lifecycle.checkpoint_at(session, runs.require_run(session, run), version)
            if found is None:
                raise ConfigError(
                    f"{name} is no directory and no checkpoint of {store.url}",
                    mend="name a directory, a checkpoint id or RUN@VERSION",
                )
            path = weights.fetch(found.path, config.cache())
            manifest.verify(path)
            return Target(path, found.checkpoint_id, found.run_id, found.version)
    finally:
        store.close()


def _external(name: str, config: Config) -> Target:
    """The target of a `[[policy]]` with engine external. Raises ConfigError."""
    check_external(config.policy)
    servers = {each.name: each for each in config.policy if each.engine == "external"}
    if name not in servers:
        raise ConfigError(f"no external [[policy]] is named {name}{nearest(name, servers)}")
    model = config.model.path
    path = hub.fetch(model) if model.startswith(hub.PREFIX) else Path(model)
    return Target(path, track_of(name), external=servers[name])


def planned(config: Config, wish: Wish) -> list[Plan]:
    """One plan a task. Raises ConfigError for a task that the file does not name."""
    for task in wish.tasks:
        if task not in config.tasks:
            raise ConfigError(f"no task {task} in the file{nearest(task, config.tasks)}")
    temperature = config.sampling.temperature if wish.temperature is None else wish.temperature
    return [
        Plan(
            task=task,
            split=wish.split or config.tasks[task].eval_split,
            temperature=temperature,
            items=wish.items or 10**9,
            repeats=wish.repeats,
        )
        for task in wish.tasks or config.tasks
    ]


def measure(
    config: Config, target: Target, plans: Sequence[Plan], *, quiet: bool = False
) -> list[Measured]:
    """Serve the target here and run the plans; a progress bar on stderr unless `quiet`."""
    model = manifest.base_of(target.path) or target.path
    check_model(model, config.model.chat_template)
    own = msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(config.model, path=str(model)),
        policy=[],
        tasks={plan.task: config.tasks[plan.task] for plan in plans},
    )
    found = sources(own)
    total = sum(min(p.items, len(found[p.task].items(p.split))) * p.repeats for p in plans)
    with served(own, target) as policy:
        evaluator = Evaluator(own, policy, found)
        try:
            with Progress(console=Console(stderr=True), disable=quiet, transient=True) as bar:
                line = bar.add_task("episodes", total=total)
                return evaluator.measure(plans, lambda done: bar.update(line, completed=done))
        finally:
            evaluator.close()


@contextmanager
def served(config: Config, target: Target) -> Iterator[LivePolicy]:
    """The target behind a local engine, or its own API, on a free loopback port."""
    if target.external is not None:
        from serving.external import measured

        with measured(config, target.external) as policy:
            yield policy
        return
    from serving.engine import LocalEngine
    from serving.served import Served
    from serving.server import Face, Server

    limits = config.policy_servers()[0]
    model = config.model
    engine = LocalEngine(model.device, model.dtype, limits.max_batch, limits.cache_tokens)
    try:
        engine.load(target.checkpoint_id, target.path)
        table = Served()
        table.serve(CURRENT, target.checkpoint_id, target.version or 0)
        http = Server(Face(engine, table, ""), "127.0.0.1", 0, guarded=False)
        try:
            version = target.version or 0
            yield LivePolicy("eval", http.url, CURRENT, target.checkpoint_id, version)
        finally:
            http.close()
    finally:
        engine.close()


def keep(url: str, target: Target, measured: Sequence[Measured]) -> None:
    """Rows of `evaluations`."""
    store = open_store(url)
    try:
        with store.write() as session:
            session.add_all(_row(target, one) for one in measured)
    finally:
        store.close()


def described(target: Target, one: Measured) -> Mapping[str, object]:
    """One JSON object of a measurement, flat."""
    return {
        "checkpoint_id": target.checkpoint_id,
        "run_id": target.run_id,
        "version": target.version,
        **msgspec.to_builtins(one.plan),
        **{k: v for k, v in msgspec.to_builtins(one).items() if k != "plan"},
    }


def show(measured: Sequence[Measured]) -> None:
    """The table."""
    ks = sorted({k for one in measured for k in one.pass_at if k > 1})
    heads = [*(f"pass@{k}" for k in ks), "turns", "tokens", "episodes", "statuses"]
    table = plain("task", "split", "success", "95 % interval", *heads)
    for one in measured:
        statuses = ", ".join(f"{name} {count}" for name, count in sorted(one.statuses.items()))
        failed = f", failed {one.failed}" if one.failed else ""
        table.add_row(
            one.plan.task,
            one.plan.split,
            f"{one.success:.1%}",
            f"{one.low:.1%} – {one.high:.1%}",
            *(f"{one.pass_at[k]:.1%}" for k in ks),
            f"{one.turns:.1f}",
            f"{one.tokens:.0f}",
            str(one.episodes),
            statuses + failed,
        )
    console().print(table)


def _row(target: Target, one: Measured) -> Evaluation:
    return Evaluation(
        evaluation_id=uuid.uuid4().hex,
        run_id=target.run_id,
        checkpoint_id=target.checkpoint_id,
        version=target.version,
        task=one.plan.task,
        split=one.plan.split,
        temperature=one.plan.temperature,
        items=min(one.plan.items, one.episodes + one.failed),
        episodes=one.episodes,
        success=one.success,
        low=one.low,
        high=one.high,
        metrics={
            "pass_at": {str(k): value for k, value in one.pass_at.items()},
            "reward": one.reward,
            "turns": one.turns,
            "tokens": one.tokens,
            "failed": one.failed,
            "statuses": dict(one.statuses),
        },
        created_at=now(),
    )
