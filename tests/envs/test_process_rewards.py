"""Rules that reward turns."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from agentrl.core.config.sections.tasks import ProcessRewards
from agentrl.envs import registry
from agentrl.envs.contract import (
    PROGRESS,
    Item,
    Observation,
    Outcome,
    Tool,
    ToolCall,
    is_counting,
    strings,
)
from agentrl.envs.process_rewards import with_process_rewards

LOOK = strings("look", "Look at a thing.", "thing")
GOOD = ToolCall("look", {"thing": "mug"})


class Walk:
    """An environment that says how far it came after each turn."""

    def __init__(self, way: Sequence[float | None]) -> None:
        self.closed = False
        self.lengths: list[int] = []
        self.tools: tuple[Tool, ...] = (LOOK,)
        self._way = list(way)

    def start(self) -> Observation:
        return Observation(())

    def call(self, calls: Sequence[ToolCall] | str) -> Outcome:  # noqa: ARG002
        at, done = self._way.pop(0), not self._way
        metrics = {} if at is None else {PROGRESS: at}
        return Outcome((), done=done, reward=float(done), metrics=metrics)

    def sampled(self, prompt: int, completion: int, finish_reason: str, tokens: object) -> None:  # noqa: ARG002
        self.lengths.append(completion)

    def close(self) -> None:
        self.closed = True


def test_without_a_weight_the_environment_stays_as_it_is() -> None:
    walk = Walk([0.0])
    assert with_process_rewards(walk, ProcessRewards()) is walk


@pytest.mark.parametrize(
    ("calls", "reward"),
    [
        ([GOOD], 0.1),
        ([GOOD, GOOD], 0.1),
        ([GOOD, ToolCall("jump", {}, "no tool jump")], 0.0),
        ([ToolCall("look", {}, "thing is missing")], 0.0),
        ([], 0.0),
        ("a text", 0.0),
    ],
)
def test_a_turn_whose_calls_are_all_valid_is_rewarded_once(
    calls: Sequence[ToolCall] | str, reward: float
) -> None:
    environment = with_process_rewards(Walk([None, None]), ProcessRewards(valid_call=0.1))
    assert environment.call(calls).reward == reward


def test_a_call_is_judged_by_the_tools_of_its_turn() -> None:
    walk = Walk([None, None])
    walk.tools = ()  # by the time that the turn is judged
    environment = with_process_rewards(walk, ProcessRewards(valid_call=0.1))
    assert environment.call([GOOD]).reward == 0.1


def test_progress_pays_for_the_way_and_takes_back_what_is_undone() -> None:
    environment = with_process_rewards(
        Walk([0.25, None, 0.75, 0.5, 1.0]), ProcessRewards(progress=2.0, valid_call=0.5)
    )
    rewards = [environment.call([GOOD]).reward for _ in range(5)]
    assert rewards == [1.0, 0.5, 1.5, 0.0, 1.0 + 1.0 + 0.5]


def test_everything_else_passes_through() -> None:
    walk = Walk([0.0])
    environment = with_process_rewards(walk, ProcessRewards(progress=1.0))
    assert is_counting(environment)
    environment.sampled(1, 7, "stop", None)
    environment.close()
    assert (environment.tools, walk.lengths, walk.closed) == ((LOOK,), [7], True)


@pytest.mark.parametrize("number", range(8))
def test_an_errand_advances_from_nothing_to_done(number: int) -> None:
    source = registry.source("alfworld", {"style": "compact", "difficulty": "hard", "items": 8})
    item: Item = source.items("train")[number]
    environment, expert = source.make(item), source.expert(item, seed=0)
    messages, way = environment.start().messages, [0.0]
    for _ in range(source.max_turns):
        act = expert.act(messages)
        outcome = environment.call(act if isinstance(act, str) else [act])
        messages = outcome.messages
        way.append(outcome.metrics[PROGRESS])
        if outcome.done:
            break
    assert way[-1] == 1.0
    assert all(later >= earlier for earlier, later in pairwise(way))
    assert len(set(way)) >= 3, "there are stages between nothing and all"
