"""The text grammar, rule by rule."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.envs.tasks.alfworld.published import grammar
from agentrl.envs.tasks.alfworld.published.grammar import TextContext
from agentrl.envs.tasks.alfworld.published.pddl import MalformedPddl
from agentrl.envs.tasks.alfworld.published.world_state import World

LISTS = {"list_empty": "none", "list_separator": ", ", "list_last_separator": ", and "}
FACTS = {
    "on": [("pan", "desk"), ("cup", "desk"), ("egg", "shelf"), ("fork", "desk")],
    "clean": [("cup",)],
    "near": [("desk", "desk"), ("desk", "shelf")],
}
PLACES = ("desk", "shelf")


def told(text: str, rules: dict[str, Any] | None = None, **binding: str) -> str:
    """The words of a text about the desk and the shelf; `rules`: a text or [(condition, text)]."""
    rows = {
        name: [{"rhs": text}] if isinstance(text, str) else text
        for name, text in {**LISTS, **(rules or {})}.items()
    }
    found = grammar.parse(f'grammar :: """{json.dumps(rows)}""";')
    stage = TextContext(
        World({}, FACTS),
        lambda entity, field: {"name": f"{entity} 1", "indefinite": "a", "id": entity}.get(
            field, ""
        ),
        lambda entity, kind: kind == ("place" if entity in PLACES else "thing"),
    )
    return grammar.tell(found, grammar.text(text), binding, stage)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("shelf", "See: egg 1."),
        ("nowhere", "See: none."),
        ("desk", "See: cup 1, fork 1, and pan 1."),
    ],
)
def test_a_list_names_every_answer_in_order(place: str, words: str) -> None:
    assert told("See: [{o.name | on(o:thing, p:place)}].", p=place) == words


def test_a_repeat_without_brackets_is_no_list() -> None:
    assert told("{o.id | on(o:thing, p:place)}", p="desk") == "cupforkpan"


def test_values_are_sums_and_the_first_that_is_not_empty() -> None:
    assert told("{o.indefinite + ' ' + o.name}; {o.nothing or o.id}", o="cup") == "a cup 1"
    assert told("{o.nothing or o.id}, {o}", o="cup") == "cup, cup 1"


def test_the_first_rule_whose_condition_holds_speaks() -> None:
    state = [{"condition": "clean(o:thing)", "rhs": "clean"}, {"rhs": "plain"}]
    assert told("#state#", {"state": state}, o="cup") == "clean"
    assert told("#state#", {"state": state}, o="pan") == "plain"


def test_a_rule_may_be_asked_of_every_answer() -> None:
    rules = {"one(o)": [{"condition": "clean(o:thing)", "rhs": "*{o.id}*"}, {"rhs": "{o.id}"}]}
    assert told("[{#one(o)# | on(o:thing, p:place)}]", rules, p="desk") == "*cup*, fork, and pan"


def test_different_variables_are_different_entities() -> None:
    assert told("[{q.id | near(p:place, q:place)}]", p="desk") == "shelf"
    assert told("[{q.id | near(x:place, q:place)}]", q="desk") == "none"


def test_a_variable_of_another_type_has_no_answer() -> None:
    assert told("[{o.id | on(o:place, p:place)}]", p="desk") == "none"


def test_white_space_before_a_text_and_all_from_a_stray_bracket_on_is_dropped() -> None:
    assert told("\n  one two } three") == "one two "


def test_an_action_has_a_command_and_an_answer() -> None:
    source = 'action Take { template :: "take {o}"; feedback :: "Got\n{o}"; pddl :: """ x """; }'
    wording = grammar.parse(source).actions["take"]
    assert [type(part).__name__ for part in wording.template] == ["Plain", "Repeat"]
    assert [type(part).__name__ for part in wording.feedback] == ["Plain", "Repeat"]


def test_the_predicates_a_text_depends_on_are_found_through_its_rules() -> None:
    source = json.dumps(
        {
            "a": [{"condition": "clean(o:thing)", "rhs": "#b#"}],
            "b": [{"rhs": "#a# [{#c# | on(o:thing, p:place)}]"}],
            "c": [{"condition": "not_near(o:thing)", "rhs": "x"}],
        }
    )
    found = grammar.parse(f'grammar :: """{source}""";')
    assert grammar.predicates(found, grammar.text("#a#")) == {"clean", "on", "not_near"}
    assert grammar.predicates(found, grammar.text("plain {o.name}")) == frozenset()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("#gone#", "nothing to say for #gone#"),
        ("{x.name}", "speaks of x"),
        ("{a b}", "not a value"),
    ],
)
def test_what_cannot_be_told_is_an_error(text: str, named: str) -> None:
    with pytest.raises(MalformedPddl, match=named):
        told(text)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("rules", "neither a grammar nor an action"),
        ('grammar :: """{""";', "a block of the grammar"),
        ('grammar :: """{"a": [{}]}""";', "a block of the grammar"),
        ('grammar :: """{"a": [{"rhs": "x", "condition": "on"}]}""";', "not a fact"),
        ('action A { template :: "x"; }', "no template or no feedback"),
        ('action A { template :: "x"', "does not end"),
    ],
)
def test_what_is_no_grammar_is_an_error_that_says_why(source: str, named: str) -> None:
    with pytest.raises(MalformedPddl, match=named):
        grammar.parse(source)


marks = st.sampled_from(
    [
        'grammar :: """',
        '""";',
        "action a {",
        "}",
        'template :: "',
        'feedback :: "',
        '";',
        "{o.x",
        "|",
        "#",
        "[{",
        "}]",
        '{"a": [{"rhs": "',
        '"}]}',
        "on(o:t)",
        "&",
        "+",
        " or ",
        "\n",
        "'",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(marks, max_size=20).map("".join) | st.text(max_size=30))
@example('grammar :: """[]""";')
@example('grammar :: """{"a": [{"rhs": 3}]}""";')
@example('grammar :: """{"a": [{"rhs": "x", "condition": 3}]}""";')
def test_whatever_the_text_it_is_read_or_malformed(source: str) -> None:
    for read in (grammar.parse, grammar.text):
        with suppress(MalformedPddl):
            read(source)
