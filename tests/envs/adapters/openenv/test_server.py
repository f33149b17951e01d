"""Servers that are full, away, or refuse a message."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from openenv_servers import Sources, act, begun

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs import registry
from agentrl.envs.adapters.openenv.container import ServerContainer
from agentrl.envs.contract import Environment, strings
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer

pytest.importorskip("websockets", reason="needs pip install 'agentrl-system[openenv]'")
from websockets.sync.server import ServerConnection, serve

from agentrl.envs.adapters.openenv.environment import OpenEnvEnvironment, OpenEnvOptions
from agentrl.envs.adapters.openenv.server import NO_TOOLS, ActionRefused, Server, Session, Step


def test_an_episode_waits_for_a_place_on_a_full_server(sources: Sources) -> None:
    source = sources["full"]
    first = begun(source)
    found: list[Environment] = []
    waiting = threading.Thread(target=lambda: found.append(begun(source)))
    with pytest.raises(EnvironmentFailure, match="at capacity"):
        begun(source, wait_s=0.0)
    waiting.start()
    first.close()
    waiting.join(60)
    assert found[0].start().messages[1].role == "user"
    found[0].close()


def test_a_server_that_is_not_there_is_a_failure(sources: Sources) -> None:
    nowhere = "openenv:http://127.0.0.1:9"
    with pytest.raises(ItemError, match=r"words: openenv http://127\.0\.0\.1:9/list_environments"):
        registry.source("words", {"wait_s": 0.0}, nowhere).items("train")
    item = registry.source("words", {}, sources["words"]).items("train")[0]
    with pytest.raises(EnvironmentFailure, match=r"openenv http://127\.0\.0\.1:9/schema"):
        registry.source("words", {"wait_s": 0.0}, nowhere).make(item)


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        ("openenv:echo-env", {"tasks": {"test": 0}}, "option tasks"),
        ("openenv:http://x", {"rewards": "sum"}, "unknown option rewards; did you mean reward"),
    ],
)
def test_what_is_not_set_up_is_one_error(source: str, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ItemError, match=error):
        registry.source("words", options, source)


def test_episodes_are_the_same_behind_the_env_server(sources: Sources) -> None:
    source = sources["words"]
    server = EnvServer({"words": Task(source=source)})
    try:
        task = RemoteSource(Envs(url=server.url), "words", {}, source)
        environment = task.make(task.items("train")[1])
        assert environment.start().messages[1].content == "A word of 4 letters."
        assert environment.call(act("pear")).reward == 1.0
    finally:
        server.close()


BEGUN = {"type": "observation", "data": {"observation": {}}}
ENDED = {"type": "observation", "data": {"observation": {}, "done": True, "reward": 1.0}}
NO_MCP = {"type": "mcp", "data": {"error": {"code": NO_TOOLS}}}
CRASHED = {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "the dictionary burns"}}
REFUSED = {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "not so"}}


@contextmanager
def serving(answers: Mapping[str, object]) -> Iterator[tuple[Session, Step]]:
    """A session of a server with these answers by a message's type, after its reset."""

    def answer(socket: ServerConnection) -> None:
        for message in socket:
            asked = json.loads(message)["type"]
            socket.send(json.dumps({"reset": BEGUN, **answers}.get(asked)))

    with serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        session, first = Server(url, {}, timeout_s=20, wait_s=0).open({})
        try:
            yield session, first
        finally:
            session.close()
            server.shutdown()
            thread.join()


def test_only_a_step_can_be_refused_as_an_action() -> None:
    with serving(dict.fromkeys(("step", "mcp", "state"), REFUSED)) as (session, _):
        with pytest.raises(ActionRefused, match="not so"):
            session.step({})
        with pytest.raises(EnvironmentFailure, match="mcp: not so"):
            session.tools()
        with pytest.raises(EnvironmentFailure, match="state: not so"):
            session.state()


class RecordingContainer(ServerContainer):
    """A container that records how it was released."""

    def __init__(self) -> None:
        self.released: list[bool] = []

    def release(self, *, sound: bool) -> None:
        self.released.append(sound)


@pytest.mark.parametrize(
    ("step", "state", "sound"),
    [
        (ENDED, {"type": "state"}, True),
        (REFUSED, {"type": "state"}, True),
        (CRASHED, {"type": "state"}, False),
        (ENDED, CRASHED, True),
        (ENDED, None, False),
    ],
)
def test_a_container_whose_server_has_failed_is_not_used_again(
    step: object, state: object, sound: bool
) -> None:
    container, settings = RecordingContainer(), OpenEnvOptions()
    tool = strings("act", "Take one step.", "word")
    with serving({"mcp": NO_MCP, "step": step, "state": state}) as (session, first):
        environment = OpenEnvEnvironment(session, first, tool, settings, container)
        with closing(environment), suppress(EnvironmentFailure):
            environment.call(act("apple"))
    assert container.released == [sound]
