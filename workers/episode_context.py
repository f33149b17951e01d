"""What a process gives to its episodes: configuration, limits, shared objects, a clock."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.core.config.sections.episodes import Dispatch, Sampling
from agentrl.core.config.sections.episodes import Worker as WorkerSection
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.tasks import Task
from agentrl.core.prepare_structs import prepare_structs
from agentrl.core.processes.process import Instance
from agentrl.workers.conversation.conversation import Conversation, Converse
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style
from agentrl.workers.policies.client import CompletionClient
from agentrl.workers.policies.statistics import PoolConfig
from agentrl.workers.waiting import WaitingAttempts


@dataclass(frozen=True, slots=True)
class EpisodeWorkerConfig:
    """What a worker takes of a configuration.

    `seed`: the run's. `policy_token_env`: the variable with the token of policy servers.
    `judge_models`: the model of each policy that judges. `instance`: this process.
    """

    worker: WorkerSection
    dispatch: Dispatch
    pool: PoolConfig
    model: Model
    tasks: Mapping[str, Task]
    seed: int
    policy_token_env: str
    judge_models: Mapping[str, str] = field(default_factory=dict)
    instance: Instance = field(default_factory=Instance)


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of one attempt. `policy_wait_s`: wait for a policy per step.

    `deadline_s`: wall clock, without such waits.
    `completion_timeout_s`: for one completion, within the deadline.
    """

    max_turns: int
    deadline_s: float
    policy_wait_s: float
    completion_timeout_s: float = 600.0

    @classmethod
    def of(
        cls, worker: WorkerSection, task: Task, most: int, horizon: int | None = None
    ) -> "EpisodeLimits":
        """Return the configured limits. `most`: turns of a task that configures none.

        `horizon`: turns of the episode's group, if it has fewer.
        """
        turns = task.max_turns or most
        return cls(
            max_turns=min(turns, horizon or turns),
            deadline_s=worker.attempt_deadline_s,
            policy_wait_s=worker.policy_wait_s,
            completion_timeout_s=worker.completion_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """Objects that all episodes of a process share. `clock`: the database's, in seconds.

    `waiting`: attempts that wait for a policy. `monotonic`: the machine's clock, in seconds.
    """

    template: ChatTemplate
    style: Style
    stop_ids: Sequence[int]
    sampling: Sampling
    client: CompletionClient
    clock: Callable[[], float]
    stop: threading.Event
    converse: Converse = Conversation
    waiting: WaitingAttempts = field(default_factory=WaitingAttempts)
    monotonic: Callable[[], float] = time.monotonic


class Clock:
    """The database's clock, estimated from the offset that each heartbeat measures.

    `clock`: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._offset = 0.0

    def set(self, database_s: float) -> None:
        self._offset = database_s - self._clock()

    def now(self) -> float:
        return self._clock() + self._offset


def make_context(
    model: Model, sampling: Sampling, client: CompletionClient, clock: Clock, stop: threading.Event
) -> EpisodeContext:
    """Create the objects that all episodes share. Raises ConfigError for a wrong model."""
    prepare_structs()
    template = ChatTemplate.load(Path(model.path), model.chat_template)
    template.check(model.call_style)
    return EpisodeContext(
        template=template,
        style=model.call_style,
        stop_ids=sorted(template.stop_ids),
        sampling=sampling,
        client=client,
        clock=clock.now,
        stop=stop,
    )
