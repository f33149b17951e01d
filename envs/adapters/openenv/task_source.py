"""Environments of an OpenEnv server as tasks: an item is a task of the server, or a seed.

openenv:URL ─▶ reset(split, index) or reset(seed) ─▶ a text ─▶ act or a tool ─▶ step ─▶ …
openenv:IMAGE ─▶ a container with the server, for one episode at a time ─▶ the same
the rewards of a turn's steps ─▶ the turn's reward
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec

from agentrl.core.errors import ConfigError, EnvironmentFailure, ItemError
from agentrl.envs.adapters.openenv.container import ServerContainer, container_spec
from agentrl.envs.adapters.openenv.environment import ACT, OpenEnvEnvironment, OpenEnvOptions
from agentrl.envs.adapters.openenv.server import Server
from agentrl.envs.contract import Environment, Expert, Item, Tool, require_split
from agentrl.envs.sandbox.sandbox import Sandboxes, Spec
from agentrl.envs.tasks import options
from agentrl.envs.tasks.generated import SPLITS, seed_items

TOOL_ACTIONS = ("call_tool", "list_tools")  # the `type` of actions that are a tool's


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of `reset` in an item: a task's place, or a seed."""

    split: str | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET
    seed: int | msgspec.UnsetType = msgspec.UNSET


class OpenEnvSource:
    """The tasks of one server, or seeds of its `reset`. The server is asked when it is needed.

    Of an image, each episode has a container of its own.
    """

    def __init__(self, task: str, argument: str, raw_options: Mapping[str, Any]) -> None:
        """Raises ItemError for an option that is not understood, ConfigError."""
        self.name = task
        self._options = settings = options.parse(task, OpenEnvOptions, raw_options)
        self.max_turns: int = settings.max_turns
        headers = options.fill_env(task, "headers", settings.headers)
        self._reach = partial(
            Server, headers=headers, timeout_s=settings.timeout_s, wait_s=settings.wait_s
        )
        of_url = argument.startswith(("http://", "https://"))
        self._image = "" if of_url else argument
        self._server = self._reach(argument) if of_url else None
        self._pool: Sandboxes | None = None
        self._tasks: Mapping[str, int] | None = None
        self._shared: tuple[Tool | None, OpenEnvOptions] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """Those of the server's tasks, train and test for one without. Raises ItemError."""
        return tuple(self._counts()) or SPLITS

    def items(self, split: str) -> Sequence[Item]:
        counts, settings = self._counts(), self._options
        if not counts:
            count = settings.items if split == "train" else settings.test_items
            return seed_items(self.name, split, count, f"openenv {settings.seed}")
        require_split(self.name, split, counts)
        return tuple(
            Item(self.name, f"{split}-{index}", {"split": split, "index": index})
            for index in range(counts[split])
        )

    def make(self, item: Item) -> Environment:
        """Wait for a place on the server. Raises ItemError, ConfigError, EnvironmentFailure."""
        place = options.read(item, Place)
        with ExitStack() as undo:
            server, container = self._server, None
            if server is None:
                container = self._contained()
                undo.callback(container.release, sound=False)
                server = self._reach(container.url)
            self._shared = self._shared or self._ask(server)
            action, settings = self._shared
            session, first = server.open(settings.reset | msgspec.to_builtins(place))
            undo.callback(session.close)
            environment = OpenEnvEnvironment(session, first, action, settings, container)
            undo.pop_all()
        return environment

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:  # noqa: ARG002
        raise ItemError(f"item {item.item_id}: OpenEnv has no demonstrator of {self.name}")

    def specs(self, image: str) -> Sequence[Spec]:  # noqa: ARG002
        """Return the kind of container of an image; none where the source is a URL."""
        return [container_spec(self._image, self._options.memory_mb)] if self._image else []

    def contain(self, pools: Mapping[str, Sandboxes]) -> None:
        self._pool = pools[""]

    def _contained(self) -> ServerContainer:
        if self._pool is None:
            raise ConfigError(
                f"{self.name}: the image {self._image} needs an env server to run its containers",
                hint="set envs.url to an env server, or name the URL of a server that runs",
            )
        return ServerContainer(self._pool, self._options.port, self._options.start_s)

    def _ask(self, server: Server) -> tuple[Tool | None, OpenEnvOptions]:
        """What all episodes share: the action's tool, the options with a prompt."""
        action, settings = _act(server.action_schema()), self._options
        if not settings.prompt:
            ask = f"Call {ACT} with an action." if action else "Use the tools."
            prompt = f"You act in {server.name()}. {ask}"
            settings = msgspec.structs.replace(settings, prompt=prompt)
        return action, settings

    def _counts(self) -> Mapping[str, int]:
        """The number of tasks of each split; empty for a server without. Raises ItemError."""
        if self._server is None:
            return self._options.tasks
        if self._tasks is None:
            try:
                self._tasks = self._server.splits() or {}
            except EnvironmentFailure as error:
                raise ItemError(f"{self.name}: {error}", hint="start the server") from error
        return self._tasks


def _act(schema: Mapping[str, Any]) -> Tool | None:
    """The tool that takes an action; None where actions are tools' calls."""
    fields = {name: each for name, each in schema.get("properties", {}).items()}
    fields.pop("metadata", None)
    if not fields or (fields.get("type") or {}).get("const") in TOOL_ACTIONS:
        return None
    parameters = {key: each for key, each in schema.items() if key not in ("title", "description")}
    parameters |= {"type": "object", "properties": fields}
    return Tool(ACT, str(schema.get("description") or "Take one step."), parameters)
