"""A training without queues: the real components in one thread, so that a seed reproduces it.

learner ─publish─▶ folder ─▶ tracks' checkpoints, loaded ─live()─▶ Sampler ─┐
   ▲                                                                        ▼
Batch ◀─ groups with spread ◀─ trajectories ◀─ EpisodeLoop, in lockstep ◀─ Batch of the engine
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import torch

from agentrl.checkpoints.directories import publish, remove
from agentrl.checkpoints.manifest import SaveReport
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.trajectory import Trajectory
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.registry.tracks import select_checkpoint
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import Item, TaskSource
from agentrl.envs.process_rewards import with_process_rewards
from agentrl.experiments.simulation.lockstep_episode import Question, Work, play
from agentrl.ops.interruption import Interrupted
from agentrl.serving.engine_api import Completion as Answer
from agentrl.serving.engine_api import Request
from agentrl.serving.local.batch import Batch, Row
from agentrl.serving.local.kv_cache import Prefixes
from agentrl.serving.local.served_model import load_model
from agentrl.workers.attempt_errors import EpisodeStopped
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import EpisodeLoop
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import Completion, PolicyClient
from agentrl.workers.policies.pool import Sampler

CACHE_TOKENS = 131_072  # of kept keys and values, all policies together
MAX_ROWS = 512  # of one policy's batch
DEADLINE_S = 3600.0  # of an episode; it waits while others compute


def interruption_error() -> Interrupted:
    return Interrupted("interrupted: finished trainings are kept")


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play. `seed`: its name, and the seed of drawn policies and sampled tokens.

    `horizon`: its turn limit, if that is below the task's.
    """

    item: Item
    group_id: str
    member: int
    seed: str
    horizon: int | None = None


@dataclass(frozen=True, slots=True)
class Wave:
    """The cost of a wave in tokens: of its longest answer, all sampled, prompt computed."""

    longest: int
    sampled: int
    prompt: int


Draws = Callable[["Simulator", Sampling, Job], Sampler]  # the sampler of one episode


@dataclass
class Simulator:
    """One lineage of checkpoints and the policies that follow it; a pool for samplers.

    `folder`: of checkpoints; `keep`: also keep unused ones. `tracks`: as policy servers follow
    them. Version 0 is the model of the configuration. `pinned`: policies that are not of the
    lineage, by the name in their track. `stop`: checked at every wave.
    """

    config: Config
    sources: Mapping[str, TaskSource]
    folder: Path
    tracks: Sequence[str]
    stop: threading.Event = field(default_factory=threading.Event)
    keep: bool = False
    pinned: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = Path(self.config.model.path)
        self.lineage: list[tuple[int, str]] = [(0, "v0")]
        self._paths = {**self.pinned, "v0": path}
        self._batches: dict[str, Batch] = {}
        self._prefixes = Prefixes(CACHE_TOKENS)
        self.wave = Wave(0, 0, 0)  # the last one
        template = ChatTemplate.load(path)
        template.check_append_only()
        self._context = EpisodeContext(
            template=template,
            style=self.config.model.call_style,
            stop_ids=sorted(template.stop_ids),
            sampling=self.config.sampling,
            client=PolicyClient(),
            clock=time.time,
            stop=self.stop,
        )
        self._follow()

    @property
    def version(self) -> int:
        return self.lineage[-1][0]

    def path(self, version: int) -> Path:
        """Return the path of a version's weights; only with `keep` are all kept."""
        return self._paths[f"v{version}"]

    def serve(self, tracks: Sequence[str]) -> None:
        """Follow these tracks from now on."""
        self.tracks = tracks
        self._follow()

    def publish(self, save: Callable[[Path], SaveReport], asked: Collection[str] = ()) -> None:
        """Write the next version, and let the tracks follow it at once.

        asked: checkpoints in open questions, which stay loaded until the next version.
        """
        version = self.version + 1
        name, parent = f"v{version}", f"v{version - 1}"
        directory = self.folder / name
        publish(directory, save, checkpoint_id=name, version=version, parent=parent)
        self.lineage.append((version, name))
        self._paths[name] = directory
        self._follow(asked)

    def live(self) -> Sequence[LivePolicy]:
        """Return one policy per track, as the registry does."""
        versions = {name: version for version, name in self.lineage}
        return [
            LivePolicy("arena", "", track, name, versions.get(name, 0))
            for track in self.tracks
            for name in [select_checkpoint(track, self.lineage)]
        ]

    def refresh(self, timeout_s: float = 1.0) -> None:
        """Do nothing."""

    def play(
        self, jobs: Sequence[Job], sampling: Sampling, draws: Draws
    ) -> Iterator[tuple[Job, Trajectory]]:
        """Yield the episodes of all jobs in order of completion. Raises Interrupted."""
        works = (self.work(job, sampling, draws) for job in jobs)
        try:
            yield from play(works, self.answer)
        except EpisodeStopped as error:
            raise interruption_error() from error

    def work(self, job: Job, sampling: Sampling, draws: Draws) -> Work[tuple[Job, Trajectory]]:
        """Play one episode in a strand."""

        def work(client: PolicyClient) -> tuple[Job, Trajectory]:
            source = self.sources[job.item.task]
            turns = self.config.tasks[job.item.task].max_turns or source.max_turns
            limits = EpisodeLimits(
                max_turns=min(turns, job.horizon or turns),
                deadline_s=DEADLINE_S,
                policy_wait_s=DEADLINE_S,
            )
            context = replace(self._context, sampling=sampling, client=client)
            name = f"{job.group_id}-{job.member}"
            claimed = ClaimedEpisode(
                name, job.group_id, job.member, job.item.task, job.item.item_id, 1, 1
            )
            rewards = self.config.tasks[job.item.task].process_rewards
            with closing(with_process_rewards(source.make(job.item), rewards)) as environment:
                loop = EpisodeLoop(claimed, "", environment, draws(self, sampling, job), context)
                return job, loop.run(limits)

        return work

    def answer(self, questions: Sequence[Question]) -> Sequence[Completion]:
        """Answer one wave: the questions of each policy together, one policy after the other.

        Raises Interrupted.
        """
        futures: list[Future[Answer]] = []
        rows: dict[str, list[Row]] = {}
        for question in questions:
            row = _row(question)
            futures.append(row.future)
            rows.setdefault(question.policy.checkpoint_id, []).append(row)
        with torch.inference_mode():
            for name in sorted(rows):
                batch = self._batches[name]
                batch.waiting.extend(rows[name])
                while batch.busy:
                    if self.stop.is_set():
                        raise interruption_error()
                    batch.step()
        answers = [future.result() for future in futures]
        self.wave = Wave(
            longest=max((len(each.token_ids) for each in answers), default=0),
            sampled=sum(len(each.token_ids) for each in answers),
            prompt=sum(
                len(question.ask.prompt) - each.cached_tokens
                for question, each in zip(questions, answers, strict=True)
            ),
        )
        return [
            Completion(list(each.token_ids), list(each.logprobs), each.finish_reason)
            for each in answers
        ]

    def _follow(self, asked: Collection[str] = ()) -> None:
        """Load the checkpoints of the tracks, and unload unused ones."""
        wants = {select_checkpoint(track, self.lineage) for track in self.tracks}.union(asked)
        for name in sorted(self._batches.keys() - wants):
            del self._batches[name]
            self._prefixes.drop(name)
        self._remove_before(wants)
        for name in sorted(wants - self._batches.keys()):
            dtype: torch.dtype = getattr(torch, self.config.model.dtype)
            model = load_model(self._paths[name], self.config.model.device, dtype)
            self._batches[name] = Batch(name, model, self._prefixes, MAX_ROWS)

    def _remove_before(self, wants: Collection[str]) -> None:
        """Remove versions that no track can want again: those before the oldest wanted one."""
        oldest = min((v for v, name in self.lineage if name in wants), default=self.version)
        for version, name in self.lineage:
            directory = self._paths[name]
            is_ours = directory.parent == self.folder and directory.exists()
            if version < oldest and is_ours and not self.keep:
                remove(directory)


def _row(question: Question) -> Row:
    ask = question.ask
    request = Request(
        policy=question.policy.checkpoint_id,
        prompt=list(ask.prompt),
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        stop_ids=frozenset(ask.stop_ids),
        seed=ask.seed,
        session=ask.session,
    )
    return Row(request, Future(), Random(ask.seed), list(ask.prompt))
