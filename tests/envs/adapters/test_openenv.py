"""Servers made with the package `openenv`, each in a process: tasks, seeds, tools, capacity."""

import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from adapter_pages import task_of_page

from agentrl.core.config.sections import Envs, Task
from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs import registry
from agentrl.envs.contract import Environment, ToolCall
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import make_sandboxes
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer

pytest.importorskip("websockets", reason="needs pip install 'agentrl-system[openenv]'")
from websockets.sync.server import ServerConnection, serve

from agentrl.envs.adapters.openenv.server import ActionRefused, Server

SERVER = """
import asyncio, json, random, socket, uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import (
    Action, CallToolAction, CallToolObservation, Environment, MCPEnvironment, Observation, State,
    create_app,
)
from pydantic import Field

WORDS = {"train": ["apple", "pear"], "test": ["fig"]}

class Guess(Action):
    "Guess the word."
    word: str = Field(min_length=1)

class Told(Observation):
    text: str

class Seeds(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, word=None):
        self._state = State(step_count=0)
        return self.begin(word or random.Random(seed).choice(WORDS["train"]))

    def begin(self, word):
        self.word = word
        return Told(text=f"A word of {len(word)} letters.")

    def step(self, action, timeout_s=None):
        self._state.step_count += 1
        if action.word == "crash":
            raise RuntimeError("the dictionary burns")
        right = action.word == self.word
        return Told(text="yes" if right else "no", done=right, reward=1.0 if right else -0.25)

    @property
    def state(self):
        return self._state

class Words(Seeds):
    def reset(self, split="train", index=0):
        self._state = State(step_count=0)
        return self.begin(WORDS[split][index])

    def list_splits(self):
        return list(WORDS)

    def num_tasks(self, split):
        return len(WORDS[split])

class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        served = FastMCP("sums")

        @served.tool()
        def add(a: int, b: int) -> int:
            "Add two numbers."
            self.sum = a + b
            return self.sum

        super().__init__(served)
        self.sum = 0

    def reset(self, seed=None, episode_id=None):
        self._state = State(step_count=0)
        return Observation(metadata={"target": 5})

    async def step_async(self, action, timeout_s=None, **more):
        told = await super().step_async(action, timeout_s=timeout_s, **more)
        told.reward, told.done = float(self.sum == 5), self.sum == 5
        return told

    def _step_impl(self, action, timeout_s=None, **more):
        raise ValueError("not an action of a tool")

    @property
    def state(self):
        return self._state

class Both(Tools):
    async def step_async(self, action, timeout_s=None, **more):
        right = action.word == str(self.sum)
        return Told(text="yes" if right else "no", done=right, reward=float(right))

KINDS = {
    "seeds": (Seeds, Guess, Told, 8), "full": (Seeds, Guess, Told, 1),
    "words": (Words, Guess, Told, 8), "both": (Both, Guess, Told, 8),
    "tools": (Tools, CallToolAction, CallToolObservation, 8),
}

async def main():
    serving, ports = [], {}
    for kind, (*made, places) in KINDS.items():
        app = create_app(*made, env_name=kind, max_concurrent_envs=places)
        bound = socket.create_server(("127.0.0.1", 0))
        ports[kind] = bound.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        serving.append(server.serve(sockets=[bound]))
    print(json.dumps(ports), flush=True)
    await asyncio.gather(*serving)

asyncio.run(main())
"""

Sources = dict[str, str]


@pytest.fixture(scope="module")
def sources(openenv_python: Path) -> Iterator[Sources]:
    """A server of each kind, all in one process."""
    argv = [str(openenv_python), "-c", SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            yield {kind: f"openenv:http://127.0.0.1:{port}" for kind, port in ports.items()}
        finally:
            process.terminate()


def begun(source: str, split: str = "train", place: int = 0, **options: Any) -> Environment:
    task = registry.source("words", options, source)
    return task.make(task.items(split)[place])


def act(word: str) -> list[ToolCall]:
    return [ToolCall("act", {"word": word})]


def test_the_tasks_of_a_server_are_items_of_its_splits(sources: Sources) -> None:
    task = registry.source("words", {}, sources["words"])
    assert task.splits == ("train", "test")
    assert [item.item_id for item in task.items("train")] == ["train-0", "train-1"]
    with pytest.raises(ItemError, match="unknown split tests; did you mean test"):
        task.items("tests")
    environment = task.make(task.items("test")[0])
    try:
        system, user = environment.start().messages
        assert system.content == "You act in words. Call act with an action."
        assert user.content == "A word of 3 letters."
        assert environment.call(act("fig")).reward == 1.0
    finally:
        environment.close()


def test_the_configuration_of_the_page_plays_its_episodes(sources: Sources) -> None:
    page = task_of_page("openenv")
    assert page.source == "openenv:http://127.0.0.1:8000"
    task = registry.source("words", page.options, sources["words"])
    environment = task.make(task.items("train")[0])
    try:
        assert environment.start().messages[0].content == "Guess the word."
        assert environment.call(act("fig")).reward == -0.25
        ended = environment.call(act("apple"))
        assert (ended.done, ended.reward, ended.score) == (True, 1.0, 1.0)
    finally:
        environment.close()


def test_rewards_add_up_and_the_state_gives_the_metrics(sources: Sources) -> None:
    environment = begun(sources["words"], solved=0.5)
    try:
        environment.start()
        first = environment.call(act("plum"))
        (answer,) = first.messages
        assert (answer.role, answer.name, answer.content) == ("tool", "act", "no")
        assert first.reward == -0.25
        assert environment.call("lemon").messages[0].content == "no", "a text is its one field"
        outcome = environment.call([*act("apple"), *act("after the end")])
    finally:
        environment.close()
        environment.close()
    assert (outcome.done, outcome.status) == (True, Status.COMPLETED)
    assert (outcome.reward, outcome.score) == (1.0, 1.0), "0.5 in all"
    assert outcome.metrics == {"step_count": 3.0}


def test_the_last_turn_ends_an_episode_with_its_rewards(sources: Sources) -> None:
    environment = begun(sources["words"], max_turns=1, reward="last")
    try:
        environment.start()
        outcome = environment.call([*act("fig"), *act("plum")])
    finally:
        environment.close()
    assert (outcome.done, outcome.status, outcome.reward) == (True, Status.TASK_LIMIT, -0.25)


def test_a_server_without_tasks_is_reset_with_seeds(sources: Sources) -> None:
    options = {"items": 8, "test_items": 2}
    task = registry.source("words", options, sources["seeds"])
    assert task.splits == ("train", "test")
    items = task.items("train")
    assert len({item.content["seed"] for item in items}) == 8
    first, again = task.make(items[0]), task.make(items[0])
    try:
        assert first.start() == again.start()
    finally:
        first.close()
        again.close()
    given = begun(sources["seeds"], **options, reset={"word": "quince"}, prompt="Guess.")
    try:
        assert [each.content for each in given.start().messages] == [
            "Guess.",
            "A word of 6 letters.",
        ]
    finally:
        given.close()


def test_what_does_not_fit_the_action_is_an_answer_and_a_crash_a_failure(sources: Sources) -> None:
    environment = begun(sources["words"])
    try:
        assert environment.tools[0].parameters["required"] == ["word"]
        assert list(environment.tools[0].parameters["properties"]) == ["word"]
        environment.start()
        calls = [*act(""), ToolCall("guess", {}), ToolCall("act", {}, "no JSON: char 7")]
        short, other, broken = (each.content for each in environment.call(calls).messages)
        assert short == "word: String should have at least 1 character"
        assert (other, broken) == ("There is no tool guess.", "no JSON: char 7")
        with pytest.raises(EnvironmentFailure, match="step: the dictionary burns"):
            environment.call(act("crash"))
    finally:
        environment.close()


def test_tools_of_the_server_are_steps_with_rewards(sources: Sources) -> None:
    environment = begun(sources["tools"], items=1, test_items=1)
    try:
        assert [tool.name for tool in environment.tools] == ["add"]
        assert environment.tools[0].parameters["required"] == ["a", "b"]
        assert environment.start().messages[1].content == '{"metadata": {"target": 5}}'
        wrong, fault = environment.call(
            [ToolCall("add", {"a": 1, "b": 1}), ToolCall("add", {"a": "x"})]
        ).messages
        assert wrong.content == "2"
        assert "validation error" in fault.content
        outcome = environment.call([ToolCall("add", {"a": 2, "b": 3})])
        assert (outcome.done, outcome.reward) == (True, 1.0)
    finally:
        environment.close()


def test_a_turn_without_a_call_ends_an_episode_with_tools(sources: Sources) -> None:
    environment = begun(sources["tools"], items=1, test_items=1)
    try:
        environment.start()
        outcome = environment.call("I give up.")
    finally:
        environment.close()
    assert (outcome.done, outcome.status, outcome.reward) == (True, Status.COMPLETED, 0.0)


def test_tools_beside_an_action_are_called_without_a_step(sources: Sources) -> None:
    environment = begun(sources["both"], items=1, test_items=1)
    try:
        environment.start()
        assert [tool.name for tool in environment.tools] == ["act", "add"]
        (answer,) = environment.call([ToolCall("add", {"a": 3, "b": 4})]).messages
        assert answer.content == "7"
        assert environment.call(act("7")).reward == 1.0
    finally:
        environment.close()


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


def test_only_a_step_can_be_refused_as_an_action() -> None:
    refusal = {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "not so"}}

    def answer(socket: ServerConnection) -> None:
        for message in socket:
            asked = json.loads(message)["type"]
            begun = {"type": "observation", "data": {"observation": {}}}
            socket.send(json.dumps(begun if asked == "reset" else refusal))

    with serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        session, _ = Server(url, {}, timeout_s=20, wait_s=0).open({})
        try:
            with pytest.raises(ActionRefused, match="not so"):
                session.step({})
            with pytest.raises(EnvironmentFailure, match="mcp: not so"):
                session.tools()
            with pytest.raises(EnvironmentFailure, match="state: not so"):
                session.state()
        finally:
            session.close()
            server.shutdown()
            thread.join()


IMAGE_SERVER = (
    SERVER.partition("KINDS =")[0]
    + """
app = create_app(Seeds, Guess, Told, env_name="seeds", max_concurrent_envs=1)
uvicorn.run(app, host="0.0.0.0", port=8000)
"""
)


def build(client: docker.DockerClient, tag: str, files: dict[str, Path | bytes]) -> None:
    """Build an image of files: paths of folders, or contents."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for name, given in files.items():
            if isinstance(given, Path):
                archive.add(given, name)
                continue
            entry = tarfile.TarInfo(name)
            entry.size = len(given)
            archive.addfile(entry, io.BytesIO(given))
    context.seek(0)
    for event in client.api.build(
        fileobj=context, custom_context=True, tag=tag, rm=True, decode=True
    ):
        assert "error" not in event, event


@pytest.mark.slow
def test_an_image_is_a_source_whose_containers_serve_an_episode_each(
    openenv_python: Path,
    sandbox_image: str,
    engine: Engine,
    docker_client: docker.DockerClient,
    owned: Callable[[], list[str]],
) -> None:
    (site,) = openenv_python.parent.parent.glob("lib/python3.*/site-packages")
    tag = "agentrl-test:openenv"
    dockerfile = (
        f"FROM {sandbox_image}\nCOPY site /site\nCOPY server.py /srv/\nWORKDIR /srv\n"
        'ENV PYTHONPATH=/site\nCMD ["python3", "server.py"]\n'
    )
    files = {"Dockerfile": dockerfile.encode(), "site": site, "server.py": IMAGE_SERVER.encode()}
    build(docker_client, tag, files)
    source = registry.source("words", {"solved": 0.5}, f"openenv:{tag}")
    (pool,) = make_sandboxes(source, engine, "")
    try:
        items = source.items("train")
        first, second = source.make(items[0]), source.make(items[1])
        assert len(owned()) == 2, "a server of one place each"
        for environment in (first, second):
            assert environment.start().messages[1].content.startswith("A word of ")
            guesses = [[ToolCall("act", {"word": word})] for word in ("apple", "pear")]
            outcomes = [environment.call(guesses[0])]
            if not outcomes[-1].done:
                outcomes.append(environment.call(guesses[1]))
            assert (outcomes[-1].done, outcomes[-1].score) == (True, 1.0)
            environment.close()
        again = source.make(items[2])
        assert len(owned()) == 2
        again.close()
        found = docker_client.api.inspect_container(owned()[0])
        (network,) = found["NetworkSettings"]["Networks"]
        assert docker_client.api.inspect_network(network)["Internal"] is True
    finally:
        pool.close()
        docker_client.api.remove_image(tag, force=True)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("CMD []", "the image has no CMD that starts a server"),
        ('CMD ["nowhere"]', "the image's server: .*No such file.*'nowhere'"),
        (
            """CMD ["python3", "-c", "raise SystemExit('no words')"]""",
            "the image's server: it exited with 1: no words",
        ),
        ('CMD ["sleep", "99"]', "the image's server: nothing listens on port 8000"),
    ],
)
def test_an_image_without_a_server_is_one_error(
    sandbox_image: str,
    engine: Engine,
    docker_client: docker.DockerClient,
    command: str,
    error: str,
) -> None:
    tag = "agentrl-test:no-openenv"
    build(docker_client, tag, {"Dockerfile": f"FROM {sandbox_image}\n{command}\n".encode()})
    source = registry.source("words", {"start_s": 0.5}, f"openenv:{tag}")
    (pool,) = make_sandboxes(source, engine, "")
    try:
        with pytest.raises(EnvironmentFailure, match=error):
            source.make(source.items("test")[0])
    finally:
        pool.close()
        docker_client.api.remove_image(tag, force=True)


def test_an_image_needs_an_env_server_and_tells_its_tasks_in_the_options() -> None:
    source = registry.source("words", {"tasks": {"train": 2, "test": 1}}, "openenv:echo-env")
    assert source.splits == ("train", "test")
    (item,) = source.items("test")
    assert item.content == {"split": "test", "index": 0}
    with pytest.raises(ConfigError, match="the image echo-env needs an env server"):
        source.make(item)
