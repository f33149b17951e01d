"""Programs as s-expressions and what their SPARQL finds, beside sets found edge by edge."""

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kg_programs import parse

from agentrl.envs.tasks.kg.graph import LocalGraph
from agentrl.envs.tasks.kg.program import (
    MAX_SIZE,
    And,
    Count,
    Entity,
    Extreme,
    Join,
    Program,
    ProgramError,
    answers,
    entities,
    predicates,
    require_size,
    size,
)

Edges = tuple[list[tuple[str, str, str]], list[tuple[str, str, int]]]
PEOPLE = "(JOIN (R people) m.oslo)"


def found(graph: LocalGraph, text: str, without: Collection[str] = ()) -> set[str]:
    return {name.removeprefix("m.") for name in graph.select(answers(parse(text), without))}


def by_edges(program: Program, edges: Edges) -> set[str]:
    """An evaluation of its own: dictionaries of edges, no SPARQL."""
    match program:
        case Entity(name):
            return {name}
        case Join(relation, inverse, of):
            ends = by_edges(of, edges)
            steps = [(s, o) if inverse else (o, s) for s, r, o in edges[0] if r == relation]
            return {end for start, end in steps if start in ends}
        case And(left, right):
            return by_edges(left, edges) & by_edges(right, edges)
        case Extreme(of, attribute, largest):
            members = by_edges(of, edges)
            values = {s: v for s, a, v in edges[1] if a == attribute and s in members}
            best = (max if largest else min)(values.values(), default=None)
            return {subject for subject, value in values.items() if value == best}
        case Count(of):
            return {str(len(by_edges(of, edges)))}


names = st.sampled_from(["m.ann", "m.bob", "m.oslo", "m.acme", "m.nobody"])
relations = st.sampled_from(["boss", "home", "people", "staff", "none"])
sets: st.SearchStrategy[Program] = st.recursive(
    st.builds(Entity, names),
    lambda inner: (
        st.builds(Join, relations, st.booleans(), inner)
        | st.builds(And, inner, inner)
        | st.builds(Extreme, inner, st.sampled_from(["age", "none"]), st.booleans())
    ),
    max_leaves=4,
)
programs = (sets | st.builds(Count, sets)).filter(lambda program: size(program) <= MAX_SIZE)


@settings(max_examples=50, deadline=None)
@given(program=programs)
def test_sparql_finds_what_the_edges_say(graph: LocalGraph, edges: Edges, program: Program) -> None:
    assert set(graph.select(answers(program))) == by_edges(program, edges)


@settings(max_examples=50, deadline=None)
@given(programs)
def test_a_program_is_read_as_it_is_written(program: Program) -> None:
    assert parse(str(program)) == program


@settings(max_examples=50, deadline=None)
@given(st.text() | st.text("()# JOINARGMXCUT.mR", max_size=60))
def test_any_text_is_a_program_or_refused(text: str) -> None:
    try:
        program = parse(text)
    except ProgramError:
        return
    assert parse(str(program)) == program


def test_a_join_goes_along_an_edge_or_against_it(graph: LocalGraph) -> None:
    assert found(graph, "(JOIN (R boss) m.ann)") == {"bob"}
    assert found(graph, "(JOIN boss m.bob)") == {"ann"}
    assert found(graph, f"(JOIN (R boss) {PEOPLE})") == {"bob", "eva"}


def test_numbers_are_compared_as_numbers_and_ties_are_all_members(graph: LocalGraph) -> None:
    everyone = f"(JOIN (R boss) {PEOPLE})"
    assert found(graph, f"(ARGMIN {PEOPLE} age)") == {"ann"}  # 9 < 30, though "9" > "30"
    assert found(graph, f"(ARGMAX {everyone} age)") == {"bob", "eva"}


def test_dates_are_compared_as_text() -> None:
    graph = LocalGraph(
        [("m.a", "has", "m.x"), ("m.a", "has", "m.y")],
        [("m.x", "born", "1999-12-31"), ("m.y", "born", "2000-01-01")],
    )
    assert found(graph, "(ARGMAX (JOIN (R has) m.a) born)") == {"y"}


def test_members_left_out_are_neither_found_nor_counted(graph: LocalGraph) -> None:
    assert found(graph, PEOPLE, {"m.ann"}) == {"bob"}
    assert found(graph, f"(COUNT {PEOPLE})", {"m.ann"}) == {"1"}
    assert found(graph, f"(ARGMIN {PEOPLE} age)", {"m.ann"}) == {"bob"}


def test_an_extreme_finds_all_that_share_the_value_of_what_was_not_left_out(
    graph: LocalGraph,
) -> None:
    staff = "(ARGMAX (JOIN (R staff) m.acme) age)"
    assert found(graph, staff, {"m.bob"}) == {"bob", "eva"}  # as the original: chosen without bob


def test_the_predicates_of_a_set_are_those_of_any_member(graph: LocalGraph) -> None:
    assert set(graph.select(predicates(parse("m.acme")))) == {"staff", "secret"}
    assert set(graph.select(predicates(parse(PEOPLE)))) == {"boss", "home", "age"}
    assert graph.select(predicates(parse("(JOIN (R none) m.acme)"))) == []


@pytest.mark.parametrize("name", ["", "a b", "m.x> ?p ?o", 'a"', "{", "a\n", "#0", "ä", "a" * 257])
def test_a_name_that_could_leave_its_place_in_a_query_is_refused(name: str) -> None:
    for make in (Entity, lambda name: Join(name, True, Entity("m.a"))):
        with pytest.raises(ProgramError, match="is no name"):
            make(name)
    with pytest.raises(ProgramError, match="is no name"):
        Extreme(Entity("m.a"), name, largest=True)


def test_a_program_that_doubles_with_every_step_is_refused_in_time() -> None:
    program: Program = Join("people", inverse=True, of=Entity("m.oslo"))
    for _ in range(4):
        program = require_size(And(program, program))
    assert size(program) == 47  # 2, 5, 11, 23, 47; the next would be 95
    with pytest.raises(ProgramError, match="too many steps"):
        require_size(And(program, program))


def test_only_sets_are_counted_joined_and_intersected() -> None:
    for text in ("(COUNT (COUNT m.a))", "(AND (COUNT m.a) m.a)", "(JOIN r (COUNT m.a))"):
        with pytest.raises(ProgramError, match="a number is no set"):
            parse(text)


def test_the_entities_of_a_program_are_those_it_starts_from() -> None:
    assert entities(parse("(COUNT (AND (JOIN (R a) m.x) (ARGMAX (JOIN b m.y) c)))")) == {
        "m.x",
        "m.y",
    }
