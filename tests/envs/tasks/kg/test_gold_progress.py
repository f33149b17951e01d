"""Progress by hand, and of whatever an agent does."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kg_programs import parse

from agentrl.core.config.sections.tasks import ProcessRewards
from agentrl.envs.contract import PROGRESS, Item, ToolCall
from agentrl.envs.play import acts_of, take_turns
from agentrl.envs.process_rewards import with_process_rewards
from agentrl.envs.tasks.kg.environment import KgEnvironment
from agentrl.envs.tasks.kg.gold_progress import gold_programs, normal_form
from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Problem
from agentrl.envs.tasks.kg.questions import replay
from agentrl.envs.tasks.kg.task_source import KgSource
from agentrl.envs.tasks.kg.tools import PARAMETERS, Workbench
from agentrl.envs.tasks.options import Difficulty, read

PEOPLE, STAFF = "(JOIN (R people) m.oslo)", "(JOIN (R staff) m.acme)"
PROBLEM = Problem(
    question="How many people of oslo are staff of acme?",
    entities={"oslo": "m.oslo", "acme": "m.acme"},
    answers=["1"],
    actions=[
        "get_relations(m.oslo)",
        "get_neighbors(m.oslo,people)",
        "get_relations(acme)",  # by its name
        "get_neighbors(acme,staff)",
        "intersection(#0,#1)",
        "count(#2)",
    ],
    triples=[
        ("m.oslo", "people", "m.ann"),
        ("m.oslo", "people", "m.bob"),
        ("m.acme", "staff", "m.bob"),
        ("m.acme", "staff", "m.eva"),
        ("m.acme", "board", "m.bob"),
    ],
    ranges={"people": "person", "staff": "person", "board": "person"},
)
DIFFICULTIES: Sequence[Difficulty] = ("easy", "medium", "hard")


def environment(problem: Problem = PROBLEM) -> KgEnvironment:
    bench = Workbench(
        LocalGraph(problem.triples), problem.ontology("strict"), problem.entities, "strict"
    )
    return KgEnvironment(problem, bench, "compact")


def call(tool: str, *arguments: str) -> ToolCall:
    return ToolCall(tool, dict(zip(PARAMETERS[tool], arguments, strict=True)))


def progress(played: KgEnvironment, *turns: list[ToolCall] | str) -> list[float]:
    return [played.call(turn).metrics[PROGRESS] for turn in turns]


OSLO = [call("get_relations", "oslo"), call("get_neighbors", "oslo", "people")]
ACME = [call("get_relations", "acme"), call("get_neighbors", "acme", "staff")]
BOTH, COUNT = [call("intersection", "#1", "#0")], [call("count", "#2")]


def test_each_gold_variable_is_a_stage_and_the_answer_is_the_last() -> None:
    assert progress(environment(), OSLO, ACME, BOTH, COUNT, "Final Answer: #3") == pytest.approx(
        [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1.0]
    )


def test_listings_other_variables_and_repeated_ones_do_not_count() -> None:
    board = [call("get_neighbors", "acme", "board")]
    turns = ["hm", OSLO[:1], OSLO[1:], OSLO, [call("count", "#0")], ACME[:1], board, [], ACME]
    expected = [0, 0, 1, 1, 1, 1, 1, 1, 2]
    assert progress(environment(), *turns) == pytest.approx([n / 5 for n in expected])


def test_a_wrong_answer_keeps_what_is_done_and_a_right_one_by_another_way_is_all() -> None:
    wrong = progress(environment(), [*OSLO, *ACME, *BOTH, *COUNT], "Final Answer: #0")
    assert wrong == pytest.approx([4 / 5, 4 / 5])
    unknown = progress(environment(), OSLO, "Final Answer: #9")
    assert unknown == pytest.approx([1 / 5, 1 / 5])
    board = [call("get_relations", "acme"), call("get_neighbors", "acme", "board")]
    assert progress(environment(), [*board, call("count", "#0")], "Final Answer: #1") == [0.0, 1.0]


def test_its_reward_is_paid_once() -> None:
    paid = with_process_rewards(environment(), ProcessRewards(progress=0.5))
    turns = [OSLO, OSLO, ACME, OSLO, BOTH, COUNT, "Final Answer: #0"]
    assert [paid.call(turn).reward for turn in turns] == pytest.approx([0.1, 0, 0.1, 0, 0, 0, 0])


def test_an_item_without_gold_calls_that_can_be_read_reports_none() -> None:
    some = msgspec.structs.replace(PROBLEM, actions=["get_neighbors(m.oslo,people)"])
    assert gold_programs(some) == [parse(PEOPLE)]
    for action in ("count(#7)", "count(#x)", "count(#0,#0)", "get_neighbors(m x,r)", "union(#0)"):
        odd = msgspec.structs.replace(some, actions=[*some.actions, action])
        assert gold_programs(odd) == []
    none = environment(msgspec.structs.replace(PROBLEM, actions=[]))
    assert none.call(OSLO).metrics == {}
    assert none.call("Final Answer: #0").metrics == {}


def test_gold_programs_are_those_of_the_variables() -> None:
    both = f"(AND {PEOPLE} {STAFF})"
    assert [str(each) for each in gold_programs(PROBLEM)] == [
        PEOPLE,
        STAFF,
        both,
        f"(COUNT {both})",
    ]
    most = msgspec.structs.replace(PROBLEM, actions=[*PROBLEM.actions[:2], "argmax(#0, age)"])
    assert str(gold_programs(most)[-1]) == f"(ARGMAX {PEOPLE} age)"


def test_intersections_are_equal_in_any_order_and_nothing_else_is() -> None:
    a, b, c = (f"(JOIN (R {name}) m.x)" for name in "abc")

    def same(first: str, second: str) -> bool:
        return normal_form(parse(first)) == normal_form(parse(second))

    assert same(f"(AND {a} (AND {b} {c}))", f"(AND (AND {c} {a}) {b})")
    assert same(f"(AND {a} {a})", a)
    assert same(f"(COUNT (AND {a} {b}))", f"(COUNT (AND {b} {a}))")
    assert not same(f"(AND {a} {b})", f"(AND {a} {c})")
    assert not same(f"(ARGMAX {a} x)", f"(ARGMIN {a} x)")
    assert not same(f"(JOIN (R a) {b})", f"(JOIN (R b) {a})")


def test_gold_programs_of_generated_items_are_those_that_the_tools_make() -> None:
    for _, item in items():
        problem = read(item, Problem)
        graph = LocalGraph(problem.triples, problem.attributes)
        bench = Workbench(graph, problem.ontology("strict"), {}, "strict")
        assert replay(problem.actions, bench) == set(problem.answers)
        assert gold_programs(problem) == [variable.program for variable in bench.variables]


@lru_cache(maxsize=1)
def items() -> list[tuple[KgSource, Item]]:
    sources = [KgSource({"difficulty": each, "items": 8}) for each in DIFFICULTIES]
    return [(source, item) for source in sources for item in source.items("train")]


@settings(max_examples=60, deadline=None)
@given(
    number=st.integers(0, 23), seed=st.integers(0, 2**32), noise=st.sampled_from([0.0, 0.3, 0.7])
)
def test_progress_never_falls_and_ends_at_one_exactly_if_solved(
    number: int, seed: int, noise: float
) -> None:
    source, item = items()[number]
    played = source.make(item)
    agent = acts_of(source.expert(item, seed=seed, noise=noise))
    turns = list(take_turns(played, played.start().messages, agent, source.max_turns))
    way = [0.0, *(turn.outcome.metrics[PROGRESS] for turn in turns)]
    assert all(before <= after for before, after in pairwise(way))
    assert all(0.0 <= share < 1.0 for share in way[:-1])
    assert (way[-1] == 1.0) == (turns[-1].outcome.reward == 1.0)
    if not noise:
        assert way[-1] == 1.0
        stages = 1 / (1.0 - way[-2])  # the answer is the only one that was missing
        assert sorted({*way}) == pytest.approx([n / stages for n in range(round(stages) + 1)])
