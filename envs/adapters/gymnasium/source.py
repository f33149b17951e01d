"""Environments of Gymnasium as tasks: an item is a seed of `reset`, a turn is one or more steps.

gymnasium:ID ─▶ gymnasium.make ─▶ reset(seed) ─▶ a text ─▶ act(action) ─▶ step ─▶ …
the rewards of a turn's steps, discounted and added up ─▶ the turn's reward
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import gymnasium
import msgspec
from gymnasium.error import Error as GymnasiumError
from msgspec import Meta

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.adapters.gymnasium import spaces
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
    Message,
    Observation,
    Outcome,
    Recovery,
    Tool,
    ToolCall,
    shortened,
)
from agentrl.envs.tasks import options
from agentrl.envs.tasks.generated import SPLITS, seed_items

MAX_TURNS = 100  # of an environment that has no limit of its own
ACT = "act"


class GymnasiumOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options. `prompt`: the rules, as the agent is told them. `actions`: names of the actions of a
    Discrete space. `discount`: of each further step. `solved`: the return from which an episode
    is solved; the environment's own `reward_threshold` where absent. `config`: arguments of
    `gymnasium.make`.
    """

    seed: int = 0
    items: options.Count = 1000
    test_items: options.Count = 200
    prompt: str = ""
    actions: list[str] = []
    discount: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    solved: float | None = None
    max_turns: options.Count | None = None
    config: dict[str, Any] = {}


class Episode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item's content."""

    seed: int


class GymnasiumEnvironment:
    """One episode: it ends itself at the last turn, so that the rewards until then count."""

    def __init__(self, made: "gymnasium.Env[Any, Any]", item: Item, given: "Rules") -> None:
        self._made, self._given = made, given
        self._seed = options.read(item.item_id, Episode, item.content).seed
        self._rewards: list[float] = []
        self._turns = 0
        self._paid = 0  # how many rewards earlier turns had
        self._closed = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        return (self._given.tool,)

    def start(self) -> Observation:
        """Raises EnvironmentFailure."""
        try:
            observation, _ = self._made.reset(seed=self._seed)
            shown = self._shown(observation)
        except Exception as error:  # other people's code, of which the agent did nothing yet
            raise EnvironmentFailure(f"{self._given.task}: reset: {error}") from error
        return Observation((Message("system", self._given.prompt), Message("user", shown)))

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        """Raises EnvironmentFailure."""
        self._turns += 1
        answers: list[Message] = []
        if isinstance(calls, str) or not calls:
            answers.append(Message("user", f"Call {ACT} with an action."))
            calls = ()
        for call in calls:
            answer, terminated = self._act(call)
            answers.append(Message("tool", answer, call.name))
            if terminated is not None:
                return self._end(Status.COMPLETED if terminated else Status.TASK_LIMIT)
        if self._turns >= self._given.max_turns:
            return self._end(Status.TASK_LIMIT)
        return Outcome(tuple(answers), reward=self._turn_reward())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._made.close()

    def _act(self, call: ToolCall) -> tuple[str, bool | None]:
        """The answer, and whether the environment terminated (False: truncated, None: neither)."""
        if call.error or call.name != ACT:
            return call.error or f"There is no tool {shortened(call.name)}; call {ACT}.", None
        space = self._made.action_space
        try:
            action = spaces.action(space, self._given.actions, call.arguments.get("action"))
        except ValueError as error:
            return str(error), None
        try:
            observation, reward, terminated, truncated, _ = self._made.step(action)
            shown = self._shown(observation)
        except Exception as error:  # other people's code, given an action of its own space
            raise EnvironmentFailure(f"{self._given.task}: step: {error}") from error
        self._rewards.append(float(reward))
        return shown, bool(terminated) if terminated or truncated else None

    def _shown(self, observation: Any) -> str:
        text = spaces.written(observation)
        if self._made.render_mode == "ansi":
            text += f"\n{spaces.drawn(str(self._made.render()))}"
        return text

    def _turn_reward(self) -> float:
        """Return the discounted rewards of the steps since the last turn."""
        first, self._paid = self._paid, len(self._rewards)
        rate = self._given.discount
        new = enumerate(self._rewards[first:], first)
        return math.fsum(reward * rate**step for step, reward in new)

    def _end(self, status: Status) -> Outcome:
        found = sum(self._rewards)
        solved = self._given.solved
        return Outcome(
            (),
            done=True,
            status=status,
            reward=self._turn_reward(),
            score=found if solved is None else float(found >= solved),
            metrics={"return": found, "steps": float(len(self._rewards))},
        )


class Rules(msgspec.Struct, frozen=True):
    """What all episodes of a task share. `solved`: None where the return itself is the score."""

    task: str
    prompt: str
    tool: Tool
    actions: list[str]
    discount: float
    solved: float | None
    max_turns: int


class GymnasiumSource:
    """The items of one environment: seeds of its `reset`."""

    splits = SPLITS
    recovery: Recovery = "replayable"

    def __init__(self, task: str, argument: str, given: Mapping[str, Any]) -> None:
        """Raises ItemError for an environment, option or action space that cannot be played."""
        self.name, self._id = task, argument
        self._options = asked = options.parse(task, GymnasiumOptions, given)
        self._config = asked.config
        made = self._make()
        try:
            tool = _tool(made.action_space, asked.actions)
            spec = made.spec
            if "render_mode" not in asked.config and "ansi" in made.metadata["render_modes"]:
                self._config = asked.config | {"render_mode": "ansi"}
        except ItemError as error:
            raise ItemError(f"{task}: gymnasium:{argument}: {error}") from error
        finally:
            made.close()
        limit, threshold = (spec.max_episode_steps, spec.reward_threshold) if spec else (None, None)
        self.max_turns = asked.max_turns or limit or MAX_TURNS
        self._rules = Rules(
            task=task,
            prompt=asked.prompt or f"You act in {argument}. Call {ACT} with an action.",
            tool=tool,
            actions=asked.actions,
            discount=asked.discount,
            solved=threshold if asked.solved is None else asked.solved,
            max_turns=self.max_turns,
        )

    def items(self, split: str) -> Sequence[Item]:
        """Raises ItemError."""
        wanted = self._options.items if split == "train" else self._options.test_items
        return seed_items(self.name, split, wanted, f"gymnasium {self._options.seed}")

    def make(self, item: Item) -> Environment:
        """Raises ItemError."""
        return GymnasiumEnvironment(self._make(), item, self._rules)

    def expert(self, item: Item, *, seed: int, noise: float = 0.0) -> Expert:  # noqa: ARG002
        raise ItemError(f"item {item.item_id}: Gymnasium has no demonstrator of {self._id}")

    def _make(self) -> "gymnasium.Env[Any, Any]":
        """Raises ItemError."""
        where = f"{self.name}: gymnasium:{self._id}"
        try:
            return gymnasium.make(self._id, disable_env_checker=True, **self._config)
        except GymnasiumError as error:
            raise ItemError(f"{where}: {error}") from error
        except (ImportError, TypeError, ValueError, AttributeError) as error:
            hint = f"install what it needs, or correct config {json.dumps(self._config)}"
            raise ItemError(f"{where}: {error}", hint=hint) from error


def _tool(space: Any, names: Sequence[str]) -> Tool:
    parameters = {
        "type": "object",
        "properties": {"action": spaces.schema(space, names)},
        "required": ["action"],
        "additionalProperties": False,
    }
    return Tool(ACT, "Take one step.", parameters)
