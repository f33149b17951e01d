"""Goals: what is asked, in which order, up to which price."""

from random import Random

import pytest

from agentrl.envs.tasks.webshop import goals
from agentrl.envs.tasks.webshop.catalogue.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.catalogue.product import HumanGoal, Product
from agentrl.envs.tasks.webshop.goals import Goal

MUG = Product(
    asin="B1",
    title="Mug",
    prices=(995.0,),
    options={"size": ("small", "large"), "color": ("red",)},
    wishes=(HumanGoal("a mug.", ("safe",), ("red",)), HumanGoal("any mug", ())),
    template=HumanGoal("Find me mugs", ("safe",)),
)
PLATE = Product(
    asin="B2", title="Plate", prices=(12.0,), template=HumanGoal("Find me plates", ("big",))
)


def test_the_bound_is_the_larger_of_two_of_the_four_next_tens() -> None:
    bounds = {goals.price_bound(12.0, Random(seed)) for seed in range(50)}
    assert bounds == {30.0, 40.0, 50.0}  # never 20, the smallest of the four
    assert goals.price_bound(20.0, Random(0)) != 20.0
    assert goals.price_bound(985.0, Random(0)) is None  # 990 alone
    assert goals.price_bound(975.0, Random(0)) == 990.0  # 980 and 990


def test_there_is_a_synthetic_goal_for_each_combination_of_options() -> None:
    found = goals.synthetic_goals([MUG])
    assert {goal.instruction for goal in found} == {
        "Find me mugs with color: red, and size: small",
        "Find me mugs with color: red, and size: large",
    }
    assert {goal.options for goal in found} == {("red", "small"), ("red", "large")}
    assert {goal.price_upper for goal in found} == {goals.NO_BOUND}


def test_a_person_without_attributes_asks_for_nothing() -> None:
    [goal] = goals.human_goals([MUG, PLATE])
    assert (goal.instruction, goal.options, goal.asin) == ("a mug", ("red",), "B1")


def test_the_price_is_said_and_the_same_in_every_process() -> None:
    [goal] = goals.synthetic_goals([PLATE])
    assert (
        goal.instruction == f"Find me plates, and price lower than {goal.price_upper:.2f} dollars"
    )
    assert goals.synthetic_goals([MUG, PLATE])[0] in goals.synthetic_goals([PLATE, MUG])
    assert goal in goals.synthetic_goals([MUG, PLATE])


def test_goals_are_shuffled_with_seed_233() -> None:
    many = [
        Product(f"B{number}", "Mug", (999.0,), template=HumanGoal(f"Find me {number}", ("a",)))
        for number in range(10)
    ]
    expected = [f"Find me {number}" for number in range(10)]
    Random(233).shuffle(expected)
    assert [goal.instruction for goal in goals.synthetic_goals(many)] == expected


def test_the_sample_has_6910_synthetic_goals_and_13_of_people(
    sample_catalogue: MemoryCatalogue,
) -> None:
    assert len(goals.synthetic_goals(sample_catalogue.products)) == 6910
    people: list[Goal] = goals.human_goals(sample_catalogue.products)
    assert len(people) == 13


@pytest.mark.parametrize("bound", [None, 30.0])
def test_words_of_a_price(bound: float | None) -> None:
    said = goals.price_words(bound)
    assert said == ("" if bound is None else ", and price lower than 30.00 dollars")
