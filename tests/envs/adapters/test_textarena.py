"""TextArena's own single-player games: seeds, moves as text, the game's rewards."""

import random
from typing import Any

import pytest

from agentrl.core.config.sections import Envs, Task
from agentrl.core.errors import ItemError
from agentrl.core.types import Status
from agentrl.envs import registry
from agentrl.envs.contract import Environment, Outcome, TaskSource, ToolCall
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer

pytest.importorskip("textarena", reason="needs pip install 'agentrl-system[textarena]'")

NUMBER = "GuessTheNumber-v0"


def source(name: str, **options: Any) -> TaskSource:
    return registry.source("game", options, f"textarena:{name}")


def guessed(environment: Environment, *, by_text: bool = False) -> list[Outcome]:
    """Halve the numbers from 1 to 20 until the game ends."""
    low, high, outcomes = 1, 20, [Outcome(environment.start().messages)]
    while not outcomes[-1].done:
        middle = (low + high) // 2
        move = f"[{middle}]"
        turn = move if by_text else [ToolCall("act", {"action": move})]
        outcomes.append(environment.call(turn))
        said = outcomes[-1].messages[0].content if outcomes[-1].messages else ""
        low = middle + 1 if "higher" in said else low
        high = middle - 1 if "lower" in said else high
    environment.close()
    return outcomes


def test_a_number_that_is_found_is_a_reward_and_a_success() -> None:
    task = source(NUMBER, items=5)
    for item in task.items("train"):
        first, *_, last = guessed(task.make(item))
        assert [each.role for each in first.messages] == ["system", "user"]
        assert "Guess The Number" in first.messages[1].content
        assert last == Outcome((), done=True, reward=1.0, score=1.0)


def test_a_move_may_be_the_text_of_a_turn() -> None:
    task = source(NUMBER)
    assert guessed(task.make(task.items("train")[0]), by_text=True)[-1].reward == 1.0


def test_a_seed_gives_the_same_game_whatever_else_draws() -> None:
    """2048 draws a tile after every move."""
    task = source("2048-v0-easy", config={"board_size": 4})
    item = task.items("train")[0]
    first, second = task.make(item), task.make(item)
    moves = ("[up]", "[left]", "[down]", "[right]", "[up]")
    outside = random.getstate()
    alone = [first.start(), *(first.call(move) for move in moves)]
    assert random.getstate() == outside, "and disturbs nothing outside"
    among = [second.start()]
    for move in moves:
        random.random()
        among.append(second.call(move))
    assert alone == among
    assert len({str(each) for each in alone}) > 2


def test_an_invalid_move_is_told_once_and_then_ends_the_game() -> None:
    task = source(NUMBER)
    environment = task.make(task.items("train")[0])
    environment.start()
    first = environment.call([ToolCall("act", {"action": "seven"})])
    assert not first.done
    assert "invalid move" in first.messages[0].content
    last = environment.call("seven")
    assert (last.done, last.status, last.reward) == (True, Status.INVALID_ACTION, 0.0)


def test_a_call_that_does_not_fit_is_answered_and_is_no_move() -> None:
    task = source(NUMBER)
    environment = task.make(task.items("train")[0])
    environment.start()
    for call, told in (
        (ToolCall("guess", {}), "There is no tool guess; call act."),
        (ToolCall("act", {}, "no JSON: char 7"), "no JSON: char 7"),
    ):
        outcome = environment.call([call])
        assert [each.content for each in outcome.messages] == [told]


def test_a_game_that_does_not_end_in_time_gives_nothing() -> None:
    task = source(NUMBER, max_turns=2)
    environment = task.make(task.items("train")[0])
    environment.start()
    outcomes = [environment.call([ToolCall("guess", {})]) for _ in range(2)]
    assert [each.done for each in outcomes] == [False, True]
    assert (outcomes[1].status, outcomes[1].reward) == (Status.TASK_LIMIT, 0.0)


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("GuessTheNumbr-v0", {}, "textarena has no game GuessTheNumbr-v0"),
        ("TicTacToe-v0", {}, "cannot be played by one player: .*has to be 2, received 1"),
        (NUMBER, {"config": {"maximum": 9}}, "unexpected keyword argument 'maximum'"),
        (NUMBER, {"turns": 9}, "unknown option turns"),
    ],
)
def test_what_cannot_be_played_is_one_error(name: str, options: Any, error: str) -> None:
    with pytest.raises(ItemError, match=error):
        source(name, **options)


def test_splits_share_no_seed_and_there_is_no_demonstrator() -> None:
    task = source(NUMBER, items=50, test_items=20)
    train, test = ({item.item_id for item in task.items(split)} for split in task.splits)
    assert (len(train), len(test)) == (50, 20)
    assert not train & test
    with pytest.raises(ItemError, match="no demonstrator of GuessTheNumber-v0"):
        task.expert(task.items("test")[0], seed=0)


def test_games_are_the_same_behind_the_env_server() -> None:
    server = EnvServer({"game": Task(source=f"textarena:{NUMBER}", options={"items": 1})})
    try:
        far = RemoteSource(Envs(url=server.url), "game", {"items": 1}, f"textarena:{NUMBER}")
        item = far.items("train")[0]
        assert guessed(far.make(item)) == guessed(source(NUMBER).make(item))
    finally:
        server.close()
