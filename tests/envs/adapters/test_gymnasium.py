"""Gymnasium's own environments: seeds, observations and actions as text, rewards of all steps."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Message, Outcome, TaskSource, ToolCall
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer

gymnasium = pytest.importorskip("gymnasium", reason="needs pip install 'agentrl-system[gymnasium]'")

DIRECTIONS = ["left", "down", "right", "up"]
LAKE = {"actions": DIRECTIONS, "config": {"is_slippery": False}, "items": 3, "test_items": 2}
SAFE = ("down", "down", "right", "right", "down", "right")  # to the goal of the 4x4 lake


def source(name: str, **options: Any) -> TaskSource:
    return registry.source("game", options, f"gymnasium:{name}")


def started(task: TaskSource) -> Environment:
    environment = task.make(task.items("train")[0])
    environment.start()
    return environment


def act(action: Any) -> list[ToolCall]:
    return [ToolCall("act", {"action": action})]


def walked(task: TaskSource) -> Outcome:
    environment = started(task)
    outcomes = [environment.call(act(step)) for step in SAFE]
    environment.close()
    assert not any(each.done for each in outcomes[:-1])
    return outcomes[-1]


def test_the_goal_of_the_lake_is_a_reward_and_a_success() -> None:
    outcome = walked(source("FrozenLake-v1", **LAKE))
    assert (outcome.done, outcome.status) == (True, Status.COMPLETED)
    assert (outcome.reward, outcome.score) == (1.0, 1.0)
    assert outcome.metrics == {"return": 1.0, "steps": 6.0}


def test_rewards_of_later_steps_are_discounted_and_the_score_is_not() -> None:
    outcome = walked(source("FrozenLake-v1", **LAKE, discount=0.5))
    assert outcome.reward == pytest.approx(0.5**5)
    assert outcome.score == 1.0


def test_a_drawn_state_reaches_the_agent_without_colours() -> None:
    task = source("FrozenLake-v1", **LAKE)
    environment = task.make(task.items("train")[0])
    system, user = environment.start().messages
    assert system.content == "You act in FrozenLake-v1. Call act with an action."
    assert user == Message("user", "0\n[S]FFF\nFHFH\nFFFH\nHFFG")
    (answer,) = environment.call(act("down")).messages
    assert answer == Message("tool", "4\n  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG", "act")


def test_every_turn_has_its_reward_until_the_turns_run_out() -> None:
    """A pole falls to one side after about ten pushes; each step before that gives 1."""
    environment = started(source("CartPole-v1", max_turns=4))
    outcomes = [environment.call(act(turn % 2)) for turn in range(4)]
    assert [each.done for each in outcomes] == [False, False, False, True]
    assert [each.reward for each in outcomes] == [1.0] * 4
    assert outcomes[-1].status == Status.TASK_LIMIT
    assert outcomes[-1].metrics == {"return": 4.0, "steps": 4.0}
    assert outcomes[-1].score == 0.0, "the environment's own threshold is 475"


def test_a_return_that_the_options_name_is_a_success() -> None:
    environment = started(source("CartPole-v1", max_turns=2, solved=2.0))
    assert [environment.call(act(0)).score for _ in range(2)] == [0.0, 1.0]


def test_the_seed_of_an_item_decides_the_episode() -> None:
    def opening(place: int) -> tuple[Message, ...]:
        task = source("CartPole-v1", items=2)
        return task.make(task.items("train")[place]).start().messages

    assert opening(0) == opening(0) != opening(1)


def test_splits_share_no_seed_whatever_the_options() -> None:
    found: dict[str, set[str]] = {"train": set(), "test": set()}
    for seed in (0, 1):
        task = source("CartPole-v1", seed=seed, items=50, test_items=20)
        for split, seeds in found.items():
            seeds.update(item.item_id for item in task.items(split))
    assert (len(found["train"]), len(found["test"])) == (100, 40)
    assert not found["train"] & found["test"]


@pytest.mark.parametrize(
    ("name", "action"),
    [
        *(("CartPole-v1", each) for each in (2, True, "left", None, 10**30)),
        *(("MountainCarContinuous-v0", each) for each in ([2.0], 0.5, [[0.5]])),
    ],
)
def test_an_action_that_is_none_of_the_space_is_answered_and_not_taken(
    name: str, action: Any
) -> None:
    environment = started(source(name))
    outcome = environment.call(act(action))
    assert not outcome.done
    assert "is not an action of" in outcome.messages[0].content
    assert outcome.metrics == {}


def test_actions_of_a_box_are_lists_of_numbers() -> None:
    environment = started(source("MountainCarContinuous-v0"))
    schema = environment.tools[0].parameters["properties"]["action"]
    assert schema == {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 1}
    assert environment.call(act([0.5])).messages[0].content.startswith("[-0.")


def test_a_turn_without_a_call_is_answered() -> None:
    environment = started(source("CartPole-v1"))
    for turn in ("left", [ToolCall("akt", {})], [ToolCall("act", {}, "no JSON: char 7")]):
        outcome = environment.call(turn)
        assert outcome.messages[0].content
        assert not outcome.done
    assert outcome.messages[0].content == "no JSON: char 7"


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("FrozenLakes-v1", {}, "doesn't exist. Did you mean: `FrozenLake`"),
        ("nomodule:X-v0", {}, "No module named 'nomodule'"),
        ("CartPole-v1", {"config": {"gravitas": 3}}, "unexpected keyword argument 'gravitas'"),
        ("CartPole-v1", {"actions": ["left"]}, "1 names do not fit the action space Discrete"),
        ("CartPole-v1", {"discont": 0.9}, "unknown option discont; did you mean discount"),
    ],
)
def test_what_cannot_be_played_is_one_error(name: str, options: Any, error: str) -> None:
    with pytest.raises(ItemError, match=error):
        source(name, **options)


class Breaking(gymnasium.Env):  # type: ignore[misc]
    """An environment of a user's that fails at its first step."""

    observation_space = gymnasium.spaces.Text(9)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return "ready", {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        raise RuntimeError("out of order")


@pytest.fixture
def breaking() -> Iterator[TaskSource]:
    gymnasium.register(id="Breaking-v0", entry_point=Breaking)
    yield source("Breaking-v0")
    gymnasium.registry.pop("Breaking-v0")


def test_an_environment_that_raises_is_a_failure_and_no_reward(breaking: TaskSource) -> None:
    environment = breaking.make(breaking.items("train")[0])
    assert environment.start().messages[1].content == "ready"
    with pytest.raises(EnvironmentFailure, match="step: out of order"):
        environment.call(act(1))


def test_there_is_no_demonstrator() -> None:
    task = source("CartPole-v1", items=1)
    with pytest.raises(ItemError, match="Gymnasium has no demonstrator of CartPole-v1"):
        task.expert(task.items("train")[0], seed=0)


def test_episodes_are_the_same_behind_the_env_server() -> None:
    server = EnvServer({"game": Task(source="gymnasium:FrozenLake-v1", options=LAKE)})
    try:
        url = Envs(url=server.url)
        far = RemoteSource(url, "game", LAKE, "gymnasium:FrozenLake-v1")
        assert walked(far) == walked(source("FrozenLake-v1", **LAKE))
    finally:
        server.close()
