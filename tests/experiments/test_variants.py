from typing import Any

import pytest

from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError, ItemError
from agentrl.envs.contract import ToolCall
from agentrl.experiments.task_norm.variants import variants


def of(name: str, **options: Any) -> Config:
    plain = {"style": "compact", "difficulty": "easy", "items": 4, "test_items": 4}
    return Config(tasks={name: Task(options=plain | options)})


def test_a_variant_plays_another_tasks_items_under_its_own_name_for_another_reward() -> None:
    (variant,) = variants(of("small", source="kg", reward_scale=0.2)).values()
    (plain,) = variants(of("kg")).values()
    assert variant.splits == plain.splits
    item = variant.items("train")[0]
    assert (item.task, item.item_id) == ("small", plain.items("train")[0].item_id)
    environment, expert = variant.make(item), variant.expert(item, seed=0)
    messages = environment.start().messages
    assert environment.tools == plain.make(plain.items("train")[0]).tools
    for _ in range(variant.max_turns):
        act = expert.act(messages)
        outcome = environment.call([act] if isinstance(act, ToolCall) else act)
        messages = outcome.messages
        if outcome.done:
            break
    environment.close()
    assert (outcome.reward, outcome.score) == (0.2, 1.0)


def test_a_scale_that_is_no_scale_and_a_source_that_is_none_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"tasks.kg.options.reward_scale: 0 is not a number above"
    ):
        variants(of("kg", reward_scale=0))
    with pytest.raises(ConfigError, match="reward_scale: 'much' is not a number"):
        variants(of("kg", reward_scale="much"))
    with pytest.raises(ItemError, match="unknown task small"):
        variants(of("small"))
    with pytest.raises(ItemError, match="reward_scales"):
        variants(of("kg", reward_scales=2.0))
