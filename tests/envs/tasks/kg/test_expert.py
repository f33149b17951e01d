"""The demonstrator, its mistakes, and the policies that know nothing."""

from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.kg.baselines import FirstRelation, RandomWalk
from agentrl.envs.tasks.kg.expert import KgExpert, parse_list, parse_made
from agentrl.envs.tasks.kg.problem import Problem

PROBLEM = Problem(
    question="?",
    entities={"kim": "m.kim", "oslo": "m.oslo"},
    answers=["m.bob"],
    actions=[
        "get_relations(m.kim)", "get_neighbors(m.kim,boss)", "get_relations(m.oslo)",
        "get_neighbors(m.oslo,people)", "intersection(#0,#1)", "get_attributes(#2)",
        "argmax(#2,age)",
    ],
)  # fmt: skip
REPLIES = ["", "Observation: [boss, home]", "Observation: variable #0, which are instances of t"]


def told(text: str) -> list[Message]:
    return [Message("tool", text)]


def test_it_goes_by_the_names_of_the_question() -> None:
    expert = KgExpert(PROBLEM, seed=0, noise=0.0)
    turns = [expert.act(told(reply)) for reply in REPLIES]
    assert turns == [
        ToolCall("get_relations", {"variable": "kim"}),
        ToolCall("get_neighbors", {"variable": "kim", "relation": "boss"}),
        ToolCall("get_relations", {"variable": "oslo"}),
    ]


def test_it_keeps_to_the_variables_that_were_made() -> None:
    expert = KgExpert(PROBLEM, seed=0, noise=0.0)
    replies = [*REPLIES, "[people]", "#7 t", "#8 t", "[age]", "#9 t"]
    turns = [expert.act(told(reply)) for reply in replies]
    assert turns[4] == ToolCall("intersection", {"variable1": "#0", "variable2": "#7"})
    assert turns[5] == ToolCall("get_attributes", {"variable": "#8"})
    assert turns[7] == "Final Answer: #9"


def test_after_a_refusal_it_goes_on_with_what_it_has() -> None:
    expert = KgExpert(PROBLEM, seed=0, noise=0.0)
    replies = [*REPLIES, "[people]", "Error processing tool call: no #5", "#1 t", "[age]", "Error"]
    turns = [expert.act(told(reply)) for reply in replies]
    assert turns[4] == ToolCall("intersection", {"variable1": "#0", "variable2": "#0"})
    assert turns[7] == "Final Answer: #1"


def test_its_mistakes_are_other_relations_other_sets_opposites_and_haste() -> None:
    seen = set()
    for seed in range(60):
        expert = KgExpert(PROBLEM, seed=seed, noise=0.7)
        for reply in [*REPLIES, "[people, firms]", "#1 t", "#2 t", "[age, pay]", "#3 t"]:
            turn = expert.act(told(reply))
            seen.add(turn if isinstance(turn, str) else (turn.name, *turn.arguments.values()))
            if isinstance(turn, str):
                break
    assert ("get_neighbors", "kim", "home") in seen
    assert ("get_relations", "oslo") in seen
    assert {("argmin", "#2", "age"), ("argmax", "#2", "pay")} <= seen
    assert {"Final Answer: #0", "Final Answer: #1", "Final Answer: #3"} <= seen


def test_replies_of_either_style_are_read() -> None:
    assert parse_list("Observation: [a.b..c, d]") == parse_list("a.b..c d") == ["a.b..c", "d"]
    assert parse_list("Observation: []") == parse_list("nothing") == parse_list("Error: x") == []
    assert (
        parse_made("#12 person")
        == parse_made("Observation: variable #12, which is a number")
        == "#12"
    )
    assert parse_made("Error processing tool call: there is no variable #4") == ""


def test_the_constant_policy_takes_the_first_relation() -> None:
    policy = FirstRelation(PROBLEM)
    assert policy.act(told("?")) == ToolCall("get_relations", {"variable": "kim"})
    assert policy.act(told("home boss")) == ToolCall(
        "get_neighbors", {"variable": "kim", "relation": "home"}
    )
    assert policy.act(told("#0 city")) == "Final Answer: #0"


def test_the_random_policy_follows_what_it_was_shown_and_answers_with_what_it_made() -> None:
    answers = set()
    for seed in range(30):
        policy = RandomWalk(PROBLEM, seed)
        first, second = policy.act(told("?")), policy.act(told("home boss"))
        assert isinstance(first, ToolCall)
        assert isinstance(second, ToolCall)
        assert second.arguments["variable"] == first.arguments["variable"]
        assert second.arguments["relation"] in ("home", "boss")
        answers.add(str(policy.act(told("#0 city"))))
    assert "Final Answer: #0" in answers
