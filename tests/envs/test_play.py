"""Episodes of an agent in this process."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from counting_task import Counting, CountingSource, LateToolSource

from agentrl.envs.contract import Environment, Item, Message, Outcome, ToolCall
from agentrl.envs.play import Act, play, take_turns
from agentrl.envs.tasks.repetition import first_difference, record_episode


class AddsOnes:
    """An Expert that adds ones."""

    def act(self, _messages: Sequence[Message]) -> ToolCall:
        return ToolCall("add", {"number": 1})


@pytest.mark.parametrize(("target", "done"), [(30, True), (31, False)])
def test_an_episode_ends_when_it_is_done_and_after_the_last_turn(target: int, done: bool) -> None:
    source = CountingSource({"items": target})
    outcome = play(source, source.items("all")[-1], AddsOnes())
    assert (outcome.done, outcome.reward) == (done, float(done))


class Paid(Counting):
    """Rewards each turn."""

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:
        return replace(super().call(calls), reward=0.25)


class PaidSource(CountingSource):
    """A TaskSource of episodes whose turns are rewarded."""

    def make(self, item: Item) -> Environment:
        return Paid(int(item.content["target"]))


def test_the_reward_of_an_episode_is_the_sum_over_its_turns() -> None:
    source = PaidSource({"items": 3})
    assert play(source, source.items("all")[-1], AddsOnes()).reward == 0.75


def test_an_agent_may_end_its_episode() -> None:
    environment, seen = Counting(5), list[str]()

    def agent(messages: Sequence[Message]) -> Act | None:
        seen.append(messages[-1].content)
        return None if seen[-1] == "2" else [ToolCall("add", {"number": 1})]

    turns = list(take_turns(environment, environment.start().messages, agent, 9))
    assert [turn.outcome.done for turn in turns] == [False, False]
    assert seen == ["Reach 5.", "1", "2"]


def test_an_episode_whose_tools_come_late_repeats_alike() -> None:
    source = LateToolSource({"items": 3})
    item = source.items("all")[-1]
    played = record_episode(source, item, AddsOnes())
    assert [turn.outcome.done for turn in played.turns] == [False, False, True]
    assert first_difference(source, item, played) == ""
