"""An episode of the household task, rule by rule."""

from typing import Any

import pytest

from agentrl.core.errors import ItemError
from agentrl.core.types import Status
from agentrl.envs.contract import Item, ToolCall
from agentrl.envs.tasks.alfworld.environment import AlfworldEnvironment
from agentrl.envs.tasks.alfworld.playable import GeneratedGame
from agentrl.envs.tasks.alfworld.problem import AlfworldProblem, ErrandSpec, RoomPlace
from agentrl.envs.tasks.alfworld.task_source import AlfworldSource

SCENE = AlfworldProblem(
    ErrandSpec("put", "mug", "desk"),
    [RoomPlace("desk 1"), RoomPlace("fridge 1", opens=True)],
    {"mug 1": "fridge 1", "egg 1": "fridge 1"},
)
ACTIONS = " AVAILABLE ACTIONS: go to desk 1\ngo to fridge 1\nlook\ninventory\n"


def begun(style: str = "compact") -> AlfworldEnvironment:
    return AlfworldEnvironment(GeneratedGame(SCENE, style), style)  # type: ignore[arg-type]


def take(action: Any) -> ToolCall:
    return ToolCall("take_action", {"action": action})


def answers(environment: AlfworldEnvironment, *actions: str) -> list[str]:
    return [environment.call([take(action)]).messages[0].content for action in actions]


def test_the_full_style_lists_the_admissible_actions() -> None:
    environment = begun("full")
    assert environment.start().messages[1].content == (
        "You are in the middle of a room. Looking quickly around you, you see a desk 1, and a "
        f"fridge 1.\nYour task is to: put a mug in desk.{ACTIONS}"
    )
    outcome = environment.call([take("go to desk 1")])
    assert outcome.messages[0].content == (
        "You arrive at desk 1. On the desk 1, you see nothing. AVAILABLE ACTIONS: "
        "go to fridge 1\nlook\ninventory\n"
    )
    assert (outcome.messages[0].role, outcome.messages[0].name) == ("tool", "take_action")


def test_the_full_style_words_every_kind_of_action() -> None:
    told = answers(
        begun("full"),
        *(
            "look",
            "inventory",
            "go to fridge 1",
            "look",
            "open fridge 1",
            "take mug 1 from fridge 1",
        ),
        *("inventory", "cool mug 1 with fridge 1", "move mug 1 to fridge 1", "close fridge 1"),
    )
    assert [text.partition(" AVAILABLE ACTIONS")[0] for text in told] == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "You are carrying: nothing.",
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You are facing the fridge 1. The fridge 1 is closed.",
        "You open the fridge 1. The fridge 1 is open. In it, you see a mug 1, and an egg 1.",
        "You pick up the mug 1 from the fridge 1.",
        "You are carrying: a mug 1.",
        "You cool the mug 1 using the fridge 1.",
        "You move the mug 1 to the fridge 1.",
        "You close the fridge 1.",
    ]


def test_the_compact_style_tells_the_same_in_few_words() -> None:
    environment = begun()
    first = [message.content for message in environment.start().messages]
    assert first == ["alfworld", "put a mug in desk\ndesk 1 fridge 1"]
    assert answers(environment, "go to desk 1", "go to fridge 1", "open fridge 1") == [
        "nothing",
        "closed",
        "mug 1 egg 1",
    ]


def test_success_ends_the_episode_with_reward_one() -> None:
    environment = begun()
    answers(environment, "go to fridge 1", "open fridge 1", "take mug 1 from fridge 1")
    answers(environment, "go to desk 1")
    outcome = environment.call([take("move mug 1 to desk 1")])
    assert (outcome.done, outcome.status) == (True, Status.COMPLETED)
    assert (outcome.reward, outcome.score, outcome.messages) == (1.0, 1.0, ())


def test_only_the_first_call_of_a_message_counts() -> None:
    environment = begun()
    outcome = environment.call([take("go to desk 1"), take("go to fridge 1")])
    assert [message.content for message in outcome.messages] == ["nothing"]
    assert "go to desk 1" not in environment._story.admissible()


def test_an_action_is_lower_cased_and_the_nearest_one_is_taken() -> None:
    assert answers(begun(), " GO TO Fridge 1 ", "open the fridge") == ["closed", "mug 1 egg 1"]


def test_the_first_line_of_an_action_is_taken_as_in_agentbench() -> None:
    assert answers(begun(), "go to fridge 1\ngo to desk 1") == ["closed"]


@pytest.mark.parametrize("action", ["dance", "", "\n", "42 " * 10_000])
def test_what_is_like_no_action_does_nothing(action: str) -> None:
    assert answers(begun(), action) == ["Nothing happened."]


def test_the_same_text_three_times_in_a_row_is_an_invalid_action() -> None:
    environment = begun()
    answers(environment, "look", "look", "inventory", "look", "LOOK")
    outcome = environment.call([take("look")])
    assert (outcome.done, outcome.status, outcome.reward) == (True, Status.INVALID_ACTION, 0.0)


@pytest.mark.parametrize("turn", ["go to desk 1", "", []])
def test_a_turn_without_a_call_is_reminded_and_forgiven(turn: Any) -> None:
    environment = begun()
    for _ in range(4):
        outcome = environment.call(turn)
        assert (outcome.done, outcome.messages[0].role) == (False, "user")
    answers(environment, "go to fridge 1", "open fridge 1", "take mug 1 from fridge 1")
    answers(environment, "go to desk 1")
    assert environment.call([take("move mug 1 to desk 1")]).status is Status.COMPLETED


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("take_action", {}),
        ToolCall("take_action", {"action": 3}),
        ToolCall("take_action", {"action": "look", "more": 1}),
        ToolCall("take_action", {"action": "look"}, error="not JSON"),
        ToolCall("execute_sql", {"action": "look"}),
    ],
)
def test_an_ill_formed_call_is_answered_with_an_error(call: ToolCall) -> None:
    outcome = begun().call([call])
    assert not outcome.done
    assert outcome.messages[0].content.startswith("Error: ")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"things": {"mug": "moon"}}, "moon"),
        ({"things": {}}, "there is no mug"),
        ({"places": []}, "there is no desk"),
        ({"places": [{"name": "desk"}, {"name": "bed"}, {"name": " "}]}, "has no name"),
        ({"things": {"mug": "bed", "": "bed"}}, "has no name"),
        ({"errand": {"kind": "look", "thing": "mug", "target": "desklamp"}}, "no desklamp"),
        ({"errand": {"kind": "heat", "thing": "mug", "target": "desk"}}, "no microwave"),
        ({"errand": {"kind": "fly", "thing": "mug", "target": "desk"}}, "errand.kind"),
        ({"typo": 1}, "typo"),
    ],
)
def test_a_broken_item_is_an_error_that_names_what_is_wrong(
    change: dict[str, Any], named: str
) -> None:
    content = {
        "errand": {"kind": "put", "thing": "mug", "target": "desk"},
        "places": [{"name": "desk"}, {"name": "bed"}],
        "things": {"mug": "bed"},
    }
    source = AlfworldSource({})
    source.make(Item("alfworld", "fine", content))
    broken = {**content, **change}
    if change == {"places": []}:
        broken["things"] = {}
        named = "there is no"
    with pytest.raises(ItemError, match=f"item broken.*{named}"):
        source.make(Item("alfworld", "broken", broken))


def test_experts_that_play_walkthroughs_cannot_be_careless() -> None:
    with pytest.raises(ItemError, match="option careless: experts that play walkthroughs"):
        AlfworldSource({"origin": "agentbench", "careless": 0.5})
