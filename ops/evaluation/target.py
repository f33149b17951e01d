"""Resolves the name of an evaluated policy to a directory and an identity."""

import hashlib
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy.orm import Session

from agentrl.checkpoints import checkpoint_store, manifest
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import External, PolicyServer
from agentrl.core.errors import ConfigError, nearest
from agentrl.core.types import CheckpointState
from agentrl.db.admin.readonly import open_history
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints
from agentrl.db.registry.external_policies import track_of
from agentrl.db.store import Store
from agentrl.db.transitions import lifecycle, runs
from agentrl.ops.configuration.configs import check_external, check_model
from agentrl.ops.models import hub

ALL = "all"


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured. `run_id`, `version`: of a checkpoint of the store; None of a directory.

    `external`: the server of an external model; `path` is then the model whose tokens count.
    `expert`: the tasks' own experts play; `path` says nothing then.
    `name`: for people. `fingerprint`: of what a checkpoint's id does not name for good.
    """

    path: Path
    checkpoint_id: str
    run_id: str | None = None
    version: int | None = None
    external: PolicyServer | None = None
    name: str = ""
    fingerprint: str = ""
    expert: bool = False


EXPERT = Target(Path(), "expert", name="expert", expert=True)


def resolve(name: str, config: Config, store: Store | None = None) -> Target:
    """A directory, a `hub:` name, `external(NAME)` of the file's servers, or a checkpoint's id,
    `run@version`, `run@latest` in the store.

    `store`: of a process of a run, which waits for it, and for an object store, as long as they are
    away; else the file's is opened.

    Raises ConfigError and StoreError where it is none, CheckpointError where it is corrupt.
    """
    if Path(name).is_dir():
        path = Path(name)
        identity = manifest.verify(path) if (path / manifest.FILE).exists() else None
        own = identity.checkpoint_id if identity else path.resolve().name
        files = identity.files if identity else manifest.digests(path)
        return Target(path, own, name=name, fingerprint=digest(files))
    if name.startswith(hub.PREFIX):
        path, own = hub.fetch_model(name), name.removeprefix(hub.PREFIX).replace("/", "--")
        return Target(path, own, name=name, fingerprint=digest(hub.model_digests(path)))
    if match := re.fullmatch(r"external\((.*)\)", name):
        return _external(match[1], config)
    if "/" in name:
        raise ConfigError(
            f"{name} is not a directory",
            hint="give a model or checkpoint directory, or RUN@VERSION",
        )
    if store is not None:
        return _find_stored(store, name, config)
    with closing(open_history(config.store_url())) as history:
        return _find_stored(history, name, config)


def _find_stored(store: Store, name: str, config: Config) -> Target:
    """A checkpoint of the store, its files here."""
    checkpoint, own = store.ask(lambda session: find(session, name, store.url))
    stop = store.retry.stop
    path = checkpoint_store.make_patience(stop).call(
        lambda: checkpoint_store.fetch(checkpoint.path, config.cache(), stop)
    )
    manifest.verify(path)
    return Target(path, checkpoint.checkpoint_id, checkpoint.run_id, checkpoint.version, name=own)


def find(session: Session, name: str, where: str) -> tuple[Checkpoint, str]:
    """A checkpoint of the store by its id, `run@version` or `run@latest`, and its name for people.

    Raises ConfigError, StoreError. `where`: the store, for the error.
    """
    run, at, version = name.rpartition("@")
    checkpoint = session.get(Checkpoint, name)
    if at and checkpoint is None:
        checkpoint = lifecycle.checkpoint_at(session, runs.require_run(session, run), version)
    if checkpoint is None:
        raise ConfigError(
            f"{name} is neither a directory nor a checkpoint of {where}",
            hint="give a directory, a checkpoint id or RUN@VERSION",
        )
    live = checkpoint.state == CheckpointState.LIVE
    named = f"{session.get_one(Run, checkpoint.run_id).name}@{checkpoint.version}"
    return checkpoint, named if live else checkpoint.checkpoint_id


def versions(config: Config, names: Sequence[str]) -> list[str]:
    """Names of checkpoints of the file's run: versions, `latest`, `all`. Raises StoreError."""
    run = config.run.name
    if ALL not in names:
        return [f"{run}@{version}" for version in names]
    with closing(open_history(config.store_url())) as store, store.read() as session:
        live = checkpoints.live_checkpoints(session, runs.require_run(session, run).run_id)
        return [f"{run}@{row.version}" for row in live]


def fit_config(config: Config, target: Target) -> Config:
    """The configuration with the target as its model and no servers. Raises ConfigError."""
    if target.expert:
        return config
    path = manifest.find_base(target.path) or target.path
    check_model(path, config.model)
    model = msgspec.structs.replace(config.model, path=str(path))
    return msgspec.structs.replace(config, model=model, policy=[])


def _external(name: str, config: Config) -> Target:
    """The target of a `[[policy]]` with engine external. Raises ConfigError."""
    check_external(config.policy)
    servers = {each.name: each for each in config.policy if each.engine == "external"}
    if name not in servers:
        raise ConfigError(f"no external [[policy]] is named {name}{nearest(name, servers)}")
    model = config.model.path
    path = hub.fetch_model(model) if model.startswith(hub.PREFIX) else Path(model)
    external = servers[name].external
    values, usual = msgspec.structs.asdict(external), msgspec.structs.asdict(External())
    known = {key: values[key] for key in ("url", "model", "parameters")}
    # left out where usual, so that evaluations from before they counted are found
    known |= {key: values[key] for key in ("answer_tokens", "tokens") if values[key] != usual[key]}
    own = track_of(name)
    return Target(path, own, external=servers[name], name=own, fingerprint=digest(known))


def digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()
