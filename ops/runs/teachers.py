"""The teachers of a run: resolves each [[teacher]] to weights that stay the same, or to an API."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.core.retry import Backoff, Retry
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

LONGEST_PAUSE_S = 15.0  # between two rounds of requests to an external model that is away


@dataclass(frozen=True, slots=True)
class TeacherPolicies:
    """The external policies that teach. `find`: returns the live server of one, by name, or None.

    `token_env`: variable of their servers' bearer token. `stop`: ends waiting for them.
    """

    find: Callable[[str], LivePolicy | None] = lambda _name: None
    token_env: str = ""
    stop: threading.Event | None = None


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


def registered_policies(config: Config, store: Store, run_id: str) -> TeacherPolicies:
    """Return the policies of a run. `store`: of a process of the run, with its stop event."""

    def find(name: str) -> LivePolicy | None:
        return store.ask(lambda session: live_server(session, run_id, name))

    return TeacherPolicies(find, config.policy_token_env(), store.retry.stop)


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
    from agentrl.serving.local.adapter_sum import merge_layer
    from agentrl.trainer.distillation import DistillingLearner, TeacherScorer, check_tokenizer
    from agentrl.trainer.model.frozen_model import FrozenModel

    if not teachers:
        return learner
    settings, models = resolve_settings(config.trainer), list["TeacherModel"]()
    for each in teachers:
        if each.path is None:
            models.append(_external_teacher(config, each.name, external))
            continue
        check_tokenizer(each.name, each.path, policy)
        models.append(FrozenModel(each.path, settings, hardware, merge_layer))
    return DistillingLearner(learner, TeacherScorer(list(zip(teachers, models, strict=True))))


def _external_teacher(config: Config, name: str, external: TeacherPolicies) -> "ExternalTeacher":
    """`name`: of the [[teacher]]."""
    from agentrl.ops.runs.external_teacher import ExternalTeacher, ScoringServer
    from agentrl.trainer.engines.learner import TeacherAway
    from agentrl.workers.policies.client import PolicyClient

    policy = next(each.policy() for each in config.teacher if each.name == name)
    concurrency = config.policy_server(policy).external.concurrency
    server = ScoringServer(
        partial(external.find, policy),
        PolicyClient(token_env=external.token_env, connections=concurrency),
        concurrency,
        config.worker.completion_timeout_s,
    )
    backoff = Backoff(longest_s=LONGEST_PAUSE_S)
    return ExternalTeacher(
        name, server, Retry(f"teacher {name}", TeacherAway, stop=external.stop, backoff=backoff)
    )
