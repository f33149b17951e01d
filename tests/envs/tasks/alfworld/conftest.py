"""A small game of our own, that uses more of PDDL and of the grammar than ALFWorld's do."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.alfworld.published import games

DOMAIN = """
;; A shed: tools lie at places, lamps can be flipped, sweeping cleans all that lies about.
(define (domain shed)
 (:requirements :adl :typing :action-costs)
 (:types agent place tool lamp)
 (:predicates (at ?a - agent ?p - place) (lies ?t - object ?p - place) (has ?a - agent ?t - tool)
   (busy ?a - agent) (clean ?t - object) (lit ?l - lamp) (seen ?p - place) (open ?p - place)
   (heavy ?t - tool))
 (:functions (total-cost) - number)
 (:action look :parameters (?a - agent ?p - place)
   :precondition (and (at ?a ?p)) :effect (and (seen ?p)))
 (:action walk :parameters (?a - agent ?from - place ?to - place)
   :precondition (and (at ?a ?from) (open ?to))
   :effect (and (not (at ?a ?from)) (at ?a ?to) (increase (total-cost) 1)))
 (:action Lift :parameters (?a - agent ?t - tool ?p - place)
   :precondition (and (at ?a ?p) (lies ?t ?p) (not (busy ?a)))
   :effect (and (has ?a ?t) (busy ?a) (not (lies ?t ?p))))
 (:action drop :parameters (?a - agent ?t - tool ?p - place)
   :precondition (and (at ?a ?p) (has ?a ?t))
   :effect (and (lies ?t ?p) (not (has ?a ?t)) (not (busy ?a))))
 (:action flip :parameters (?a - agent ?l - lamp)
   :precondition (exists (?p - place) (and (at ?a ?p) (lies ?l ?p)))
   :effect (and (when (lit ?l) (not (lit ?l))) (when (not (lit ?l)) (lit ?l))))
 (:action sweep :parameters (?a - agent ?p - place)
   :precondition (and (at ?a ?p) (forall (?l - lamp) (imply (lies ?l ?p) (lit ?l))))
   :effect (and (forall (?t - tool) (when (lies ?t ?p) (clean ?t)))))
 (:action test :parameters (?a - agent ?t - object)
   :precondition (or (has ?a ?t) (exists (?p - place) (and (at ?a ?p) (lies ?t ?p))))
   :effect (and (seen home)))
)"""

PROBLEM = """
(define (problem tidy) (:domain shed)
 (:objects me - agent home yard loft - place
   Hammer_bar_1 Hammer_bar_2 saw_bar_1 - tool lamp_bar_1 - lamp)
 (:init (= (total-cost) 0) (at me home) (open home) (open yard)
   (lies hammer_bar_2 home) (lies hammer_bar_1 home) (lies saw_bar_1 yard) (lies lamp_bar_1 home)
   (heavy saw_bar_1))
 (:goal (exists (?t - tool) (and (clean ?t) (lies ?t yard) (not (= ?t saw_bar_1)))))
)"""

GRAMMAR = '''
grammar :: """
 {"intro": [{"rhs": "A shed.\\n\\n#look.told#\\n\\n#task#"}],
  "task": [{"rhs": "Your task is to: tidy up."}],
  "look.told": [
    {"condition": "at(a:agent, p:place) & open(p:place)",
     "rhs": "You stand in the [{p.id | at(a:agent, p:place)}], among #all#."},
    {"rhs": "You are lost, but for #all#."}],
  "all": [{"rhs": "[{#one(t)# | at(a:agent, p:place) & lies(t:tool, p:place)}]"}],
  "one(t)": [{"condition": "heavy(t:tool)", "rhs": "the heavy {t.name}"},
             {"rhs": "{t.indefinite + ' ' + t.name}"}],
  "list_empty": [{"rhs": "no thing"}], "list_separator": [{"rhs": ", "}],
  "list_last_separator": [{"rhs": ", and "}]}
""";
action look { template :: "look"; feedback :: "#look.told#"; }
action walk { template :: "walk to {to.id}"; feedback :: "You walk. #look.told#"; }
action Lift { template :: "lift {t}";
  feedback :: "You hold {t.name}. You left: [{x.name | not_lies(x:tool, p:place)}]."; }
action drop { template :: "drop {t}"; feedback :: "It drops."; }
action flip { template :: "flip {l}"; feedback :: "#flipped#";
  grammar :: """ {"flipped": [{"rhs": "Click."}]} """; }
action sweep { template :: "sweep"; feedback :: "Dust."; }
action test { template :: "test {t.name or t.id}"; feedback :: "
  It seems fine.
"; }
'''

WALKTHROUGH = ["flip lamp 1", "sweep", "lift hammer 1", "walk to yard", "drop hammer 1"]


def made(**changes: Any) -> dict[str, Any]:
    """The game as a file of the release holds one."""
    texts = {"pddl_domain": DOMAIN, "pddl_problem": PROBLEM, "grammar": GRAMMAR}
    return {**texts, "walkthrough": WALKTHROUGH, "solvable": True, **changes}


@pytest.fixture(name="made")
def made_fixture() -> Any:
    return made


@pytest.fixture
def shed() -> games.Game:
    return games.read("json_2.1.1/train/shed/game.tw-pddl", json.dumps(made()).encode())


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the variable XDG_CACHE_HOME may name for a test."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def release(cache: Path) -> games.Release:
    """ALFWorld's own games; without them the test is skipped."""
    try:
        found = games.release()
    except ItemError as error:
        pytest.skip(str(error))
    if isinstance(found, games.Archive):
        return games.Archive(found.path, cache / "agentrl")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a release of two games, and AgentBench's list of them and a third."""
    paths = [
        f"json_2.1.1/{part}/{name}/game.tw-pddl"
        for part, name in (("train", "a"), ("valid_train", "b"), ("valid_seen", "c"))
    ]
    for path in paths:
        (tmp_path / "alfworld" / path).parent.mkdir(parents=True)
        (tmp_path / "alfworld" / path).write_text(json.dumps(made()))
    listed = {"tidy": ["json_2.1.1/train/gone/game.tw-pddl", paths[0]]}
    (tmp_path / "alfworld/agentbench_train_valid.json").write_text(json.dumps(listed))
    return tmp_path
