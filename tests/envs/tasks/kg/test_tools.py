"""What the tools give and refuse, under either rule set."""

from collections.abc import Callable

import pytest

from agentrl.envs.tasks.kg.problem import Rules
from agentrl.envs.tasks.kg.tools import MAX_VARIABLES, Listing, ToolError, Variable, Workbench

Make = Callable[[Rules], Workbench]
BOTH: list[Rules] = ["strict", "permissive"]


def use(bench: Workbench, *actions: str) -> Listing | Variable:
    for text in actions:
        tool, *arguments = text.split()
        made = bench.use(tool, *arguments)
    return made


def refused(bench: Workbench, action: str) -> str:
    with pytest.raises(ToolError) as caught:
        use(bench, action)
    return str(caught.value)


@pytest.mark.parametrize("rules", BOTH)
def test_a_question_is_answered_step_by_step(bench: Make, rules: Rules) -> None:
    tools = bench(rules)
    assert use(tools, "get_relations oslo") == Listing(("people",))
    assert str(use(tools, "get_neighbors oslo people")) != ""
    assert tools.variables[0].type == "person"
    assert use(tools, "get_relations #0") == Listing(("boss", "home"))
    assert use(tools, "get_attributes #0") == Listing(("age",))
    use(tools, "argmax #0 age", "get_relations m.ann", "get_neighbors m.ann boss")
    use(tools, "intersection #0 #2", "count #3")
    assert [tools.answer(index) for index in range(5)] == [
        {"m.ann", "m.bob"},
        {"m.bob"},
        {"m.bob"},
        {"m.bob"},
        {"1"},
    ]
    assert [variable.type for variable in tools.variables] == ["person"] * 4 + ["type.int"]


def test_the_strict_rules_ask_for_a_listing_the_permissive_ones_make_it(bench: Make) -> None:
    error = "get_neighbors: relation must be a relation of the variable"
    assert refused(bench("strict"), "get_neighbors oslo people") == error
    assert isinstance(use(bench("permissive"), "get_neighbors oslo people"), Variable)
    assert refused(bench("permissive"), "get_neighbors oslo boss") == error
    tools = bench("strict")
    use(tools, "get_relations oslo", "get_neighbors oslo people")
    assert (
        refused(tools, "argmax #0 age") == "argmax: attribute must be an attribute of the variable"
    )


def test_variables_made_the_same_way_share_their_listings(bench: Make) -> None:
    tools = bench("strict")
    use(tools, "get_relations oslo", "get_neighbors oslo people", "get_neighbors m.oslo people")
    use(tools, "get_relations #0")
    assert isinstance(use(tools, "get_neighbors #1 boss"), Variable)


def test_the_strict_rules_intersect_equal_types_only(bench: Make) -> None:
    for rules in BOTH:
        tools = bench(rules)
        use(tools, "get_relations oslo", "get_neighbors oslo people")
        use(tools, "get_relations acme", "get_neighbors acme staff")
        if rules == "strict":
            error = refused(tools, "intersection #0 #1")
            assert error == "intersection: two variables must have the same type"
        else:
            use(tools, "intersection #0 #1")
            assert tools.answer(2) == {"m.bob"}


def test_the_strict_rules_hide_what_the_vocabulary_lacks(bench: Make) -> None:
    assert use(bench("strict"), "get_relations acme") == Listing(("staff",))
    assert use(bench("permissive"), "get_relations acme") == Listing(("secret", "staff"))


def test_the_strict_rules_know_only_ids_of_two_kinds(bench: Make) -> None:
    error = "get_relations: variable must be a variable or an entity"
    for name in ("g", "g.1", "person", "m.x>", "m.ä"):
        assert refused(bench("strict"), f"get_relations {name}") == error
    assert use(bench("permissive"), "get_relations g") == Listing(())
    assert use(bench("permissive"), "get_relations person") == Listing(())
    assert use(bench("strict"), "get_relations f.nothing") == Listing(())


def test_under_the_strict_rules_a_set_does_not_hold_what_it_was_made_from(bench: Make) -> None:
    path = "get_neighbors #0 people"
    for rules in BOTH:
        tools = bench(rules)
        use(tools, "get_relations ann", "get_neighbors ann home", "get_relations #0", path)
        assert tools.answer(1) == {"m.bob"} | ({"m.ann"} if rules == "permissive" else set())


def test_what_was_listed_is_not_asked_for_again(bench: Make) -> None:
    tools = bench("strict")
    listed = use(tools, "get_relations oslo")
    tools._graph = None  # type: ignore[assignment]
    assert use(tools, "get_relations oslo") == listed == use(tools, "get_relations m.oslo")


@pytest.mark.parametrize("rules", BOTH)
def test_what_is_no_variable_is_refused(bench: Make, rules: Rules) -> None:
    tools = bench(rules)
    assert refused(tools, "get_relations #0") == "get_relations: there is no variable #0"
    assert refused(tools, "get_relations #-1") == "get_relations: variable must be a variable"
    assert refused(tools, "count ann") == "count: variable must be a variable"
    assert refused(tools, "get_attributes ann") == "get_attributes: variable must be a variable"
    assert refused(tools, "intersection ann oslo") == "intersection: variable must be a variable"
    use(tools, "get_relations oslo", "get_neighbors oslo people", "count #0")
    assert refused(tools, "get_relations #1") == "get_relations: variable #1 is a number"
    assert refused(tools, "intersection #0 #1").endswith(
        "must have the same type" if rules == "strict" else "a number is no set of entities"
    )
    assert refused(tools, "count #1") == "count: a number is no set of entities"
    assert len(tools.variables) == 2


def test_variables_that_double_with_every_call_end_in_a_refusal(bench: Make) -> None:
    tools = bench("strict")
    use(tools, "get_relations oslo", "get_neighbors oslo people")
    for index in range(4):
        use(tools, f"intersection #{index} #{index}")
    assert refused(tools, "intersection #4 #4").endswith("made of too many steps")
    assert tools.answer(-1) == {"m.ann", "m.bob"}


def test_the_number_of_variables_is_bounded(bench: Make) -> None:
    tools = bench("strict")
    use(tools, "get_relations oslo", "get_neighbors oslo people")
    for _ in range(MAX_VARIABLES - 1):
        use(tools, "intersection #0 #0")
    assert refused(tools, "intersection #0 #0") == "intersection: there are too many variables"
