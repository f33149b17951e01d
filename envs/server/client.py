"""Environments behind our env server, or behind a task worker of the original system.

Env server: items, limits and experts come from the local task source, which is a pure function of
its options. The content of an item is sent at the start, so client and server need not share a
seed.

Task worker: items are its indices, and it limits the turns itself.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.core.config.sections.tasks import Envs
from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs import registry
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Observation,
    Outcome,
    Recovery,
    TaskSource,
    Tool,
    ToolCall,
    recovery_of,
    require_split,
)
from agentrl.envs.server import wire
from agentrl.envs.server.task_http_client import Fence, RemoteServer

WORKER_TURNS = 100  # of an episode of a task worker, which has a limit of its own
SPLIT = "all"  # the one split of a task worker's indices


class RemoteEnvironment:
    """An Environment in a session of the server, started by the first use of `tools` or `start`."""

    def __init__(self, remote: RemoteServer, start: Mapping[str, Any]) -> None:
        """`start`: the body of its start request, without the session."""
        self._remote = remote
        self._start = start
        self._session_id = random.SystemRandom().getrandbits(53)
        self._first: wire.EnvOut | None = None
        self._tools: Sequence[Any] = ()
        self._turn = 0
        self._fence: Fence = None
        self._applied: int | None = None  # turns of the session before this attempt
        self._over = True

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Return the tools of the latest answer: an environment may add some in its course."""
        self._begin()
        return tuple(wire.tool(each) for each in self._tools)

    def attach(self, session: str, fence: int) -> int:
        """Start the session of this name, or go on with it; a task worker knows no names."""
        if not self._remote.worker:
            digest = hashlib.sha256(session.encode()).digest()
            self._session_id, self._fence = int.from_bytes(digest[:8]) >> 11, fence
        self._begin()
        return self._applied or 0

    def leave(self) -> None:
        self._over = True

    def start(self) -> Observation:
        first = self._begin()
        return Observation(tuple(wire.message(each) for each in first.messages), first.terms)

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        self._begin()
        if self._over:
            raise EnvironmentFailure("the episode is over")
        self._turn += 1
        body = {wire.SESSION: self._session_id, "messages": [wire.assistant(calls)]}
        turn = None if self._applied is None else self._turn
        answer = self._remote.interact(body, turn, self._fence)
        self._check(answer)
        if answer.tools or answer.follows == 0:
            self._tools = answer.tools or ()
        messages = tuple(wire.message(each) for each in answer.messages)
        self._over = answer.finish
        if not answer.finish and self._applied is None:  # a task worker rewards only the end
            return Outcome(messages)
        try:
            reward, score = wire.finite(answer.reward), wire.score(answer)
            branches = {turn: wire.finite(each) for turn, each in answer.branch_rewards.items()}
        except wire.MalformedBody as error:
            raise EnvironmentFailure(
                f"env server {self._remote.url} sent a malformed answer: {error}"
            ) from error
        if not answer.finish:
            return Outcome(
                messages,
                reward=reward,
                metrics=_numbers(answer.metric),
                terms=answer.terms,
                follows=answer.follows,
            )
        return Outcome(
            messages,
            done=True,
            status=wire.OUTCOMES[answer.status],
            reward=reward,
            score=score,
            metrics=_numbers(answer.metric),
            branch_rewards=branches,
        )

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._remote.cancel(self._session_id, self._fence)

    def _begin(self) -> wire.EnvOut:
        """Return the first answer. Raises ItemError, EnvironmentFailure."""
        if self._first is None:
            self._over = False
            body = {wire.SESSION: self._session_id, **self._start}
            first, self._applied = self._remote.start(body, self._fence)
            self._check(first)
            self._first, self._tools = first, first.tools or ()
        return self._first

    def _check(self, answer: wire.EnvOut) -> None:
        """Raise EnvironmentFailure for an end that the agent did not cause, so it is no reward."""
        if answer.finish and answer.status not in wire.OUTCOMES:
            self._over = True
            raise EnvironmentFailure(f"{self._remote.url}: {answer.status}: {answer.error}")


class RemoteWorker:
    """The TaskSource of a task worker: its indices in one split, without experts."""

    max_turns = WORKER_TURNS
    splits = (SPLIT,)

    def __init__(self, remote: RemoteServer, task: str, options: Mapping[str, Any]) -> None:
        """Raises ItemError for options: a worker has its own."""
        if options:
            raise ItemError(
                f"{task}: option {next(iter(options))} belongs to the task worker {remote.url}"
            )
        self._remote = remote
        self._items: tuple[Item, ...] = ()
        self.name = task

    def items(self, split: str) -> Sequence[Item]:
        """Return the items. Raises ItemError, EnvironmentFailure."""
        require_split(self.name, split, self.splits)
        if not self._items:
            named = [each for each in self._remote.indices() if each != -1]  # of custom tasks
            self._items = tuple(Item(self.name, str(each), {"index": each}) for each in named)
        return self._items

    def make(self, item: Item) -> Environment:
        return RemoteEnvironment(self._remote, item.content)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:  # noqa: ARG002
        raise ItemError(f"item {item.item_id}: {self._remote.url} has no demonstrator")


class RemoteSource:
    """A TaskSource with environments on an env server."""

    def __init__(
        self, config: Envs, task: str, options: Mapping[str, Any], source: str = ""
    ) -> None:
        """Raises ItemError for an unknown task or option, ConfigError for an unset token."""
        remote = self._remote = RemoteServer(config, task)
        self._local: TaskSource = (
            RemoteWorker(remote, task, options)
            if remote.worker
            else registry.source(task, options, source)
        )
        self.name = task
        self.max_turns = self._local.max_turns

    @property
    def recovery(self) -> Recovery:
        return recovery_of(self._local)

    @property
    def splits(self) -> tuple[str, ...]:
        return self._local.splits

    def items(self, split: str) -> Sequence[Item]:
        return self._local.items(split)

    def make(self, item: Item) -> Environment:
        if self._remote.worker:
            return self._local.make(item)
        start = {"index": item.item_id, "custom_task": dict(item.content)}
        return RemoteEnvironment(self._remote, start)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:
        return self._local.expert(item, seed=seed, noise=noise)


def _numbers(metric: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are finite numbers."""
    return {
        name: float(each)
        for name, each in metric.items()
        if isinstance(each, int | float) and abs(each) <= wire.LARGEST
    }
