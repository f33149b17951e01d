"""An episode, message by message."""

from typing import Any

import pytest

from agentrl.core.types import Status
from agentrl.envs.contract import Outcome, ToolCall
from agentrl.envs.tasks.options import Style
from agentrl.envs.tasks.webshop.catalogue.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.compact_page import COMPACT_PAGE
from agentrl.envs.tasks.webshop.environment import WebshopEnvironment
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.shop import Shop


def search(keywords: Any) -> ToolCall:
    return ToolCall("search_action", {"keywords": keywords})


def click(value: Any) -> ToolCall:
    return ToolCall("click_action", {"value": value})


@pytest.fixture
def begin(small: MemoryCatalogue, shop_goal: Goal) -> Any:
    def begun(style: Style = "full") -> WebshopEnvironment:
        size = COMPACT_PAGE if style == "compact" else 10
        return WebshopEnvironment(Shop(small, shop_goal, size), style)

    return begun


def text(outcome: Outcome) -> str:
    [message] = outcome.messages
    return message.content


def test_the_first_message_shows_the_search_page(begin: Any) -> None:
    system, user = begin().start().messages
    assert "You are shopping on the web" in system.content
    assert user.content == (
        "The initial observation:\nWebShop [SEP] Instruction: [SEP] Find me energy saving desk "
        "lamps [SEP] Search\n\nAvailable Actions:\n"
        "{'has_search_bar': True, 'clickables': ['search']}"
    )


def test_a_reply_tells_the_action_the_page_and_what_can_be_clicked(begin: Any) -> None:
    outcome = begin().call([search("Folds")])
    assert text(outcome) == (
        "Action: search[Folds]\n\nObservation:\nInstruction: [SEP] Find me energy saving desk lamps"
        " [SEP] Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] B01 [SEP] Acme "
        "Desk Lamp with Red Shade [SEP] $24.5\n\nAvailable Actions:\n{'has_search_bar': False,"
        " 'clickables': ['back to search', 'next >', 'b01']}"
    )
    assert (outcome.messages[0].role, outcome.messages[0].name) == ("tool", "search_action")


def test_only_the_first_call_of_a_message_counts(begin: Any) -> None:
    environment = begin()
    assert "Page 1" in text(environment.call([search("lamp"), click("b01")]))


def test_a_purchase_ends_the_episode_with_its_worth(begin: Any) -> None:
    environment = begin()
    for call in (search("lamp"), click("B01"), click("crimson red")):
        assert not environment.call([call]).done
    outcome = environment.call([click("Buy Now")])
    assert (outcome.done, outcome.status, outcome.messages) == (True, Status.COMPLETED, ())
    assert outcome.reward == outcome.score == 0.75  # attribute, one of two options, price
    assert outcome.metrics == {"type": 1.0, "attributes": 1.0, "options": 0.5, "price": 1.0}


def test_an_invalid_click_shows_the_same_page(begin: Any) -> None:
    environment = begin()
    environment.call([search("lamp")])
    shown = text(environment.call([click("b02")]))
    assert shown.startswith("Action: click[b02]")
    assert "Page 1 (Total results: 1)" in shown


@pytest.mark.parametrize("turn", ["I buy it.", []])
def test_a_turn_without_a_call_is_asked_for_one(begin: Any, turn: Any) -> None:
    outcome = begin().call(turn)
    assert outcome.messages[0].role == "user"
    assert text(outcome).startswith("Observation:\nNo executable tool calls found!")
    assert "'has_search_bar': True" in text(outcome)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (search(3), "search_action takes exactly keywords: a string."),
        (ToolCall("click_action", {"keywords": "x"}), "takes exactly value: a string."),
        (ToolCall("click_action", {}, error="no JSON"), "Error: no JSON"),
        (ToolCall("buy", {}), "unknown tool"),
    ],
)
def test_an_ill_formed_call_is_answered(begin: Any, call: ToolCall, complaint: str) -> None:
    outcome = begin().call([call])
    assert complaint in text(outcome)
    assert not outcome.done


def test_compact_pages_are_short(begin: Any) -> None:
    environment = begin("compact")
    assert [message.content for message in environment.start().messages] == [
        *("webshop", "energy saving desk lamps, red, small, under 30")
    ]
    replies = [
        text(environment.call([call]))
        for call in (
            *(search("lamp chair"), click("b01"), click("small"), click("features")),
            *(click("back to search"), search("unheard")),
        )
    ]
    page = "acme desk lamp with red shade $24.5\ncolor: crimson red, navy blue\nsize: small, large"
    assert replies == [
        "b01 acme desk lamp with red shade $24.5\nb02 bolt office chair $10.0 to $30.0",
        page,
        f"{page}\nchosen: small",
        "Dimmable light\nEasy clean",
        "search",
        "nothing found",
    ]
    assert environment.call("?").messages[0].content.startswith("No executable tool calls")
