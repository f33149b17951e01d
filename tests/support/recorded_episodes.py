"""Episodes as workers record them in a store, played by the tasks' experts."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import func, select

from agentrl.broker.messages import EpisodeFinished, encode
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import CURRENT, EpisodeState, GroupState
from agentrl.db.models.episodes import Episode, Group, StoredTrajectory
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.store import Store, open_store
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import Item, TaskSource
from agentrl.envs.server.in_process import host_sandboxes
from agentrl.ops.runs.begin import begin
from agentrl.ops.tasks.task_sources import task_sources
from agentrl.ops.warmstart.demonstrations import Demonstrator, Transcript
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import EpisodeLoop
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits
from agentrl.workers.policies.client import Ask, Completion
from agentrl.workers.policies.pool import Sampler

TINY = Path(__file__).parents[2] / "models" / "tiny"


class TranscriptPolicy:
    """Pool and client of one episode that sample a transcript, a turn in two spans."""

    def __init__(self, transcript: Transcript, template: ChatTemplate, checkpoint_id: str) -> None:
        self._said = [[*template.encode(turn.text), template.end_id] for turn in transcript.turns]
        self._rest: list[int] = []
        self._policy = LivePolicy("teacher", "", CURRENT, checkpoint_id, 0)

    def live(self) -> Sequence[LivePolicy]:
        return [self._policy]

    def refresh(self, timeout_s: float = 1.0) -> None:
        """Nothing changes by looking."""

    def complete(self, _policy: LivePolicy, _ask: Ask, *, timeout_s: float) -> Completion:
        assert timeout_s > 0
        tokens = self._rest or self._said.pop(0)
        broken = not self._rest and len(tokens) > 4
        tokens, self._rest = (tokens[:4], tokens[4:]) if broken else (tokens, [])
        logprobs = [-0.125 * (token % 7 + 1) for token in tokens]
        return Completion(tokens, logprobs, "abort" if broken else "stop")

    def post(
        self, policy: LivePolicy, path: str, body: Mapping[str, Any], timeout_s: float
    ) -> bytes:
        raise NotImplementedError


def play(
    config: Config, run_id: str, source: TaskSource, item: Item, *, seed: int, noise: float = 0.0
) -> Trajectory:
    """Play one episode with the expert, token by token as a policy would."""
    task = config.tasks[item.task]
    template = ChatTemplate.load(Path(config.model.path))
    one = OneItem(source, item)
    [transcript] = Demonstrator(one, task, config.model.call_style, noise).episodes(1, seed)
    shown = TranscriptPolicy(transcript, template, f"{run_id}-v000000")
    own = EpisodeContext(
        template=template,
        style=config.model.call_style,
        stop_ids=sorted(template.stop_ids),
        sampling=msgspec.structs.replace(config.sampling, strategy="current", max_tokens=1 << 20),
        client=shown,
        clock=time.time,
        stop=threading.Event(),
    )
    name = f"{run_id}-{item.task}-{item.item_id}-{seed}"
    claimed = ClaimedEpisode(name, f"{name}-g", 0, item.task, item.item_id, 1, 1)
    environment = source.make(item)
    try:
        sampler = Sampler(shown, own.sampling, name)
        limits = EpisodeLimits(task.max_turns or source.max_turns, 60.0, 1.0)
        return EpisodeLoop(claimed, run_id, environment, sampler, own).run(limits)
    finally:
        environment.close()


RUN = """
[run]
name = "recorded"
home = "{home}"
[model]
path = "{tiny}"
[worker]
concurrency = 2
[sampling]
max_step_tokens = 200
max_tokens = 2000
[tasks.dbbench.options]
style = "compact"
items = 6
[tasks.alfworld]
max_turns = 6
[tasks.alfworld.options]
style = "compact"
items = 6
[tasks.kg.options]
items = 6
[tasks.webshop.options]
items = 6
products = 200
"""


@dataclass
class RecordedRun:
    """A begun run and the episodes that were recorded in it. `bodies`: by their episodes."""

    path: Path
    config: Config
    run_id: str
    store: Store
    bodies: dict[str, Trajectory] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def begin(cls, folder: Path) -> "Iterator[RecordedRun]":
        path = folder / "run.toml"
        path.write_text(RUN.format(home=folder / "home", tiny=TINY))
        config = config_loading.load(path)
        run_id = begin(config)
        with closing(open_store(config.store_url())) as store:
            yield cls(path, config, run_id, store)

    def record(
        self, task: str, number: int = 0, noise: float = 0.0, wire: bytes | None = None
    ) -> Trajectory:
        """An expert's episode of an item, with faults where there is noise."""
        only = {task: self.config.tasks[task]}
        source = task_sources(msgspec.structs.replace(self.config, tasks=only))[task]
        item = source.items("train")[number]
        with host_sandboxes(source, "", self.config.envs.docker_image):
            body = play(self.config, self.run_id, source, item, seed=number, noise=noise)
        store_episode(self.store, body, wire)
        self.bodies[body.episode_id] = body
        return body

    def keep(self, body: Trajectory, name: str) -> Trajectory:
        """A body changed by hand, under another name."""
        changed = msgspec.structs.replace(body, episode_id=name, group_id=f"{name}-g")
        store_episode(self.store, changed)
        return changed


class OneItem:
    """A TaskSource with a single item."""

    def __init__(self, source: TaskSource, item: Item) -> None:
        self._source, self._item = source, item
        self.name, self.max_turns, self.splits = source.name, source.max_turns, source.splits
        self.make, self.expert = source.make, source.expert

    def items(self, _split: str) -> Sequence[Item]:
        return [self._item]


def store_episode(store: Store, body: Trajectory, wire: bytes | None = None) -> None:
    """Its rows; `wire`: what is stored in place of the body, nothing where it is empty."""
    times = {"queued_at": body.started_at, "started_at": body.started_at}
    with store.write() as session:
        position = session.scalar(select(func.count()).select_from(Group)) or 0
        session.add(
            Group(
                group_id=body.group_id,
                run_id=body.run_id,
                task=body.task,
                position=position,
                item_id=body.item_id,
                size=1,
                pending=0,
                state=GroupState.READY,
                admitted_version=0,
                admitted_at=body.started_at,
            )
        )
        session.flush()
        session.add(
            Episode(
                episode_id=body.episode_id,
                run_id=body.run_id,
                group_id=body.group_id,
                member=0,
                task=body.task,
                item_id=body.item_id,
                state=EpisodeState.FINISHED,
                due_at=0.0,
                status=body.status,
                reward=body.reward,
                score=body.score,
                body_sha256=body.sha256,
                ended_at=body.finished_at,
                **times,
            )
        )
        stored = encode(EpisodeFinished(trajectory=body)) if wire is None else wire
        if stored:
            session.add(
                StoredTrajectory(
                    episode_id=body.episode_id,
                    fence=1,
                    run_id=body.run_id,
                    sha256=body.sha256,
                    body=stored,
                    received_at=body.finished_at,
                )
            )
