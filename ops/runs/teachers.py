"""The teachers of a run: resolves each [[teacher]] to weights that stay the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.db.store import Store
from agentrl.ops.evaluation.target import digest, resolve
from agentrl.trainer.algorithm.presets import resolve_settings

if TYPE_CHECKING:
    from agentrl.trainer.distillation import PinnedTeacher
    from agentrl.trainer.engines.learner import Hardware, Learner


def pinned_teachers(config: Config, store: Store | None = None) -> list["PinnedTeacher"]:
    """Return the teachers, their files fetched. `store`: see `resolve`.

    Raises ConfigError, StoreError, CheckpointError.
    """
    from agentrl.trainer.distillation import PinnedTeacher

    found = []
    for each in config.teacher:
        try:
            target = resolve(each.checkpoint, config, store)
        except ConfigError as error:
            raise ConfigError(f'teacher "{each.name}": {error}', hint=error.hint) from error
        is_stored = target.run_id is not None
        found.append(
            PinnedTeacher(
                name=each.name,
                path=target.path,
                checkpoint=target.checkpoint_id if is_stored else str(target.path.resolve()),
                digest=target.fingerprint or digest(manifest.read(target.path).files),
                tasks=each.tasks or list(config.tasks),
                weight=each.weight,
                is_stored=is_stored,
            )
        )
    return found


def with_teachers(
    learner: "Learner",
    teachers: Sequence["PinnedTeacher"],
    policy: Path,
    config: Config,
    hardware: "Hardware",
) -> "Learner":
    """Return the learner, whose batches the teachers score first. `policy`: has its tokenizer."""
    from agentrl.trainer.distillation import DistillingLearner, TeacherScorer

    if not teachers:
        return learner
    scorer = TeacherScorer(teachers, policy, resolve_settings(config.trainer), hardware)
    return DistillingLearner(learner, scorer)
