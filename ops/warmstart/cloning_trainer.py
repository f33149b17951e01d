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

from agentrl.core.config import Dtype, Task
from agentrl.envs.contract import TaskSource
from agentrl.ops.interruption import Interruption
from agentrl.ops.warmstart import demonstrations
from agentrl.ops.warmstart.demonstrations import Transcript
from agentrl.ops.warmstart.student_policy import Apprentice, Skill
from agentrl.trainer.model import cloning
from agentrl.trainer.model.cloning import Cloner, Demonstration, learns_by_muon
from agentrl.trainer.snapshots import State

LOSSES = 10  # steps that a reported loss is the mean of
FRESH = 3e-3  # learning rate of random weights
GENTLE = 4e-4  # of weights that know something: more, and what they copy by is lost
PRETRAINED = 2e-4  # of weights too many for Muon


@dataclass(frozen=True, slots=True)
class Phase:
    """`noise`: the experts' chance of a fault a turn, by task. `steps`: optimizer steps at most.

    `until`: the phase ends once every task's sampled success on `checked` training items is at most
    this; looked at every `check_every` steps. A task that is there before the others goes back to
    the phase before's demonstrations. `rate`: of learning; None suits the weights it meets.
    Success is measured at the end as well; with `checked` 0 it never is.
    """

    noise: Mapping[str, float]
    steps: int
    until: float | None = None
    rate: float | None = None
    check_every: int = 40
    checked: int = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a warm start stands. `success`: of tasks, sampled, when it was just measured.

    `left_s`: seconds until the end of this phase at the pace so far, without measurements.
    """

    phase: int
    step: int
    steps: int
    loss: float
    tokens_per_s: float
    left_s: float
    success: Mapping[str, float] = field(default_factory=dict)


Watch = Callable[[Progress], None]
Transcripts = Mapping[str, Sequence[Transcript]]  # of a phase, by task


@dataclass
class PhaseRecord:
    """How far a phase is: `steps` done, and the success measured after each of its parts.

    `cloner`: what it goes on from; None at its beginning. `earlier`: steps of the phases before.
    `loss`: mean of the latest steps, nats a token.
    """

    phase: int
    steps: int = 0
    successes: list[dict[str, float]] = field(default_factory=list)
    cloner: State | None = None
    earlier: int = 0
    loss: float = nan


@dataclass
class School:
    """Teaches an apprentice phase by phase. `fresh`: its weights are random.

    `batch_tokens`: tokens of one step. `save`: keeps a record, at least every `save_s` seconds.
    """

    apprentice: Apprentice
    tasks: Mapping[str, Task]
    sources: Mapping[str, TaskSource]
    batch_tokens: int
    seed: int
    fresh: bool
    dtype: Dtype
    progress: Watch
    interruption: Interruption
    save: Callable[[PhaseRecord, State], None]
    save_s: float = 300.0
    clock: Callable[[], float] = time.monotonic
    before: dict[str, list[Demonstration]] = field(default_factory=dict)

    def learn(self, phase: Phase, transcripts: Transcripts, begun: PhaseRecord) -> PhaseRecord:
        """Learn one phase, from where `begun` stands, to its end.

        Raises KeyboardInterrupt at a signal, after a record has been saved.
        """
        cloner = Cloner(self.apprentice.model, self._rate(phase), phase.steps, self.dtype)
        if begun.cloner is not None:
            cloner.load_state(begun.cloner)
        now = {name: self._encoded(each) for name, each in transcripts.items()}
        record = PhaseRecord(begun.phase, earlier=begun.earlier, loss=begun.loss)
        pace = _Pace(begun.phase, phase.steps, self.clock)
        try:
            for batch in self._batches(now, phase, begun, record, pace):
                with self.interruption.whole():
                    loss = cloner.step(batch)
                    record.steps += 1
                    record.loss = pace.tick(record.steps, loss, batch)
                    if pace.is_due(self.save_s):
                        self.save(record, cloner.state())
                self.progress(pace.progress())
        except KeyboardInterrupt:
            if record.steps >= begun.steps:  # else its steps are not yet those of the cloner
                self.save(record, cloner.state())
            raise
        self.save(record, cloner.state())
        self.before, self.fresh = now, False
        return record

    def _rate(self, phase: Phase) -> float:
        """AdamW's learning rate: the phase's own, else what suits the weights."""
        if phase.rate is not None:
            return phase.rate
        if self.fresh:
            return FRESH
        return GENTLE if learns_by_muon(self.apprentice.model) else PRETRAINED

    def pass_over(self, transcripts: Transcripts) -> None:
        """A phase that an earlier process has learned."""
        self.before = {name: self._encoded(each) for name, each in transcripts.items()}
        self.fresh = False

    def _batches(
        self,
        now: Mapping[str, list[Demonstration]],
        phase: Phase,
        begun: PhaseRecord,
        record: PhaseRecord,
        pace: "_Pace",
    ) -> Iterator[list[Demonstration]]:
        """The batches of a phase that are still to learn; measures success between its parts.

        What an earlier process learned and measured is passed over, in the same order.
        """
        random = Random(f"{self.seed} {begun.phase}")
        measured = list(begun.successes)
        while record.steps < phase.steps:
            lessons = self._lessons(now, phase, record.successes[-1] if record.successes else {})
            batches = cloning.batches(lessons, self.batch_tokens, random)
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

    def _lessons(
        self, now: Mapping[str, list[Demonstration]], phase: Phase, success: Mapping[str, float]
    ) -> list[Demonstration]:
        """Each task's demonstrations, those of the phase before where it succeeds too seldom."""
        low = {name for name, share in success.items() if share <= (phase.until or 0.0)}
        chosen = (self.before.get(name, now[name]) if name in low else now[name] for name in now)
        return [lesson for lessons in chosen for lesson in lessons]

    def _encoded(self, transcripts: Sequence[Transcript]) -> list[Demonstration]:
        return [demonstrations.encode(each, self.apprentice.template) for each in transcripts]

    def skills(self, items: int) -> dict[str, Skill]:
        """Of each task, on `items` held-out ones."""
        return {
            name: self.apprentice.skill(self.sources[name], task, items)
            for name, task in self.tasks.items()
        }

    def _success(self, phase: Phase) -> dict[str, float]:
        if not phase.checked:
            return {}
        return {
            name: self.apprentice.success(self.sources[name], task, phase.checked)
            for name, task in self.tasks.items()
        }


class _Pace:
    """How fast a phase goes, its latest losses, and when it was saved last."""

    def __init__(self, phase: int, steps: int, clock: Callable[[], float]) -> None:
        self._phase, self._steps, self._clock = phase, steps, clock
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._spent, self._tokens, self._ticks, self._step = 0.0, 0, 0, 0
        self._last = self._saved = clock()

    def tick(self, step: int, loss: float, batch: Sequence[Demonstration]) -> float:
        """Count a step; return the mean loss of the latest ones."""
        now = self._clock()
        self._spent += now - self._last
        self._last = now
        self._losses.append(loss)
        self._tokens += sum(len(lesson.mask) for lesson in batch)
        self._ticks += 1
        self._step = step
        return fmean(self._losses)

    def is_due(self, every_s: float) -> bool:
        """Whether so much time has passed since it was so last."""
        if self._clock() - self._saved < every_s:
            return False
        self._saved = self._clock()
        return True

    def progress(self, success: Mapping[str, float] = MappingProxyType({})) -> Progress:
        """Where the phase stands. A measurement counts as no time of a step."""
        if success:
            self._last = self._clock()
        speed = self._tokens / self._spent if self._spent else 0.0
        left = (self._steps - self._step) * self._spent / self._ticks if self._ticks else nan
        loss = fmean(self._losses) if self._losses else nan
        return Progress(self._phase, self._step, self._steps, loss, speed, left, success)
