"""Environments of Gymnasium as tasks: an item is a seed of `reset`, a turn is one or more steps.

gymnasium:ID ─▶ gymnasium.make ─▶ reset(seed) ─▶ a text ─▶ act(action) ─▶ step ─▶ …
the rewards of a turn's steps, discounted and added up ─▶ the turn's reward
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import gymnasium
import msgspec
from gymnasium.error import Error as GymnasiumError
from msgspec import Meta

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.adapters.gymnasium import spaces
from agentrl.envs.adapters.steps import Answer, StepEnvironment
from agentrl.envs.contract import (
    Environment,
    Expert,
    Item,
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


class GymnasiumEnvironment(StepEnvironment):
    """One episode. `settings`: with the environment's own limit and prompt."""

    def __init__(
        self, env: "gymnasium.Env[Any, Any]", item: Item, tool: Tool, settings: GymnasiumOptions
    ) -> None:
        super().__init__(settings.max_turns or MAX_TURNS, settings.discount)
        self._env, self._task, self._settings = env, item.task, settings
        self._seed = options.read(item, Episode).seed
        self._is_closed = False
        self.tools: tuple[Tool, ...] = (tool,)

    def start(self) -> Observation:
        try:
            observation, _ = self._env.reset(seed=self._seed)
            text = self._text_of(observation)
        except Exception as error:  # other people's code, of which the agent did nothing yet
            raise EnvironmentFailure(f"{self._task}: reset: {error}") from error
        return Observation.of(self._settings.prompt, text)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._env.close()

    def _answer_text(self, text: str) -> Answer:  # noqa: ARG002
        return f"Call {ACT} with an action.", None

    def _answer_call(self, call: ToolCall) -> Answer:
        if call.error or call.name != ACT:
            return call.error or f"There is no tool {shortened(call.name)}; call {ACT}.", None
        space = self._env.action_space
        try:
            action = spaces.action(space, self._settings.actions, call.arguments.get("action"))
        except ValueError as error:
            return str(error), None
        try:
            observation, reward, terminated, truncated, _ = self._env.step(action)
            text = self._text_of(observation)
        except Exception as error:  # other people's code, given an action of its own space
            raise EnvironmentFailure(f"{self._task}: step: {error}") from error
        self._rewards.append(float(reward))
        if terminated:
            return text, Status.COMPLETED
        return text, Status.TASK_LIMIT if truncated else None

    def _text_of(self, observation: Any) -> str:
        text = spaces.written(observation)
        if self._env.render_mode == "ansi":
            text += f"\n{spaces.drawn(str(self._env.render()))}"
        return text

    def _end(self, status: Status) -> Outcome:
        total = sum(self._rewards)
        solved = self._settings.solved
        return Outcome(
            (),
            done=True,
            status=status,
            reward=self._turn_reward(),
            score=total if solved is None else float(total >= solved),
            metrics={"return": total, "steps": float(len(self._rewards))},
        )


class GymnasiumSource:
    """The items of one environment: seeds of its `reset`."""

    splits = SPLITS
    recovery: Recovery = "replayable"

    def __init__(self, task: str, argument: str, raw_options: Mapping[str, Any]) -> None:
        """Raises ItemError for an environment, option or action space that cannot be played."""
        self.name, self._id = task, argument
        settings = options.parse(task, GymnasiumOptions, raw_options)
        self._config = settings.config
        env = self._make()
        try:
            self._tool = _tool(env.action_space, settings.actions)
            spec = env.spec
            if "render_mode" not in settings.config and "ansi" in env.metadata["render_modes"]:
                self._config = settings.config | {"render_mode": "ansi"}
        except ItemError as error:
            raise ItemError(f"{task}: gymnasium:{argument}: {error}") from error
        finally:
            env.close()
        limit, threshold = (spec.max_episode_steps, spec.reward_threshold) if spec else (None, None)
        self.max_turns = settings.max_turns or limit or MAX_TURNS
        self._options = msgspec.structs.replace(
            settings,
            prompt=settings.prompt or f"You act in {argument}. Call {ACT} with an action.",
            solved=threshold if settings.solved is None else settings.solved,
            max_turns=self.max_turns,
        )

    def items(self, split: str) -> Sequence[Item]:
        count = self._options.items if split == "train" else self._options.test_items
        return seed_items(self.name, split, count, f"gymnasium {self._options.seed}")

    def make(self, item: Item) -> Environment:
        return GymnasiumEnvironment(self._make(), item, self._tool, self._options)

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
