"""Generated questions: proper, small, apart, and the same for a seed."""

from random import Random

import pytest
from kg_programs import parse

from agentrl.envs.contract import Message
from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Ontology, Problem
from agentrl.envs.tasks.kg.questions import (
    Walker,
    action,
    draw_problem,
    plan,
    replay,
    solve_program,
)
from agentrl.envs.tasks.kg.task_source import KgSource
from agentrl.envs.tasks.kg.tools import Workbench
from agentrl.envs.tasks.kg.world import MAX_TRIPLES, invent
from agentrl.envs.tasks.options import Difficulty, read

DIFFICULTIES: list[Difficulty] = ["easy", "medium", "hard"]


def walker(graph: LocalGraph) -> Walker:
    ranges = {"boss": "person", "home": "city", "people": "person", "staff": "person"}
    ontology = Ontology(ranges, ranges.keys(), {"age"})
    return Walker(graph, ontology, ["m.oslo"], str, lambda entity: entity.removeprefix("m."))


def problems(difficulty: str, count: int = 20) -> list[Problem]:
    source = KgSource({"difficulty": difficulty, "items": count})
    return [read(item, Problem) for item in source.items("train")]


def test_a_plan_lists_before_it_uses_and_numbers_variables_as_they_are_made() -> None:
    program = "(COUNT (ARGMAX (AND (JOIN (R b) (JOIN (R a) m.x)) (JOIN (R c) m.y)) d))"
    assert plan(parse(program)) == [
        "get_relations(m.x)",
        "get_neighbors(m.x,a)",
        "get_relations(#0)",
        "get_neighbors(#0,b)",
        "get_relations(m.y)",
        "get_neighbors(m.y,c)",
        "intersection(#1,#2)",
        "get_attributes(#3)",
        "argmax(#3,d)",
        "count(#4)",
    ]
    assert action("argmax(#3, d)") == ("argmax", ["#3", "d"])


def test_programs_are_worded_in_full_and_in_short(graph: LocalGraph) -> None:
    wording = walker(graph)
    path = parse("(JOIN (R home) (JOIN (R boss) m.ann))")
    assert wording.question(path) == "What is the home of the boss of ann?"
    assert wording.words(path) == "home of boss of ann"
    least = parse("(ARGMIN (AND (JOIN (R people) m.oslo) (JOIN (R staff) m.acme)) age)")
    assert wording.question(least) == (
        "Which one of the people of oslo and the staff of acme has the lowest age?"
    )
    assert wording.words(least) == "lowest age of people of oslo and staff of acme"
    many = parse("(COUNT (JOIN (R people) m.oslo))")
    assert wording.question(many) == "How many are the people of oslo?"
    both = parse("(AND (JOIN (R people) m.oslo) (JOIN (R staff) m.acme))")
    assert wording.question(both) == "What is in both, the people of oslo and the staff of acme?"


def test_a_question_that_a_part_of_it_answers_is_no_question(graph: LocalGraph) -> None:
    people, staff = "(JOIN (R people) m.oslo)", "(JOIN (R staff) m.acme)"
    assert solve_program(parse(f"(AND {people} {staff})"), walker(graph)) == ["m.bob"]
    assert solve_program(parse(f"(AND {people} {people})"), walker(graph)) is None
    assert solve_program(parse("(JOIN (R people) (JOIN (R home) m.ann))"), walker(graph)) is None
    assert solve_program(parse("(JOIN (R staff) m.oslo)"), walker(graph)) is None


def test_a_walk_without_choices_draws_nothing(graph: LocalGraph) -> None:
    assert (
        draw_problem(walker(graph), Random(0), "path 1", tries=5) is None
    )  # oslo has one relation


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_every_item_is_small_and_its_actions_give_its_answers(difficulty: Difficulty) -> None:
    tools: set[str] = set()
    for problem in problems(difficulty):
        assert len(problem.triples) + len(problem.attributes) <= MAX_TRIPLES
        assert set(problem.entities.values()) <= {subject for subject, _, _ in problem.triples}
        for rules in ("strict", "permissive"):
            graph = LocalGraph(problem.triples, problem.attributes)
            bench = Workbench(graph, problem.ontology(rules), {}, rules)
            assert replay(problem.actions, bench) == set(problem.answers) != set()
        tools |= {action(text)[0] for text in problem.actions}
    wanted = {"get_relations", "get_neighbors"}
    if difficulty != "easy":
        wanted.add("intersection")
    if difficulty == "hard":
        wanted |= {"get_attributes", "argmax", "argmin", "count"}
    assert tools == wanted


def test_worlds_are_a_function_of_the_seed() -> None:
    assert invent(Random(3)) == invent(Random(3)) != invent(Random(4))


def test_compact_easy_episodes_are_short() -> None:
    source = KgSource({"items": 20, "style": "compact"})
    for item in source.items("train"):
        environment, expert = source.make(item), source.expert(item, seed=0)
        messages: tuple[Message, ...] = environment.start().messages
        words = sum(len(message.content.split()) for message in messages)
        assert words <= 10
        said, turns = expert.act(messages), 1
        while not isinstance(said, str):
            messages = environment.call([said]).messages
            words += len(messages[0].content.split())
            said, turns = expert.act(messages), turns + 1
        assert environment.call(said).reward == 1.0
        assert turns <= 5
        assert words <= 40
