"""Reading PDDL."""

from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.envs.tasks.alfworld.published import pddl
from agentrl.envs.tasks.alfworld.published.pddl import (
    And,
    Atom,
    Effect,
    Exists,
    MalformedPddl,
    Not,
    Or,
    Variable,
)


def problem(init: str = "", goal: str = "(p)", objects: str = "") -> pddl.Problem:
    return pddl.problem(f"(define (problem x) (:objects {objects}) (:init {init}) (:goal {goal}))")


def action(condition: str = "()", effect: str = "()") -> pddl.Action:
    text = f"(:action Go :parameters (?a - man ?b) :precondition {condition} :effect {effect})"
    return pddl.domain(f"(define (domain x) {text})").actions["go"]


def test_names_are_folded_and_comments_are_passed_over() -> None:
    found = problem("; (p a)\n(P A) ;) ((\n(q)", objects="A B - Thing C")
    assert found.facts == {"p": (("a",),), "q": ((),)}
    assert found.objects == {"a": "thing", "b": "thing", "c": "object"}


def test_a_fact_given_twice_is_one_and_costs_are_left_out() -> None:
    assert problem("(= (total-cost) 0) (p a) (p b) (p a)").facts == {"p": (("a",), ("b",))}


def test_types_form_a_line_up_to_the_root() -> None:
    found = pddl.domain("(define (domain x) (:types cup - dish dish))")
    assert found.lineage("cup") == ("cup", "dish", "object")
    with pytest.raises(MalformedPddl, match="unknown type fork"):
        found.lineage("fork")


def test_an_action_takes_typed_parameters_and_no_condition_always_holds() -> None:
    found = action()
    assert found.parameters == (Variable("?a", "man"), Variable("?b", "object"))
    assert found.condition == And(())
    assert found.effects == ()


A, B = Atom("p", ("?a",)), Atom("q", ("?b", "home"))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("(p ?a)", A),
        ("(and (p ?a) (q ?b home))", And((A, B))),
        ("(or (p ?a) (not (q ?b home)))", Or((A, Not(B)))),
        ("(imply (p ?a) (q ?b home))", Or((Not(A), B))),
        ("(exists (?c - t) (p ?a))", Exists((Variable("?c", "t"),), A)),
        ("(forall (?c - t) (p ?a))", Not(Exists((Variable("?c", "t"),), Not(A)))),
        ("(= ?a ?b)", Atom("=", ("?a", "?b"))),
    ],
)
def test_conditions_are_read_as_what_they_mean(text: str, condition: pddl.Condition) -> None:
    assert action(condition=text).condition == condition


def test_effects_carry_their_quantifiers_and_their_conditions() -> None:
    all_of_them = "(forall (?c) (when (p ?c) (r ?c)))"
    effect = f"(and (p ?a) (not (q ?b home)) (increase (total-cost) 1) {all_of_them})"
    gain, loss, each = action(effect=effect).effects
    assert (gain, loss) == (Effect(True, A), Effect(False, B))
    assert (each.variables, each.atom) == ((Variable("?c", "object"),), Atom("r", ("?c",)))
    assert each.condition == And((And(()), Atom("p", ("?c",))))


def test_a_quantified_variable_is_not_free() -> None:
    condition = action("(or (p ?a) (exists (?b) (and (p ?b) (p ?c))))").condition
    assert pddl.free(condition) == {"?a", "?c"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "0 forms"),
        ("(a) (b)", "2 forms"),
        ("(define (problem x)", "1 \\) missing"),
        ("(define (problem x)))", "a \\) too many"),
        ("(define (domain x))", "no \\(define \\(problem"),
        ("(define (problem x))", "no goal"),
        ("(define (problem x) (:goal (and (p (q)))))", "not a list of names"),
        ("(define (problem x) x)", "a section of the problem"),
    ],
)
def test_what_is_no_problem_is_an_error_that_says_why(text: str, named: str) -> None:
    with pytest.raises(MalformedPddl, match=named):
        pddl.problem(text)


marks = st.sampled_from(
    [
        "(",
        ")",
        "(define",
        "(domain x)",
        "(problem x)",
        "(:action",
        "(:init",
        "(:goal",
        "(:types",
        "a",
        ":effect",
        ":parameters",
        "when",
        "forall",
        "not",
        "and",
        "-",
        ";",
        "\n",
        "?x",
        "(:objects",
        "=",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(marks, max_size=30).map(" ".join) | st.text(max_size=40))
@example("(define (domain x) (:action))")
@example("(define (domain x) (:action a :effect (not)))")
@example("(define (domain x) (:action a :effect (forall (?x) (not ((p))))))")
def test_whatever_the_text_it_is_read_or_malformed(text: str) -> None:
    for read in (pddl.domain, pddl.problem):
        with suppress(MalformedPddl):
            read(text)
