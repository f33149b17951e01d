"""On-policy distillation: teachers score the sampled tokens before the learner updates on them.

Batch ─▶ each teacher: log-probabilities of its tasks' loss tokens ─▶ Learner.update
                                   Metrics with a TeacherScore per trajectory ◀─┘
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agentrl.checkpoints.manifest import Probe, find_base
from agentrl.core.config.sections.training import Lora
from agentrl.core.errors import ConfigError
from agentrl.db.transitions.updates import TeacherScore
from agentrl.trainer.algorithm.objective import Objective
from agentrl.trainer.algorithm.presets import Settings
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import Hardware, Learner, Metrics, WeightsWriter, proceed
from agentrl.trainer.model.packing import micro_batches
from agentrl.trainer.model.trainable_model import FullModel
from agentrl.trainer.snapshots.snapshots import State

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class PinnedTeacher:
    """A teacher and the directory of its weights. `tasks`: that it teaches.

    `checkpoint`: ID of a checkpoint of the store (`is_stored`), or directory. `digest`: SHA-256
    over the digests of the files.
    """

    name: str
    path: Path
    checkpoint: str
    digest: str
    tasks: Collection[str]
    weight: float
    is_stored: bool = False


class TeacherScorer:
    """Scores the loss tokens of a batch with frozen teachers, one per task."""

    def __init__(
        self,
        teachers: Sequence[PinnedTeacher],
        policy: Path,
        settings: Settings,
        hardware: Hardware,
    ) -> None:
        """`policy`: directory with the policy's tokenizer. Teachers have the hardware's dtype.

        Raises CheckpointError for a model that cannot be loaded, and ConfigError for an adapter or
        another tokenizer.
        """
        for each in teachers:
            _check_files(each, policy)
        frozen = replace(hardware, weights_dtype=hardware.dtype)
        plain = replace(settings, kl_weight=0.0, gradient_checkpointing=False, lora=Lora())
        self._teachers = [(each, FullModel(each.path, plain, frozen)) for each in teachers]
        self._objective = Objective(plain, frozen, self._teachers[0][1].reference)
        self._budget = settings.pass_tokens

    def score(self, batch: Batch) -> Batch:
        """Return the batch with the teachers' log-probabilities and weights.

        Each token is scored at the temperature it was sampled at.
        """
        logprobs, weights = np.zeros((2, batch.tokens.size), np.float32)
        for teacher, loaded in self._teachers:
            own = [index for index, task in enumerate(batch.tasks) if task in teacher.tasks]
            mask = batch.loss_mask & np.isin(batch.token_tasks, own)
            for micro in micro_batches(replace(batch, loss_mask=mask), self._budget):
                logprobs[micro.sources] = self._objective.logprobs(loaded.model, micro)
            weights[mask] = teacher.weight
        return replace(batch, teacher_logprobs=logprobs, teacher_weights=weights)

    def lineage(
        self, batch: Batch, reverse_kls: Sequence[float | None]
    ) -> list[TeacherScore | None]:
        """Return who scored each trajectory. reverse_kls: of each; None: it has no loss token."""
        by_task = {task: each for each, _ in self._teachers for task in each.tasks}
        found: list[TeacherScore | None] = []
        for task_id, reverse_kl in zip(batch.task_ids, reverse_kls, strict=True):
            teacher = by_task.get(batch.tasks[task_id])
            if teacher is None or reverse_kl is None:
                found.append(None)
                continue
            known = reverse_kl if np.isfinite(reverse_kl) else None
            found.append(TeacherScore(teacher.name, teacher.checkpoint, teacher.digest, known))
        return found


class DistillingLearner:
    """A Learner whose batches are scored by teachers first. Its state holds none of theirs."""

    def __init__(self, learner: Learner, scorer: TeacherScorer) -> None:
        self._learner, self._scorer = learner, scorer

    def update(self, batch: Batch, before_step: Callable[[], object] = proceed) -> Metrics:
        scored = self._scorer.score(batch)
        figures = self._learner.update(scored, before_step)
        lineage = self._scorer.lineage(scored, figures.reverse_kls)
        return replace(figures, teacher_scores=lineage)

    def copy_weights(self) -> WeightsWriter:
        return self._learner.copy_weights()

    def probe(self) -> Probe:
        return self._learner.probe()

    def state(self) -> State:
        return self._learner.state()

    def load_state(self, state: State) -> None:
        self._learner.load_state(state)


def _check_files(teacher: PinnedTeacher, policy: Path) -> None:
    if find_base(teacher.path) is not None:
        raise ConfigError(
            f'teacher "{teacher.name}": {teacher.path} is an adapter, not a whole model',
            hint="write a whole model with `agentrl export --merge-lora` and name its directory",
        )
    apart = _differing_tokens(teacher.path / TOKENIZER, policy / TOKENIZER)
    if apart:
        raise ConfigError(
            f'teacher "{teacher.name}": the tokenizer of {teacher.path} is not that of the policy: '
            f"{apart} differ",
            hint="name a teacher with the tokenizer of model.path",
        )


def _differing_tokens(teacher: Path, policy: Path) -> str:
    """Return how two tokenizers differ in the IDs of tokens; empty: in nothing."""
    from tokenizers import Tokenizer

    try:
        if teacher.read_bytes() == policy.read_bytes():
            return ""
        first, second = (
            Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
            for path in (teacher, policy)
        )
    except Exception as error:  # tokenizers raises nothing narrower
        raise ConfigError(f"the tokenizer {teacher} cannot be compared with {policy}") from error
    count = len(dict(first.items() ^ second.items()))
    return f"{count} tokens" if count else ""
