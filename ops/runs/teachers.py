"""The teachers of a run: resolves each [[teacher]] to weights that stay the same, or to an API."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.registry.external_policies import live_server
from agentrl.db.store import Store
from agentrl.ops.configuration.serving import serving_config
from agentrl.ops.evaluation.target import Target, digest, resolve
from agentrl.trainer.algorithm.presets import resolve_settings

if TYPE_CHECKING:
    from agentrl.ops.runs.external_teacher import ExternalTeacher
    from agentrl.trainer.distillation import ResolvedTeacher, TeacherModel
    from agentrl.trainer.engines.learner import Hardware, Learner


@dataclass(frozen=True, slots=True)
class TeacherPolicies:
    """The external policies that teach. `find`: returns the live server of one, by name, or None.

    `token_env`: variable of their servers' bearer token. `stop`: no answer is awaited once it is
    set.
    """

    find: Callable[[str], LivePolicy | None] = lambda _name: None
    token_env: str = ""
    stop: threading.Event = field(default_factory=threading.Event)


def resolve_teachers(config: Config, store: Store | None = None) -> list["ResolvedTeacher"]:
    """Return the teachers, their files fetched. `store`: see `resolve`.

    Raises ConfigError, StoreError, CheckpointError.
    """
    from agentrl.trainer.distillation import ResolvedTeacher

    found = []
    for each in config.teacher:
        own = partial(ResolvedTeacher, each.name, tasks=each.tasks or list(config.tasks))
        try:
            target = resolve(each.checkpoint, config, store)
        except ConfigError as error:
            raise ConfigError(f'teacher "{each.name}": {error}', hint=error.hint) from error
        if target.external is not None:
            model = f"{target.name}: {target.external.external.model}"
            found.append(own(checkpoint=model, weight=each.weight))
            continue
        is_stored = target.run_id is not None
        found.append(
            own(
                checkpoint=target.checkpoint_id if is_stored else str(target.path.resolve()),
                weight=each.weight,
                path=target.path,
                digest=_digest_files(target, config),
                is_stored=is_stored,
            )
        )
    return found


def _digest_files(target: Target, config: Config) -> str:
    """Return the SHA-256 over the digests of a checkpoint's files, and of an adapter's base.

    The base is verified as the checkpoint is. Raises CheckpointError.
    """
    own = target.fingerprint or digest(manifest.read(target.path).files)
    base = manifest.find_base(target.path)
    return digest([own, resolve(str(base), config).fingerprint]) if base else own


def registered_policies(
    config: Config, store: Store, run_id: str, stop: threading.Event
) -> TeacherPolicies:
    """Return the policies of a run."""

    def find(name: str) -> LivePolicy | None:
        return store.ask(lambda session: live_server(session, run_id, name))

    return TeacherPolicies(find, config.policy_token_env(), stop)


@contextmanager
def serve_policies(config: Config, stop: threading.Event) -> Iterator[TeacherPolicies]:
    """Serve the external policies that teach in this process. Each has its whole budget.

    Raises ConfigError.
    """
    from agentrl.serving.external.engine import serve_for_evaluation

    own = serving_config(config)
    with ExitStack() as stack:
        served = {
            name: stack.enter_context(serve_for_evaluation(own, config.policy_server(name)))
            for name in sorted(config.teacher_policies())
        }
        yield TeacherPolicies(served.get, stop=stop)


def with_teachers(  # noqa: PLR0913, PLR0917 - what local and external teachers need
    learner: "Learner",
    teachers: Sequence["ResolvedTeacher"],
    policy: Path,
    config: Config,
    hardware: "Hardware",
    external: TeacherPolicies = TeacherPolicies(),
) -> "Learner":
    """Return the learner, whose batches the teachers score first. `policy`: has its tokenizer.

    Raises ConfigError, CheckpointError.
    """
    from agentrl.serving.local.adapter_sum import merge_adapter
    from agentrl.trainer.distillation import DistillingLearner, TeacherScorer, check_tokenizer
    from agentrl.trainer.model.frozen_model import FrozenModel

    if not teachers:
        return learner
    settings = resolve_settings(config.trainer)
    found: list[tuple[ResolvedTeacher, TeacherModel]] = []
    # External ones first: while they are away, no local one scores in vain.
    for each in sorted(teachers, key=lambda each: each.path is not None):
        if each.path is None:
            found.append((each, _external_teacher(config, each.name, external)))
            continue
        check_tokenizer(each.name, each.path, policy)
        found.append((each, FrozenModel(each.path, settings, hardware, merge_adapter)))
    return DistillingLearner(learner, TeacherScorer(found))


def _external_teacher(config: Config, name: str, external: TeacherPolicies) -> "ExternalTeacher":
    """`name`: of the [[teacher]]."""
    from agentrl.ops.runs.external_teacher import ExternalTeacher, ScoringServer
    from agentrl.workers.policies.client import PolicyClient

    policy = next(each.policy() for each in config.teacher if each.name == name)
    concurrency = config.policy_server(policy).external.concurrency
    server = ScoringServer(
        partial(external.find, policy),
        PolicyClient(token_env=external.token_env, connections=concurrency),
        concurrency,
        config.worker.completion_timeout_s,
    )
    return ExternalTeacher(name, server, external.stop)
