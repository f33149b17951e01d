"""Progress of published games, by the goals of ALFWorld's release."""

import msgspec
import pytest
from textworld_comparison import pick_evenly

from agentrl.envs.contract import Item, ToolCall
from agentrl.envs.tasks.alfworld.environment import AlfworldEnvironment
from agentrl.envs.tasks.alfworld.playable import open_game, play_game
from agentrl.envs.tasks.alfworld.published import games, pddl
from agentrl.envs.tasks.alfworld.published.game import Play, read_setting
from agentrl.envs.tasks.alfworld.published.goal_progress import (
    GoalConditions,
    progress,
    read_goal,
)
from agentrl.envs.tasks.alfworld.published.world_state import World

PLACE = """(exists (?r - receptacle) (exists (?o - object) (and {state}
    (objectType ?o MugType) (receptacleType ?r ShelfType) (inReceptacle ?o ?r))))"""
TWO = """(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 MugType)
    (receptacleType ?r ShelfType) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and
    (not (= ?o1 ?o2)) (objectType ?o2 MugType) (receptacleType ?r ShelfType)
    (inReceptacle ?o2 ?r))))))"""
LAMP = """(and (exists (?lamp - object ?r - receptacle ?a - agent ?l - location) (and
    (objectType ?lamp DeskLampType) (toggleable ?lamp) (isToggled ?lamp) (atLocation ?a ?l)))
    (exists (?o - object ?a - agent) (and (objectType ?o MugType) (holds ?a ?o))))"""
FACTS: dict[str, list[tuple[str, ...]]] = {
    "objecttype": [("m1", "mugtype"), ("m2", "mugtype"), ("l1", "desklamptype")],
    "receptacletype": [("s1", "shelftype"), ("s2", "shelftype"), ("d1", "desktype")],
}


def goal(text: str) -> pddl.Condition:
    return pddl.problem(f"(define (problem p) (:goal {text}))").goal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLACE.format(state=""), GoalConditions("mugtype", 1, "", "shelftype")),
        (PLACE.format(state="(isHot ?o)"), GoalConditions("mugtype", 1, "ishot", "shelftype")),
        (TWO, GoalConditions("mugtype", 2, "", "shelftype")),
        (LAMP, GoalConditions("mugtype", 1, "", "")),
        ("(forall (?o - object) (swept ?o))", None),
    ],
)
def test_goals_of_the_release_are_read(text: str, expected: GoalConditions | None) -> None:
    assert read_goal(goal(text)) == expected


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [
        (PLACE.format(state=""), {}, 0.0),
        (PLACE.format(state=""), {"holds": [("a", "m1")]}, 0.5),
        (PLACE.format(state=""), {"holds": [("a", "l1")]}, 0.0),
        (PLACE.format(state="(isHot ?o)"), {"ishot": [("m1",)]}, 1 / 3),
        (PLACE.format(state="(isHot ?o)"), {"ishot": [("m1",)], "holds": [("a", "m1")]}, 2 / 3),
        (PLACE.format(state="(isHot ?o)"), {"inreceptacle": [("m1", "s1")]}, 0.0),
        (TWO, {"inreceptacle": [("m1", "s1")]}, 0.5),
        (TWO, {"inreceptacle": [("m1", "s1"), ("m2", "s2")]}, 0.5),
        (TWO, {"inreceptacle": [("m1", "s1")], "holds": [("a", "m2")]}, 0.75),
        (LAMP, {"holds": [("a", "m2")]}, 0.5),
        (LAMP, {"istoggled": [("l1",)]}, 0.0),
    ],
)
def test_things_count_once_taken_treated_and_brought_to_one_place(
    text: str, facts: dict[str, list[tuple[str, ...]]], expected: float
) -> None:
    conditions = read_goal(goal(text))
    assert conditions
    assert progress(conditions, World({}, FACTS | facts)) == pytest.approx(expected)


def test_a_goal_of_another_form_has_no_progress_until_it_is_won(shed: games.Game) -> None:
    play = Play(read_setting(*shed.packed.texts()))
    assert play.progress is None
    for command in shed.walkthrough:
        play.do(command)
    assert play.progress == 1.0


def test_walkthroughs_of_the_release_advance_to_the_end(release: games.Release) -> None:
    for path in pick_evenly(release.paths(), 60):
        game = release.game(path)
        play = play_game(Item("alfworld", path, msgspec.to_builtins(game.packed)))
        reached = [play.progress]
        for command in game.walkthrough:
            play.do(command)
            reached.append(play.progress)
        assert None not in reached, path
        assert (reached[0], reached[-1]) == (0.0, 1.0), path
        assert reached == sorted(reached, key=float), path  # type: ignore[arg-type]


def test_an_episode_of_the_release_reports_it(release: games.Release) -> None:
    path = pick_evenly(release.paths(), 2)[0]
    game = release.game(path)
    item = Item("alfworld", path, msgspec.to_builtins(game.packed))
    environment = AlfworldEnvironment(open_game(item, "compact"), "compact")
    environment.start()
    said = [
        environment.call([ToolCall("take_action", {"action": command})])
        for command in game.walkthrough
    ]
    assert said[-1].metrics == {"progress": 1.0}
    assert said[0].metrics["progress"] < 1.0
