"""Trains a student policy by cloning, in phases, and measures its success.

Demonstrators without errors teach reading and copying. Demonstrators with errors then make the
policy try other actions, until it succeeds only sometimes: reinforcement learning needs groups with
spread.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import nan
from random import Random
from statistics import fmean
from types import MappingProxyType

from agentrl.envs.contract import TaskSource
from agentrl.ops.interruption import Interruption
from agentrl.ops.warmstart.options import Phase, WarmstartOptions
from agentrl.ops.warmstart.student_policy import Skill, StudentPolicy
from agentrl.trainer.model import cloning
from agentrl.trainer.model.cloning import Cloner, Demonstration, learns_by_muon
from agentrl.trainer.snapshots.snapshots import State

LOSSES = 10  # steps that a reported loss is the mean of
FRESH = 3e-3  # learning rate of random weights
GENTLE = 4e-4  # of weights that know something: more, and what they copy by is lost
PRETRAINED = 2e-4  # of weights too many for Muon
ADAPTER = 1e-3  # of an adapter's weights


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a warm start. `success`: sampled, by task, when it was just measured.

    `left_s`: estimated seconds to the end of this phase, without measurements.
    """

    phase: int
    step: int
    steps: int
    loss: float
    tokens_per_s: float
    left_s: float
    success: Mapping[str, float] = field(default_factory=dict)


Watch = Callable[[Progress], None]
Lessons = Mapping[str, Sequence[Demonstration]]  # of a phase, by task


@dataclass
class PhaseRecord:
    """Progress of a phase: `steps` done, and the success measured after each part.

    `cloner`: its state; None at the beginning. `earlier`: steps of previous phases. `loss`: mean of
    the latest steps, nats per token.
    """

    phase: int
    steps: int = 0
    successes: list[dict[str, float]] = field(default_factory=list)
    cloner: State | None = None
    earlier: int = 0
    loss: float = nan


@dataclass
class CloningTrainer:
    """Trains a student policy phase by phase.

    `save`: keeps a record, at least every `options.save_s` seconds. `before`: the lessons of the
    previous phase; empty: there was none.
    """

    student: StudentPolicy
    options: WarmstartOptions
    sources: Mapping[str, TaskSource]
    progress: Watch
    interruption: Interruption
    save: Callable[[PhaseRecord, State], None]
    before: Lessons = field(default_factory=dict)

    def learn(self, phase: Phase, lessons: Lessons, begun: PhaseRecord) -> PhaseRecord:
        """Train one phase to its end, continuing from `begun`.

        Raises KeyboardInterrupt at a signal, after saving a record.
        """
        rate, options = self._rate(phase), self.options
        cloner = Cloner(self.student.model, rate, phase.steps, options.dtype, options.chunk_logits)
        if begun.cloner is not None:
            cloner.load_state(begun.cloner)
        record = PhaseRecord(begun.phase, earlier=begun.earlier, loss=begun.loss)
        pace = _Pace(begun.phase, phase.steps)
        try:
            for batch in self._batches(lessons, phase, begun, record, pace):
                with self.interruption.whole():
                    loss = cloner.step(batch)
                    record.steps += 1
                    record.loss = pace.tick(record.steps, loss, batch)
                    if pace.is_due(options.save_s):
                        self.save(record, cloner.state())
                self.progress(pace.progress())
        except KeyboardInterrupt:
            if record.steps >= begun.steps:  # else its steps are not yet those of the cloner
                self.save(record, cloner.state())
            raise
        self.save(record, cloner.state())
        self.pass_over(lessons)
        return record

    def _rate(self, phase: Phase) -> float:
        """Return AdamW's learning rate: the phase's own, or the default for the weights."""
        if phase.rate is not None:
            return phase.rate
        if self.options.model is None and not self.before:
            return FRESH
        if self.student.is_adapter:
            return ADAPTER
        return GENTLE if learns_by_muon(self.student.model) else PRETRAINED

    def pass_over(self, lessons: Lessons) -> None:
        """Go on after a phase that is finished, perhaps by an earlier process."""
        self.before = lessons

    def _batches(
        self,
        now: Lessons,
        phase: Phase,
        begun: PhaseRecord,
        record: PhaseRecord,
        pace: "_Pace",
    ) -> Iterator[list[Demonstration]]:
        """Yield the remaining batches of a phase; measure success between its parts.

        Batches and measurements of an earlier process are skipped, in the same order.
        """
        random = Random(f"{self.options.seed} {begun.phase}")
        measured = list(begun.successes)
        while record.steps < phase.steps:
            chosen = self._choose(now, phase, record.successes[-1] if record.successes else {})
            batches = cloning.batches(chosen, self.options.batch_tokens, random)
            ahead = phase.steps if phase.until is None else phase.check_every
            end = min(record.steps + ahead, phase.steps)
            for batch in islice(batches, end - record.steps):
                if record.steps < begun.steps:
                    record.steps += 1
                else:
                    yield batch
            success = measured.pop(0) if measured else self._success(phase)
            record.successes.append(success)
            self.progress(pace.progress(success))
            if phase.until is not None and max(success.values(), default=0.0) <= phase.until:
                return

    def _choose(
        self, now: Lessons, phase: Phase, success: Mapping[str, float]
    ) -> list[Demonstration]:
        """Return each task's demonstrations, of the previous phase if its success is too low."""
        low = {name for name, share in success.items() if share <= (phase.until or 0.0)}
        chosen = (self.before.get(name, now[name]) if name in low else now[name] for name in now)
        return [lesson for lessons in chosen for lesson in lessons]

    def skills(self, items: int) -> dict[str, Skill]:
        """Measure the skill in each task on `items` held-out items."""
        return {
            name: self.student.skill(self.sources[name], task, items, self.options.sampling)
            for name, task in self.options.tasks.items()
        }

    def _success(self, phase: Phase) -> dict[str, float]:
        if not phase.checked:
            return {}
        sampling = self.options.sampling
        return {
            name: self.student.success(self.sources[name], task, phase.checked, sampling)
            for name, task in self.options.tasks.items()
        }


class _Pace:
    """Measures speed and latest losses of a phase, and the time since the last save."""

    def __init__(self, phase: int, steps: int) -> None:
        self._phase, self._steps = phase, steps
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._spent, self._tokens, self._ticks, self._step = 0.0, 0, 0, 0
        self._last = self._saved = time.monotonic()

    def tick(self, step: int, loss: float, batch: Sequence[Demonstration]) -> float:
        """Count a step; return the mean loss of the latest steps."""
        now = time.monotonic()
        self._spent += now - self._last
        self._last = now
        self._losses.append(loss)
        self._tokens += sum(len(lesson.mask) for lesson in batch)
        self._ticks += 1
        self._step = step
        return fmean(self._losses)

    def is_due(self, every_s: float) -> bool:
        """Return whether this much time has passed since it was last due."""
        if time.monotonic() - self._saved < every_s:
            return False
        self._saved = time.monotonic()
        return True

    def progress(self, success: Mapping[str, float] = MappingProxyType({})) -> Progress:
        """Return the progress of the phase. Measurements do not count as step time."""
        if success:
            self._last = time.monotonic()
        speed = self._tokens / self._spent if self._spent else 0.0
        left = (self._steps - self._step) * self._spent / self._ticks if self._ticks else nan
        loss = fmean(self._losses) if self._losses else nan
        return Progress(self._phase, self._step, self._steps, loss, speed, left, success)
