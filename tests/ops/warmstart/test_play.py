from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from counting_task import Counting, CountingSource

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.errors import PolicyError
from agentrl.envs.contract import Environment, Item
from agentrl.ops.warmstart.play import OPEN_EPISODES, Player, scores
from agentrl.serving.engine_api import Completion, Request
from agentrl.workers.conversation.template import ChatTemplate

TEMPLATE = ChatTemplate.load(Path(__file__).parents[3] / "models" / "tiny")


class Watched(Counting):
    """Is in `open` from its making to its close."""

    def __init__(self, target: int, open_: list[Environment]) -> None:
        super().__init__(target)
        self._open = open_
        open_.append(self)

    def close(self) -> None:
        self._open.remove(self)


class WatchedSource(CountingSource):
    """Knows which of its environments are open."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.open: list[Environment] = []

    def make(self, item: Item) -> Environment:
        return Watched(int(item.content["target"]), self.open)


class EndlessWords:
    """Answers each request with a word, and fails at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self._left = fails_at

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        if self._left == 0:
            future.set_exception(PolicyError("the engine ended"))
        else:
            future.set_result(Completion([min(request.stop_ids)], [-1.0], "stop"))
        self._left = None if self._left is None else self._left - 1
        return future


@pytest.mark.parametrize("fails_at", [0, 1, OPEN_EPISODES, OPEN_EPISODES + 3])
def test_an_engine_that_fails_leaves_no_environment_open(fails_at: int) -> None:
    source = WatchedSource({"items": OPEN_EPISODES + 20})
    player = Player(EndlessWords(fails_at), "p", TEMPLATE, "plain", Sampling())
    with pytest.raises(PolicyError, match="the engine ended"):
        scores(player, source, source.items("all"), 2, seed=0)
    assert source.open == []


def test_each_item_is_played_and_its_environment_closed() -> None:
    source = WatchedSource({"items": OPEN_EPISODES + 20})
    player = Player(EndlessWords(), "p", TEMPLATE, "plain", Sampling())
    assert scores(player, source, source.items("all"), 2, seed=0) == [0.0] * (OPEN_EPISODES + 20)
    assert source.open == []


class FullTurns:
    """Samples as many tokens as it may, and keeps the lengths of the prompts and of the turns."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def submit(self, request: Request) -> Future[Completion]:
        self.asked.append((len(request.prompt), request.max_tokens))
        future: Future[Completion] = Future()
        tokens = [max(request.stop_ids) + 1] * request.max_tokens
        future.set_result(Completion(tokens, [-1.0] * len(tokens), "length"))
        return future


def test_turns_and_episodes_are_as_long_as_the_configuration_allows() -> None:
    source = WatchedSource({"items": 1})
    engine = FullTurns()
    sampling = Sampling(max_step_tokens=100, max_tokens=300)
    scores(Player(engine, "p", TEMPLATE, "plain", sampling), source, source.items("all"), 30, 0)
    assert [asked for _, asked in engine.asked[:-1]] == [100] * (len(engine.asked) - 1)
    assert sum(engine.asked[-1]) == 300  # the last turn gets the tokens that are left
    assert source.open == []


def test_a_prompt_that_fills_the_episode_leaves_no_second_turn() -> None:
    source = WatchedSource({"items": 1})
    engine = FullTurns()
    player = Player(engine, "p", TEMPLATE, "plain", Sampling(max_tokens=2))
    assert scores(player, source, source.items("all"), 30, seed=0) == [0.0]
    assert [asked for _, asked in engine.asked] == [1]
