"""The household: what can be done, what it does, when an errand is done; a careless expert."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.core.types import Status
from agentrl.envs.play import play
from agentrl.envs.tasks.alfworld.household import Household
from agentrl.envs.tasks.alfworld.problem import (
    APPLIANCES,
    AlfworldProblem,
    ErrandSpec,
    RoomPlace,
)
from agentrl.envs.tasks.alfworld.task_source import AlfworldSource

PLACES = [
    RoomPlace("desk"),
    RoomPlace("fridge", opens=True),
    RoomPlace("sinkbasin"),
    RoomPlace("microwave", True),
]
THINGS = {"mug 1": "fridge", "mug 2": "desk", "egg": "desk", "desklamp": "desk"}


def household(errand: ErrandSpec) -> Household:
    return Household(AlfworldProblem(errand, PLACES, THINGS))


def do(house: Household, *actions: str) -> None:
    for action in actions:
        house.act(house.admissible()[action])


def test_at_first_one_can_only_walk_and_look() -> None:
    assert list(household(ErrandSpec("put", "mug", "desk")).admissible()) == [
        "go to desk",
        "go to fridge",
        "go to sinkbasin",
        "go to microwave",
        "look",
        "inventory",
    ]


def test_a_closed_place_hides_what_it_holds_until_it_is_opened() -> None:
    house = household(ErrandSpec("put", "mug", "desk"))
    do(house, "go to fridge")
    assert house.view() is None
    assert "take mug 1 from fridge" not in house.admissible()
    do(house, "open fridge")
    assert house.view() == ["mug 1"]
    assert "take mug 1 from fridge" in house.admissible()
    do(house, "close fridge")
    assert house.view() is None


def test_one_hand_carries_one_thing_and_the_lamp_stays() -> None:
    house = household(ErrandSpec("put", "mug", "desk"))
    do(house, "go to desk")
    assert "take desklamp from desk" not in house.admissible()
    do(house, "take egg from desk")
    assert not any(action.startswith("take") for action in house.admissible())
    do(house, "move egg to desk")
    assert house.where["egg"] == "desk"


def test_a_mug_brought_is_an_errand_done() -> None:
    house = household(ErrandSpec("put", "mug", "sinkbasin"))
    do(house, "go to desk", "take mug 2 from desk", "go to sinkbasin")
    assert not house.won
    do(house, "move mug 2 to sinkbasin")
    assert house.won


def test_another_thing_brought_is_not() -> None:
    house = household(ErrandSpec("put", "mug", "sinkbasin"))
    do(house, "go to desk", "take egg from desk", "go to sinkbasin", "move egg to sinkbasin")
    assert not house.won


@pytest.mark.parametrize(
    ("verb", "place"), [("clean", "sinkbasin"), ("heat", "microwave"), ("cool", "fridge")]
)
def test_an_untreated_thing_does_not_count_and_a_treated_one_does(verb: str, place: str) -> None:
    house = household(ErrandSpec(verb, "egg", "desk"))  # type: ignore[arg-type]
    do(house, "go to desk", "take egg from desk", "move egg to desk")
    assert not house.won
    do(house, "take egg from desk", f"go to {place}", f"{verb} egg with {place}")
    do(house, "go to desk", "move egg to desk")
    assert house.won


def test_heating_undoes_cooling() -> None:
    house = household(ErrandSpec("cool", "egg", "desk"))
    do(house, "go to desk", "take egg from desk", "go to fridge", "cool egg with fridge")
    do(house, "go to microwave", "heat egg with microwave", "go to desk", "move egg to desk")
    assert not house.won


def test_two_things_are_asked_for_and_one_does_not_do() -> None:
    house = household(ErrandSpec("put", "mug", "sinkbasin", count=2))
    do(house, "go to desk", "take mug 2 from desk", "go to sinkbasin", "move mug 2 to sinkbasin")
    assert not house.won
    do(house, "go to fridge", "open fridge", "take mug 1 from fridge", "go to sinkbasin")
    do(house, "move mug 1 to sinkbasin")
    assert house.won


def test_looking_needs_the_thing_in_hand_and_the_lamp_on() -> None:
    house = household(ErrandSpec("look", "egg", "desklamp"))
    do(house, "go to desk", "use desklamp")
    assert not house.won
    do(house, "take egg from desk", "use desklamp")
    assert house.won


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=40))
def test_whatever_is_done_no_thing_is_lost_or_doubled(choices: list[int]) -> None:
    house = household(ErrandSpec("heat", "mug", "sinkbasin"))
    for choice in choices:
        commands = list(house.admissible().values())
        house.act(commands[choice % len(commands)])
        assert sorted([*house.where, *([house.held] if house.held else [])]) == sorted(THINGS)


def test_a_careless_expert_leaves_out_the_treatment_and_takes_the_errand_for_done() -> None:
    source = AlfworldSource({"careless": 1.0, "items": 20})
    for item in source.items("train"):
        outcome = play(source, item, source.expert(item, seed=0))
        if item.content["errand"]["kind"] in APPLIANCES:
            assert (outcome.score, outcome.status) == (0.0, Status.INVALID_ACTION)
        else:
            assert outcome.score == 1.0
