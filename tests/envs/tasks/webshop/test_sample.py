"""The benchmark's sample as a whole; skipped where it is not on this machine."""

from random import Random

import pytest

from agentrl.envs.play import play
from agentrl.envs.tasks.webshop import goals
from agentrl.envs.tasks.webshop.catalogue.catalogue import MemoryCatalogue
from agentrl.envs.tasks.webshop.goals import Goal
from agentrl.envs.tasks.webshop.reward import worth
from agentrl.envs.tasks.webshop.task_source import WebshopSource

pytestmark = pytest.mark.slow


def wanted(sample: MemoryCatalogue) -> list[Goal]:
    return [*goals.human_goals(sample.products), *goals.synthetic_goals(sample.products)]


def test_the_wanted_product_with_its_options_earns_a_reward_of_one(
    sample_catalogue: MemoryCatalogue,
) -> None:
    for goal in wanted(sample_catalogue):
        chosen = {str(place): value for place, value in enumerate(goal.options)}
        assert worth(sample_catalogue.product(goal.asin), chosen, goal).reward == 1.0, goal


def test_a_product_drawn_at_random_earns_next_to_nothing(sample_catalogue: MemoryCatalogue) -> None:
    random, products = Random(0), sample_catalogue.products
    rewards = [worth(random.choice(products), {}, goal).reward for goal in wanted(sample_catalogue)]
    assert sum(rewards) / len(rewards) < 0.1


def test_an_expert_that_is_shown_the_product_buys_it(sample_catalogue: MemoryCatalogue) -> None:
    assert sample_catalogue.products
    source = WebshopSource({"origin": "sample"})
    for item in source.items("test"):
        assert play(source, item, source.expert(item, seed=0)).reward == 1.0, item.item_id
