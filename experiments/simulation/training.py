"""Trains one arm with one seed until its token budget is used, then evaluates it.

streams of items ─▶ groups ─▶ arena.play ─▶ spread? ─▶ Batch ─▶ learner.update ─▶ arena.publish
                      ▲                                                               │
                      └──────────────── while tokens are left ────────────────────────┘
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from agentrl.checkpoints.directories import publish, remove
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import CURRENT, SOLVED
from agentrl.envs.contract import Item, TaskSource
from agentrl.experiments.findings import Check, Design, Point, Skill, Training
from agentrl.experiments.report.comparison import is_untrained
from agentrl.experiments.simulation.admission import Admission
from agentrl.experiments.simulation.gradients import Gauge
from agentrl.experiments.simulation.offline_adaptive import OfflineWeights
from agentrl.experiments.simulation.simulator import Job, Simulator
from agentrl.experiments.simulation.statistics import (
    VisitedStates,
    distinct_histories,
    mean_metrics,
    shares_of_tracks,
    success_share,
)
from agentrl.ops.runs.teachers import resolve_teachers, with_teachers
from agentrl.trainer.algorithm.presets import Settings, resolve_settings
from agentrl.trainer.batch import (
    Batch,
    TrainableGroup,
    assemble_batch,
    has_spread,
    split_by_variance,
)
from agentrl.trainer.engines.learner import Hardware
from agentrl.trainer.engines.torch_learner import TorchLearner

KEPT = {
    *("entropy", "effective_sample_size", "max_ratio", "clip_fraction", "grad_norm"),
    *(f"mismatch_k3{part}" for part in ("", "_fresh", "_lagged")),
    *(f"effective_sample_size{part}" for part in ("_fresh", "_lagged")),
}
CHECK, SKILL = "check", "skill"  # why held-out items are played
Groups = Mapping[str, Sequence[Trajectory]]  # of a round, by group_id
ReportProgress = Callable[[str, int], None]  # what goes on, tokens used so far


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to act: the tracks of the pool, and how they are drawn for steps.

    `pinned`: policies of other trainings, by the name in their track.
    """

    name: str
    tracks: Sequence[str]
    sampling: Sampling
    pinned: Mapping[str, Path] = field(default_factory=dict)


@dataclass
class Trainee:
    """A training in progress. `report_progress`: receives progress. `stop`: checked often.

    `kept`: directory for the trained policy; None: it is not kept.
    """

    config: Config
    sources: Mapping[str, TaskSource]
    design: Design
    arm: Arm
    seed: int
    report_progress: ReportProgress = lambda _what, _tokens: None
    stop: threading.Event = field(default_factory=threading.Event)
    kept: Path | None = None

    def train(self) -> Training:
        """Train and measure. Raises Interrupted, CheckpointError, EnvironmentFailure."""
        began = time.monotonic()
        with rounds(self) as played:
            points, checks = [], [self.check(played)]
            every = self.design.tokens / (self.design.checks + 1)
            for point in played.points():
                points.append(point)
                due = point.tokens >= every * len(checks)
                if due and len(checks) <= self.design.checks:
                    checks.append(self.check(played))
            skills = list(self._skills(played))
            if self.kept is not None:
                played.keep_policy(self.kept)
        return Training(
            design=self.design,
            arm=self.arm.name,
            seed=self.seed,
            seconds=round(time.monotonic() - began, 1),
            episodes=played.episodes,
            points=points,
            checks=checks,
            skills=skills,
            within={task: sum(n) / len(n) for task, n in played.visited.within.items()},
        )

    def check(self, played: "Rounds") -> Check:
        """Measure the training policy, with the same items and seeds for every arm."""
        solved = self.solved(played, self.alone(), self.design.check_items, CHECK)
        self.report_progress("checked", played.tokens)
        return Check(
            tokens=played.tokens,
            version=played.simulator.version,
            success={
                task: sum(counts) / len(counts) / self.design.check_attempts
                for task, (counts, _, _) in solved.items()
            },
        )

    def _skills(self, played: "Rounds") -> Iterator[Skill]:
        """Measure the trained policy, and the mixture if it differs."""
        ways = {"policy": self.alone()}
        if self.arm.sampling.strategy != CURRENT:
            ways["mixture"] = self.arm
        for acting, arm in ways.items():
            self.report_progress(f"measuring the {acting}", played.tokens)
            found = self.solved(played, arm, self.design.items, SKILL)
            for task, (solved, histories, metrics) in found.items():
                yield Skill(acting, task, solved, histories, metrics)

    def alone(self) -> Arm:
        """Let only the newest checkpoint act."""
        sampling = replace(self.config.sampling, strategy=CURRENT)
        return Arm(CURRENT, self.arm.tracks, sampling)

    def _held_out(self, task: str, source: TaskSource, count: int) -> list[Item]:
        """Return held-out items that depend on the seed, but not on the arm."""
        every = source.items(self.config.tasks[task].eval_split)
        first = self.seed * count
        return [every[number % len(every)] for number in range(first, first + count)]

    def solved(
        self, played: "Rounds", arm: Arm, items: int, why: str
    ) -> dict[str, tuple[list[int], list[int], dict[str, float]]]:
        """Return solved attempts and distinct histories of each held-out item, by task.

        And the means of the episodes' metrics, over the attempts that have them.
        """
        attempts = self.design.check_attempts if why == CHECK else self.design.attempts
        jobs = []
        for name, source in self.sources.items():
            for number, item in enumerate(self._held_out(name, source, items)):
                seed = f"{self.seed}/{why}/{name}/{number}"
                jobs += [
                    Job(item, f"{why}-{name}-{number}", member, f"{seed}/{member}")
                    for member in range(attempts)
                ]
        groups = played.groups(jobs, arm)
        every = {
            name: [each for each in groups.values() if each[0].task == name]
            for name in self.sources
        }
        return {
            name: (
                [sum(member.score >= SOLVED for member in members) for members in of_task],
                [distinct_histories(members) for members in of_task],
                mean_metrics([member for members in of_task for member in members]),
            )
            for name, of_task in every.items()
        }


def train_arm(trainee: Trainee) -> Training:
    """Train an arm; of an untrained one measure the policy that the configuration names."""
    if not is_untrained(trainee.arm.name):
        return trainee.train()
    design = trainee.design
    trainee.design = replace(design, tokens=0)
    return replace(trainee.train(), design=design)


@contextmanager
def rounds(trainee: Trainee, *, keep: bool = False) -> Iterator["Rounds"]:
    """Yield a training's rounds in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="agentrl-experiment-") as folder:
        yield Rounds(trainee, Path(folder), keep=keep)


class Rounds:
    """Plays groups and makes updates; holds the state of a round and the totals."""

    def __init__(self, trainee: Trainee, folder: Path, *, keep: bool) -> None:
        config = trainee.config
        self.simulator = Simulator(
            config,
            trainee.sources,
            folder,
            trainee.arm.tracks,
            trainee.stop,
            keep=keep,
            pinned=trainee.arm.pinned,
        )
        self.visited = VisitedStates()
        self.tokens = self.episodes = 0
        self._weighing = OfflineWeights(trainee.arm.sampling, config.dispatch.group_size)
        self._trainee = trainee
        self._settings: Settings = resolve_settings(config.trainer)
        hardware = Hardware.from_config(config.model, config.trainer)
        made = Path(config.model.path), self._settings, hardware
        self._taught = config.taught_tasks()
        self._learner = with_teachers(
            TorchLearner(*made), resolve_teachers(config), made[0], config, hardware
        )
        self._gauge = Gauge(*made) if trainee.design.gradients else None
        self.admission = Admission(config, trainee.sources, trainee.seed)

    def points(self) -> Iterator[Point]:
        """Play rounds until the tokens are used up."""
        while self.tokens < self._trainee.design.tokens:
            yield self.learn(self.next())

    def next(self) -> dict[str, list[Trajectory]]:
        """Play the next round."""
        count = self._trainee.config.dispatch.groups_per_update
        version = self.simulator.version
        jobs = [job for _ in range(count) for job in self.admission.group(version)]
        return self.groups(jobs, self._trainee.arm)

    def groups(self, jobs: Sequence[Job], arm: Arm) -> dict[str, list[Trajectory]]:
        """Return the groups in order of the jobs, with their members in order."""
        found: dict[str, list[Trajectory]] = {job.group_id: [] for job in jobs}
        for job, trajectory in self.simulator.play(jobs, arm.sampling, self._weighing.draws):
            found[job.group_id].append(trajectory)
        return {name: sorted(all_, key=lambda each: each.member) for name, all_ in found.items()}

    def learn(self, played: Groups) -> Point:
        """Count a round and make its update, unless no group has spread."""
        members = [member for group in played.values() for member in group]
        self.tokens += sum(int(member.mask().sum()) for member in members)
        self.episodes += len(members)
        for group in played.values():
            self.visited.add(group)
        candidates = [
            TrainableGroup(name, group[0].task, tuple(group)) for name, group in played.items()
        ]
        lessons = [
            one
            for one in candidates
            if one.task in self._taught or has_spread(one, self._settings.abnormal_reward)
        ]
        metrics: Mapping[str, float] = {}
        gradients: Mapping[str, float] = {}
        if lessons:
            settings = self._settings
            taken = split_by_variance(
                lessons, settings.keep_share, settings.abnormal_reward, self._taught
            )
            batch = assemble_batch(taken.trained, settings)
            gradients = self._gradients(batch)
            update = self._learner.update(batch)
            metrics = update.values
            if not update.skipped:
                self.simulator.publish(self._learner.copy_weights())
        self._weighing.note(list(played.values()), metrics)
        point = self._point(candidates, lessons, metrics)
        point = replace(point, gradients={name: round(gradients[name], 6) for name in gradients})
        self._trainee.report_progress(point.text, self.tokens)
        return point

    def keep_policy(self, directory: Path) -> None:
        """Write the trained policy, in place of what an interrupted training left."""
        remove(directory)
        name, version = directory.name, self.simulator.version
        write = self._learner.copy_weights()
        publish(directory, write, checkpoint_id=name, version=version, parent=None)

    def _gradients(self, batch: Batch) -> Mapping[str, float]:
        """Measure the norm of each task's gradient part when due; otherwise return nothing."""
        every, version = self._trainee.design.gradients, self.simulator.version
        if self._gauge is None or version % every:
            return {}
        return self._gauge.norms(batch, self._learner.state())

    def _point(
        self,
        candidates: Sequence[TrainableGroup],
        lessons: Sequence[TrainableGroup],
        metrics: Mapping[str, float],
    ) -> Point:
        tasks = sorted({group.task for group in candidates})
        groups = {task: [g for g in candidates if g.task == task] for task in tasks}
        played = {task: [m for each in groups[task] for m in each.members] for task in tasks}
        taught = {task: sum(g.task == task for g in lessons) for task in tasks}
        return Point(
            version=self.simulator.version,
            tokens=self.tokens,
            success={task: success_share(played[task]) for task in tasks},
            spread={task: taught[task] / len(groups[task]) for task in tasks},
            states={task: len(each) for task, each in self.visited.states.items()},
            histories={task: len(each) for task, each in self.visited.histories.items()},
            tracks=shares_of_tracks([m for group in candidates for m in group.members]),
            metrics={name: round(metrics[name], 6) for name in sorted(KEPT & metrics.keys())},
        )
