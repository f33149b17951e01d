"""On-policy distillation: teachers score the sampled tokens before the learner updates on them.

Batch ─▶ each teacher: log-probabilities of its tasks' loss tokens ─▶ Learner.update
                                   Metrics with a TeacherScore per trajectory ◀─┘
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from agentrl.checkpoints.manifest import Probe, find_base
from agentrl.core.errors import ConfigError
from agentrl.db.transitions.updates import TeacherScore
from agentrl.trainer.algorithm.advantages import Floats
from agentrl.trainer.batch import Batch
from agentrl.trainer.engines.learner import (
    OPEN,
    Gates,
    Learner,
    Metrics,
    WeightsWriter,
    proceed,
)
from agentrl.trainer.snapshots.snapshots import State

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class ResolvedTeacher:
    """A teacher whose model is known. `tasks`: that it teaches.

    `checkpoint`: ID of a checkpoint of the store (`is_stored`), a directory, or an external model.
    `path`: directory of its weights, and `digest`: SHA-256 over the digests of the files; an
    external model has neither.
    """

    name: str
    checkpoint: str
    tasks: Collection[str]
    weight: float
    path: Path | None = None
    digest: str = ""
    is_stored: bool = False


class TeacherModel(Protocol):
    """What scores tokens for a teacher."""

    def logprobs(self, batch: Batch, before_pass: Callable[[], object] = proceed) -> Floats:
        """Return [N] natural log-probabilities of the batch's loss tokens; of others any value.

        `before_pass`: called before each pass of a local model, or before requests; it may raise.
        Raises TeacherAway while the model is away, or if the process is told to stop meanwhile, and
        keeps what has been scored for the next call; raises PolicyError if it refuses the tokens.
        """


class TeacherScorer:
    """Scores the loss tokens of a batch with frozen teachers, one per task."""

    def __init__(self, teachers: Sequence[tuple[ResolvedTeacher, TeacherModel]]) -> None:
        self._teachers = teachers

    def score(self, batch: Batch, before_pass: Callable[[], object] = proceed) -> Batch:
        """Return the batch with the teachers' log-probabilities and weights. Raises TeacherAway.

        `before_pass`: see TeacherModel.
        """
        logprobs, weights = np.zeros((2, batch.tokens.size), np.float32)
        for teacher, model in self._teachers:
            own = [index for index, task in enumerate(batch.tasks) if task in teacher.tasks]
            mask = batch.loss_mask & np.isin(batch.token_tasks, own)
            if mask.any():
                own_tokens = replace(batch, loss_mask=mask)
                logprobs[mask] = model.logprobs(own_tokens, before_pass)[mask]
                weights[mask] = teacher.weight
        return replace(batch, teacher_logprobs=logprobs, teacher_weights=weights)

    def lineage(
        self, batch: Batch, reverse_kls: Sequence[float | None]
    ) -> list[TeacherScore | None]:
        """Return who scored each trajectory. reverse_kls: of each; None: it has no loss token."""
        by_task = {task: each for each, _ in self._teachers for task in each.tasks}
        ends = np.cumsum(batch.lengths)
        found: list[TeacherScore | None] = []
        for task_id, start, end, reverse_kl in zip(
            batch.task_ids, ends - batch.lengths, ends, reverse_kls, strict=True
        ):
            teacher = by_task.get(batch.tasks[task_id])
            if teacher is None or reverse_kl is None:
                found.append(None)
                continue
            known = reverse_kl if np.isfinite(reverse_kl) else None
            digest = teacher.digest or _digest_scores(batch, slice(start, end))
            found.append(TeacherScore(teacher.name, teacher.checkpoint, digest, known))
        return found


class DistillingLearner:
    """A Learner whose batches are scored by teachers first. Its state holds none of theirs."""

    def __init__(self, learner: Learner, scorer: TeacherScorer) -> None:
        self._learner, self._scorer = learner, scorer

    def update(self, batch: Batch, gates: Gates = OPEN) -> Metrics:
        scored = self._scorer.score(batch, gates.before_pass)
        figures = self._learner.update(scored, gates)
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


def check_tokenizer(teacher: str, path: Path, policy: Path) -> None:
    """Raise ConfigError unless two directories have the same tokens under the same IDs.

    `teacher`: name of that in `path`. An adapter without a tokenizer has that of its base.
    """
    own = path if (path / TOKENIZER).exists() else find_base(path) or path
    apart = _differing_tokens(own / TOKENIZER, policy / TOKENIZER)
    if apart:
        raise ConfigError(
            f'teacher "{teacher}": the tokenizer of {own} is not that of the policy: '
            f"{apart} differ",
            hint="name a teacher with the tokenizer of model.path",
        )


def _digest_scores(batch: Batch, trajectory: slice) -> str:
    """Return the hex SHA-256 of a trajectory's scores: float32, little-endian, in order."""
    scored = batch.teacher_weights[trajectory] > 0.0
    scores = batch.teacher_logprobs[trajectory][scored]
    return hashlib.sha256(scores.astype("<f4").tobytes()).hexdigest()


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
