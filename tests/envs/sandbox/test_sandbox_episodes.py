"""Episodes in sandboxes through the env server's sessions: how they end, and the one after."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import docker
from sandbox_programs import SMALL, python

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.contract import Message, Observation, Outcome, Tool, ToolCall
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandbox, Sandboxes, Spec
from agentrl.envs.server.session import Caller
from agentrl.envs.server.sessions import Sessions
from agentrl.envs.server.wire import AssistantMessage


class Evaluates:
    """What the agent says is evaluated in a sandbox; `done` ends the episode."""

    tools: tuple[Tool, ...] = ()

    def __init__(self, pool: Sandboxes) -> None:
        self._pool = pool
        self.sandbox: Sandbox | None = pool.lease()

    def start(self) -> Observation:
        return Observation(())

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        if self.sandbox is None or not isinstance(calls, str):
            raise EnvironmentFailure("closed")
        if calls == "done":
            return Outcome((), done=True, reward=1.0)
        try:
            answer = self.sandbox.channel.ask(calls.encode(), 10)
        except EnvironmentFailure:
            self._give_back(sound=False)
            raise
        return Outcome((Message("user", answer.decode()),))

    def close(self) -> None:
        self._give_back(sound=True)

    def _give_back(self, *, sound: bool) -> None:
        if self.sandbox is not None:
            self._pool.release(self.sandbox, sound=sound)
            self.sandbox = None


def end(episode: Evaluates, *turns: str) -> dict[str, Any]:
    """The last answer of an episode of these turns."""

    async def stays() -> None:
        await asyncio.sleep(60)

    async def played() -> dict[str, Any]:
        sessions, key = Sessions(1, 60.0), ("t", 1)
        answer, _ = await sessions.start(
            key, 0, lambda: episode, repeatable=False, caller=Caller(stays)
        )
        for turn in turns:
            answer = await sessions.interact(key, AssistantMessage("assistant", turn), None, 9)
        await sessions.close()
        return answer

    return asyncio.run(played())


def test_an_agent_that_takes_too_much_memory_ends_its_episode_in_task_limit(
    engine: Engine, sandbox_image: str
) -> None:
    with closing(Sandboxes(engine, Spec(sandbox_image, python(), SMALL))) as pool:
        lost = end(Evaluates(pool), "1 + 1", "len(bytearray(200 << 20))")
        assert (lost["status"], lost["finish"], lost["reward"]) == ("task limit reached", True, 0)
        unharmed = end(Evaluates(pool), "1 + 1", "done")
        assert (unharmed["status"], unharmed["reward"]) == ("completed", 1.0)


def test_a_container_killed_from_outside_ends_its_episode_in_task_error(
    engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> None:
    with closing(Sandboxes(engine, Spec(sandbox_image, python(), SMALL))) as pool:
        episode = Evaluates(pool)
        assert episode.sandbox is not None
        docker_client.api.kill(episode.sandbox.container)
        lost = end(episode, "1 + 1")
        assert (lost["status"], lost["finish"]) == ("task error", True)
        assert end(Evaluates(pool), "1 + 1", "done")["status"] == "completed"
