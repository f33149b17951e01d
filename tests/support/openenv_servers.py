"""Servers made with the package `openenv`, and episodes on them."""

from typing import Any

from agentrl.envs import registry
from agentrl.envs.contract import Environment, ToolCall

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
IMAGE_SERVER = (
    SERVER.partition("KINDS =")[0]
    + """
app = create_app(Seeds, Guess, Told, env_name="seeds", max_concurrent_envs=1)
uvicorn.run(app, host="0.0.0.0", port=8000)
"""
)
Sources = dict[str, str]


def begun(source: str, split: str = "train", place: int = 0, **options: Any) -> Environment:
    task = registry.source("words", options, source)
    return task.make(task.items(split)[place])


def act(word: str) -> list[ToolCall]:
    return [ToolCall("act", {"word": word})]
