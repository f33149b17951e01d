"""Asking a world: against every binding tried in turn."""

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.tasks.alfworld.published.pddl import (
    And,
    Atom,
    Condition,
    Exists,
    Fact,
    MalformedPddl,
    Not,
    Or,
    Variable,
)
from agentrl.envs.tasks.alfworld.published.world_state import Planner, Relation, World, has_solution

OBJECTS = {"cup": ("a", "b"), "box": ("c",), "object": ("a", "b", "c")}
MEMBERS = {kind: dict.fromkeys(names) for kind, names in OBJECTS.items()}
X, Y, Z = (Variable("?x", "object"), Variable("?y", "cup"), Variable("?z", "object"))


def asked(condition: Condition, facts: dict[str, set[Fact]], *variables: Variable) -> set[Fact]:
    world = World({}, facts)
    solver = Planner(world, MEMBERS).solver(condition, frozenset(), variables)
    binding: dict[str, str] = {}
    return {tuple(binding[v.name] for v in variables) for _ in solver(world, binding)}


def true(condition: Condition, facts: dict[str, set[Fact]], binding: dict[str, str]) -> bool:
    """The meaning of a condition, by trying everything."""
    match condition:
        case Atom("=", (left, right)):
            return binding.get(left, left) == binding.get(right, right)
        case Atom(predicate, terms):
            return tuple(binding.get(term, term) for term in terms) in facts.get(predicate, set())
        case Not(part):
            return not true(part, facts, binding)
        case And(parts):
            return all(true(part, facts, binding) for part in parts)
        case Or(parts):
            return any(true(part, facts, binding) for part in parts)
        case Exists(variables, part):
            return any(true(part, facts, {**binding, **more}) for more in bindings(*variables))


def bindings(*variables: Variable) -> Iterator[dict[str, str]]:
    for objects in product(*(OBJECTS.get(variable.type, ()) for variable in variables)):
        yield dict(zip((variable.name for variable in variables), objects, strict=True))


FACTS: dict[str, set[Fact]] = {"in": {("a", "c"), ("b", "c")}, "red": {("a",)}}


def test_every_way_a_conjunction_holds_is_found() -> None:
    condition = And((Atom("in", ("?x", "?z")), Not(Atom("red", ("?x",)))))
    assert asked(condition, FACTS, X, Z) == {("b", "c")}


def test_a_variable_stands_for_objects_of_its_type_alone() -> None:
    assert asked(Atom("in", ("?x", "?y")), FACTS, X, Y) == set()
    assert asked(And(()), FACTS, Y) == {("a",), ("b",)}


def test_a_type_without_objects_has_no_answer() -> None:
    assert asked(Atom("red", ("?x",)), FACTS, Variable("?x", "cup,")) == set()


def test_an_inner_variable_of_the_same_name_leaves_the_outer_one_alone() -> None:
    inner = Exists((X,), Atom("in", ("?x", "c")))
    assert asked(And((Atom("red", ("?x",)), inner)), FACTS, X) == {("a",)}


def test_what_binds_nothing_is_malformed() -> None:
    with pytest.raises(MalformedPddl, match=r"nothing binds \?q"):
        asked(Not(Atom("red", ("?q",))), FACTS)


def test_what_became_false_is_a_fact_until_it_is_true_again() -> None:
    world = World({}, FACTS)
    world.make("red", ("a",), False)
    assert (list(world["red"].rows), list(world["not_red"].rows)) == ([], [("a",)])
    world.make("red", ("a",), True)
    assert (list(world["red"].rows), list(world["not_red"].rows)) == ([("a",)], [])
    assert not World({}, FACTS)["not_red"].rows


def test_what_no_effect_changes_is_shared_between_worlds() -> None:
    red = Relation([("a",)])
    one, other = World({"red": red}, {}), World({"red": red}, {})
    assert one["red"] is other["red"] is red


terms = st.sampled_from(["?x", "?y", "?z", "a", "c"])
atoms = st.builds(Atom, st.just("red"), st.tuples(terms)) | st.builds(
    Atom, st.sampled_from(["in", "="]), st.tuples(terms, terms)
)
conditions = st.recursive(
    atoms,
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(And, st.lists(inner, max_size=3).map(tuple))
        | st.builds(Or, st.lists(inner, max_size=3).map(tuple))
        | st.builds(Exists, st.sets(st.sampled_from([X, Y, Z]), min_size=1).map(tuple), inner)
    ),
    max_leaves=6,
)
names = st.sampled_from("abc")
worlds = st.fixed_dictionaries(
    {"in": st.sets(st.tuples(names, names)), "red": st.sets(st.tuples(names))}
)


@settings(max_examples=60, deadline=None)
@given(conditions, worlds)
def test_a_solver_finds_what_trying_everything_finds(
    condition: Condition, facts: dict[str, set[Fact]]
) -> None:
    variables = (X, Y, Z)
    expected = {
        tuple(binding[v.name] for v in variables)
        for binding in bindings(*variables)
        if true(condition, facts, binding)
    }
    assert asked(condition, facts, *variables) == expected


@settings(max_examples=60, deadline=None)
@given(conditions, worlds)
def test_a_closed_condition_holds_or_not_whatever_was_bound_before(
    condition: Condition, facts: dict[str, set[Fact]]
) -> None:
    closed = Exists((X, Y, Z), condition)
    world = World({}, facts)
    solver = Planner(world, MEMBERS).solver(closed, frozenset())
    binding = {"?x": "c"}
    assert has_solution(solver, world, binding) == true(closed, facts, {})
    assert binding == {"?x": "c"}
