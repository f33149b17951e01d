"""An episode from its prompt to its reward, in the benchmark's words."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.core.errors import EnvironmentFailure
from agentrl.core.types import TRAINABLE, Status
from agentrl.envs.contract import Message, ToolCall
from agentrl.envs.tasks.kg.environment import NO_CALL, KgEnvironment, final_answer
from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.problem import Problem, exact_match, f1
from agentrl.envs.tasks.kg.tools import PARAMETERS, Workbench
from agentrl.envs.tasks.options import Style

PROBLEM = Problem(
    question="Who lives in Oslo and Rome?",
    entities={"Oslo": "m.oslo", "Rome": "m.rome"},
    answers=["m.ann", "m.bob"],
    triples=[
        ("m.oslo", "people", "m.ann"),
        ("m.oslo", "people", "m.bob"),
        ("m.oslo", "people", "m.eva"),
        ("m.rome", "people", "m.eva"),
        ("m.rome", "people", "m.ann"),
    ],
    attributes=[("m.ann", "age", 9), ("m.bob", "age", 30)],
    ranges={"people": "person"},
    short="people of Oslo and Rome?",
)


def environment(style: Style = "full") -> KgEnvironment:
    graph = LocalGraph(PROBLEM.triples, PROBLEM.attributes)
    bench = Workbench(graph, PROBLEM.ontology("strict"), PROBLEM.entities, "strict")
    return KgEnvironment(PROBLEM, bench, style)


def call(tool: str, *arguments: str) -> ToolCall:
    return ToolCall(tool, dict(zip(PARAMETERS[tool], arguments, strict=True)))


def replies(environment: KgEnvironment, *calls: ToolCall) -> list[str]:
    return [message.content for message in environment.call(calls).messages]


LIST = call("get_relations", "Oslo")
FOLLOW = call("get_neighbors", "Oslo", "people")


def test_the_prompt_names_the_question_and_its_entities() -> None:
    system, user = environment().start().messages
    assert "Final Answer: #id" in system.content
    assert user == Message("user", "Who lives in Oslo and Rome?\nEntities: [Oslo, Rome]")


def test_the_compact_prompt_is_the_short_question() -> None:
    messages = environment("compact").start().messages
    assert [m.content for m in messages] == ["kg", "people of Oslo and Rome?"]


def test_replies_are_the_benchmarks() -> None:
    told = replies(
        environment(), LIST, FOLLOW, call("get_attributes", "#0"), call("argmin", "#0", "age"),
        call("count", "#1"), call("get_relations", "#0"), call("intersection", "#0", "#2"),
    )  # fmt: skip
    assert told == [
        "Observation: [people]",
        "Observation: variable #0, which are instances of person",
        "Observation: [age]",
        "Observation: variable #1, which are instances of person",
        "Observation: variable #2, which is a number",
        "Observation: []",
        "Error processing tool call: intersection: two variables must have the same type",
    ]


def test_compact_replies_hold_the_same_in_fewer_words() -> None:
    told = replies(environment("compact"), LIST, FOLLOW, call("get_relations", "#0"))
    assert told == ["people", "#0 person", "nothing"]


def test_what_fits_no_tool_is_answered_in_the_benchmarks_words() -> None:
    told = replies(
        environment(),
        ToolCall("answer", {}),
        ToolCall("__init__", {}),
        ToolCall("count", {}),
        ToolCall("count", {"variable": 3}),
        ToolCall("count", {"variable": "#0", "more": "x"}),
        ToolCall("count", {"variable": "#0"}, "arguments is no JSON"),
    )
    mismatch = "Arguments do not match the function signature. Error processing arguments for count"
    assert told == [
        "Provide an invalid function name. Function answer does not exist",
        "Provide an invalid function name. Function __init__ does not exist",
        mismatch,
        mismatch,
        mismatch,
        "Error processing tool call: arguments is no JSON",
    ]


@pytest.mark.parametrize(
    ("answer", "reward", "score"),
    [
        ("Final Answer: #0", 0.0, 0.8),  # three found, two of them gold: 2·2/(3+2)
        ("I Find Answer: #1", 0.0, 0.5),  # two found, one gold: 2·1/(2+2)
        ("Final Answer: #2", 0.0, 0.0),
    ],
)
def test_reward_is_the_exact_set_and_score_its_f1(answer: str, reward: float, score: float) -> None:
    started = environment()
    started.call(
        [LIST, FOLLOW, call("get_relations", "Rome"), call("get_neighbors", "Rome", "people")]
    )
    started.call([call("count", "#0")])
    outcome = started.call(answer)
    assert (outcome.done, outcome.status) == (True, Status.COMPLETED)
    assert (outcome.reward, outcome.score) == (reward, score)


def test_the_gold_set_is_rewarded() -> None:
    graph = LocalGraph([("m.x", "r", "m.ann"), ("m.x", "r", "m.bob")])
    ontology = Problem("?", {}, [], ranges={"r": "person"}).ontology("strict")
    bench = Workbench(graph, ontology, {}, "strict")
    started = KgEnvironment(PROBLEM, bench, "full")
    started.call([call("get_relations", "m.x"), call("get_neighbors", "m.x", "r")])
    outcome = started.call("Final Answer: #0")
    assert (outcome.reward, outcome.score) == (1.0, 1.0)


def test_exact_and_f1_of_sets_by_hand() -> None:
    assert exact_match({"a", "b"}, {"b", "a"})
    assert not exact_match({"a"}, {"a", "b"})
    assert not exact_match(set(), set())
    assert f1({"a"}, {"a", "b", "c"}) == 0.5  # precision 1, recall 1/3
    assert f1(set(), {"a"}) == f1({"b"}, {"a"}) == 0.0


def test_an_answer_that_names_no_variable_is_an_invalid_action() -> None:
    for text in ("Final Answer: #0", "Final Answer: #" + "9" * 5000):
        outcome = environment().call(text)
        assert (outcome.done, outcome.status) == (True, Status.INVALID_ACTION)
        assert outcome.reward == outcome.score == 0.0


def test_a_text_without_an_answer_is_asked_for_a_call() -> None:
    spoken: list[list[ToolCall] | str] = ["I think #0", "", "Final answer: 0", []]
    for turn in spoken:
        outcome = environment().call(turn)
        assert outcome.messages == (Message("user", NO_CALL),)
        assert not outcome.done


def test_the_first_answer_counts_and_none_that_was_only_imagined() -> None:
    assert final_answer("so Final Answer: #12. Final Answer: #3") == 12
    assert final_answer("Final\\_ Answer") is None
    assert final_answer("x Observation: Final Answer: #1") is None
    assert final_answer("Final Answer: #1 Observation: y") == 1


def test_a_closed_episode_tells_so() -> None:
    closed = environment()
    closed.close()
    closed.close()
    with pytest.raises(EnvironmentFailure, match="closed"):
        closed.call([LIST])


words = st.sampled_from(
    ["#0", "#1", "#99", "#x", "Oslo", "m.oslo", "people", "age", "m.x> ?p } #", '"', "", "\n", "ü"]
)  # fmt: skip
values: st.SearchStrategy[Any] = words | st.text() | st.integers() | st.none() | st.lists(words)
keys = st.sampled_from(["variable", "relation", "variable1", "variable2", "attribute", "more"])
fitting = st.sampled_from(sorted(PARAMETERS)).flatmap(
    lambda tool: st.builds(
        lambda given: call(tool, *given),
        st.lists(words | st.text(), min_size=len(PARAMETERS[tool]), max_size=len(PARAMETERS[tool])),
    )
)
wild = st.builds(
    ToolCall, st.sampled_from([*PARAMETERS, "use", "__class__"]) | st.text(),
    st.dictionaries(keys, values, max_size=3), st.sampled_from(["", "no JSON"]),
)  # fmt: skip
turns = st.lists(fitting | wild, max_size=6) | st.text() | words.map("Final Answer: {}".format)


@settings(max_examples=50, deadline=None)
@given(st.lists(turns, min_size=1, max_size=5))
def test_whatever_the_agent_writes_is_answered(spoken: list[list[ToolCall] | str]) -> None:
    started = environment()
    started.call([LIST, FOLLOW])
    for turn in spoken:
        outcome = started.call(turn)
        assert outcome.status in TRAINABLE
        assert outcome.done or all(message.content for message in outcome.messages)
        if outcome.done:
            return
        assert isinstance(turn, str) or len(outcome.messages) == max(1, len(turn))
