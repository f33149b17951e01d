"""Replays recorded episodes in fresh environments.

store ─▶ body ─▶ RecordedEpisode ─▶ EpisodeLoop ◀─ environment of the task, made anew
"""

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec

from agentrl.core import config_loading, logging
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError, ItemError, MessageError, StoreError, nearest
from agentrl.core.trajectory import Trajectory
from agentrl.core.trajectory_body import body_of
from agentrl.core.types import CURRENT
from agentrl.db.admin.readonly import open_history
from agentrl.db.models.episodes import Episode
from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.db.transitions.trajectories import recordings
from agentrl.db.transitions.trajectories.recordings import Recording
from agentrl.envs.contract import Item, TaskSource
from agentrl.envs.item_choice import index_items
from agentrl.envs.process_rewards import with_process_rewards
from agentrl.envs.server.in_process import host_sandboxes
from agentrl.ops.models import hub
from agentrl.ops.replay.recorded_episode import Difference, RecordedEpisode
from agentrl.ops.tasks.task_sources import task_sources
from agentrl.workers.episode import EpisodeLoop
from agentrl.workers.episode_context import Clock, EpisodeContext, EpisodeLimits, make_context
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import Sampler

UNBOUNDED = 1 << 30  # tokens: what was sampled has its place


class Replayer:
    """Creates fresh environments for recorded episodes; thread-safe."""

    def __init__(self, config: Config, own: EpisodeContext) -> None:
        self.config = config
        self.context = own
        self._sources: dict[str, TaskSource] = {}
        self._items: dict[str, Mapping[str, Item]] = {}
        self._undo = ExitStack()
        self._opening = threading.Lock()

    def close(self) -> None:
        """Close it and remove its containers."""
        self._undo.close()

    def replay(self, recording: Recording, body: Trajectory) -> Sequence[Difference]:
        """Replay and return the differences. Raises ItemError, EnvironmentFailure."""
        recorded_episode = RecordedEpisode(body, self.context.template)
        sampling = msgspec.structs.replace(
            self.context.sampling, max_tokens=UNBOUNDED, max_step_tokens=UNBOUNDED
        )
        own = dataclasses.replace(self.context, sampling=sampling, client=recorded_episode)
        limits = EpisodeLimits(body.turns, self.config.worker.attempt_deadline_s, policy_wait_s=0.0)
        self.play(recorded_episode, recording, own, limits)
        return recorded_episode.differences

    def play(
        self,
        recorded_episode: RecordedEpisode,
        recording: Recording,
        own: EpisodeContext,
        limits: EpisodeLimits,
        name: str = "",
    ) -> Trajectory:
        """Play the tape, then the policy that continues.

        `name`: of the episode; empty: the recorded name. Raises ItemError, EnvironmentFailure,
        PolicyError, OutOfTime, ConfigError.
        """
        source, item = self._find_item(recording)
        body, name = recorded_episode.recorded, name or recording.episode_id
        claimed = ClaimedEpisode(name, body.group_id, body.member, item.task, item.item_id, 1, 1)
        sampling = msgspec.structs.replace(own.sampling, strategy=CURRENT)
        own = dataclasses.replace(
            own, sampling=sampling, client=recorded_episode, converse=recorded_episode.converse
        )
        rewards = self.config.tasks[recording.task].process_rewards
        fresh = with_process_rewards(source.make(item), rewards)
        with closing(recorded_episode.compared(fresh)) as environment:
            sampler = Sampler(recorded_episode, sampling, f"{self.config.run.seed}/{name}")
            return EpisodeLoop(claimed, body.run_id, environment, sampler, own).run(limits)

    def limits(self, recording: Recording) -> EpisodeLimits:
        """Return the episode limits of the run: the task's turns within the group's horizon."""
        source, _ = self._find_item(recording)
        task = self.config.tasks[recording.task]
        return EpisodeLimits.of(self.config.worker, task, source.max_turns, recording.horizon)

    def _find_item(self, recording: Recording) -> tuple[TaskSource, Item]:
        """Return the task source, opened once.

        Raises ConfigError, and ItemError for wrong options.
        """
        task = recording.task
        with self._opening:
            if task not in self._sources:
                self._sources[task] = self._open_source(task)
                self._items[task] = index_items(
                    self._sources[task].items(self.config.tasks[task].split)
                )
            item = self._items[task].get(recording.item_id)
            if item is None:
                raise ItemError(
                    f"task {task} has no item {recording.item_id}",
                    hint=f"set tasks.{task}.options to the values of the recorded episode",
                )
            return self._sources[task], item

    def _open_source(self, task: str) -> TaskSource:
        """Open the task source here with its own sandboxes, or through the task worker."""
        config = self.config
        if task not in config.tasks:
            raise ConfigError(f"the configuration has no task {task}{nearest(task, config.tasks)}")
        only = msgspec.structs.replace(config, tasks={task: config.tasks[task]})
        if not config.envs.names_worker():
            only = msgspec.structs.replace(only, envs=msgspec.structs.replace(config.envs, url=""))
        source = task_sources(only)[task]
        self._undo.enter_context(host_sandboxes(source, "", config.envs.docker_image))
        return source


@contextmanager
def open_replayer(config: Config) -> Iterator[Replayer]:
    """Yield a replayer with the shared parts. Raises ConfigError for an unfit model."""
    with closing(PolicyClient()) as client:
        own = make_context(config.model, config.sampling, client, Clock(), threading.Event())
        with closing(Replayer(config, own)) as replayer:
            yield replayer


@contextmanager
def open_replay(path: Path) -> Iterator[tuple[Config, Store]]:
    """Yield the configuration with a local model, and its store, read-only."""
    logging.configure("replay", level="WARNING")
    config = hub.resolve_model(config_loading.load(path))
    with closing(open_history(config.store_url())) as store:
        yield config, store


def find_recorded(config: Config, store: Store, episode: str) -> tuple[Recording, Trajectory]:
    """Return an episode and its body. Raises StoreError, MessageError.

    `episode`: its id, also without the id of the configuration's run at its start, as lists show.
    """
    with store.read() as session:
        run = runs.find_run(session, config.run.name)
        whole = f"{run.run_id}-{episode}" if run else episode
        found = whole if session.get(Episode, whole) else episode
    return read_recorded(store, found)


def read_recorded(store: Store, episode_id: str) -> tuple[Recording, Trajectory]:
    """Return an episode and its body. Raises StoreError if missing, MessageError if damaged."""
    with store.read() as session:
        found = recordings.read_recording(session, episode_id)
    if not found.wire:
        raise StoreError(
            f"episode {episode_id}: the trajectory is not stored",
            hint="wait for the recorder, or choose another episode if it was pruned",
        )
    try:
        return found, body_of(found.wire, found.sha256)
    except MessageError as error:
        raise MessageError(
            f"episode {episode_id}: the stored trajectory is damaged: {error}"
        ) from error
