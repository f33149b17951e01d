"""A game of our own, played by its PDDL and told by its grammar."""

from typing import Any

import pytest

from agentrl.envs.tasks.alfworld.published.game import Play, Setting, read_setting
from agentrl.envs.tasks.alfworld.published.games import Game
from agentrl.envs.tasks.alfworld.published.pddl import MalformedPddl

AT_HOME = ["flip lamp 1", "lift hammer 1", "lift hammer 2", "look"]
AT_HOME += ["test hammer 1", "test hammer 2", "test lamp 1", "walk to yard"]


@pytest.fixture
def play(shed: Game) -> Play:
    return Play(read_setting(*shed.packed.texts()))


def done(play: Play, *commands: str) -> list[str]:
    told = []
    for command in commands:
        assert command in play.commands
        told.append(play.do(command))
    return told


def test_the_intro_tells_the_room_and_the_task(play: Play) -> None:
    assert play.intro() == (
        "A shed.\n\nYou stand in the home, among a hammer 2, and a hammer 1.\n\n"
        "Your task is to: tidy up."
    )


def test_numbers_fall_as_ids_rise(shed: Game) -> None:
    found = read_setting(*shed.packed.texts())
    assert [found.names[f"hammer_bar_{number}"] for number in (1, 2)] == ["hammer 2", "hammer 1"]
    assert found.names["yard"] == "yard "


def test_the_commands_are_what_the_preconditions_allow(play: Play) -> None:
    assert list(play.commands) == AT_HOME


def test_walking_to_where_one_stands_changes_nothing_and_is_not_offered(play: Play) -> None:
    done(play, "walk to yard")
    assert [command for command in play.commands if "walk" in command] == ["walk to home"]


def test_losing_what_was_never_asked_for_changes_something(made: Any) -> None:
    effect = "(not (at ?a ?from)) (at ?a ?to)"
    domain = made()["pddl_domain"].replace(effect, "(not (at ?a ?to)) (at ?a ?from)")
    play = Play(read_setting(domain, made()["pddl_problem"], made()["grammar"]))
    assert [command for command in play.commands if "walk" in command] == ["walk to yard"]
    done(play, "walk to yard")
    assert list(play.commands) == AT_HOME


def test_a_condition_for_all_holds_once_each_does(play: Play) -> None:
    assert "sweep" not in play.commands
    done(play, "flip lamp 1")
    assert "sweep" in play.commands
    done(play, "flip lamp 1")
    assert "sweep" not in play.commands


def test_a_full_hand_lifts_nothing_until_it_drops(play: Play) -> None:
    done(play, "lift hammer 1")
    assert not any(command.startswith("lift") for command in play.commands)
    assert "test hammer 1" in play.commands
    done(play, "drop hammer 1")
    assert "lift hammer 2" in play.commands


def test_what_was_taken_away_is_told_by_its_negation(play: Play) -> None:
    assert done(play, "lift hammer 1") == ["You hold hammer 1. You left: no thing."]
    done(play, "walk to yard", "drop hammer 1", "walk to home")
    assert done(play, "lift hammer 2") == ["You hold hammer 2. You left: hammer 1."]


def test_an_effect_for_all_reaches_what_meets_its_condition(play: Play) -> None:
    done(play, "flip lamp 1", "sweep", "lift hammer 2", "walk to yard", "drop hammer 2")
    assert play.won
    done(play, "lift hammer 2")
    assert not play.won


def test_what_was_not_swept_does_not_win(play: Play) -> None:
    done(play, "lift hammer 1", "walk to yard", "drop hammer 1")
    assert not play.won
    done(play, "sweep")
    assert play.won


def test_the_goal_wants_another_tool_than_the_saw(play: Play) -> None:
    done(play, "walk to yard", "sweep")
    assert not play.won


def test_a_command_that_cannot_be_done_does_nothing(play: Play) -> None:
    assert play.do("lift saw 1") == "Nothing happens."
    assert list(play.commands) == AT_HOME


def test_the_walkthrough_wins_and_plays_do_not_touch_each_other(shed: Game) -> None:
    found = read_setting(*shed.packed.texts())
    first = Play(found)
    done(first, *shed.walkthrough)
    assert first.won
    assert list(Play(found).commands) == AT_HOME


def test_the_episodes_of_a_group_share_their_setting(shed: Game) -> None:
    assert read_setting(*shed.packed.texts()) is read_setting(*shed.packed.texts())


@pytest.mark.parametrize(
    ("part", "old", "new", "named"),
    [
        ("pddl_problem", "- lamp", "- candle", "unknown type candle"),
        ("pddl_problem", "(:goal", "(:aim", "no goal"),
        ("pddl_domain", "(open ?to)", "(not (open ?far))", "nothing binds"),
        ("grammar", "grammar ::", "grammar", "neither"),
    ],
)
def test_a_broken_game_is_an_error_that_says_why(
    made: Any, part: str, old: str, new: str, named: str
) -> None:
    texts = {**made(), part: made()[part].replace(old, new)}
    with pytest.raises(MalformedPddl, match=named):
        read_setting(texts["pddl_domain"], texts["pddl_problem"], texts["grammar"])


def test_an_action_without_words_is_never_offered(made: Any) -> None:
    words = made()["grammar"].replace("action sweep", "action mop")
    play = Play(read_setting(made()["pddl_domain"], made()["pddl_problem"], words))
    play.do("flip lamp 1")
    assert "sweep" not in play.commands
    assert isinstance(read_setting(made()["pddl_domain"], made()["pddl_problem"], words), Setting)
