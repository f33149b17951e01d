"""Random calls fit the schemas of their tools, so that they measure chance and not refusals."""

from typing import Any

import pytest

from agentrl.envs.contract import Tool, ToolCall
from agentrl.envs.tasks.random_tool_calls import RandomToolCalls
from agentrl.workers.conversation.tool_schema import check_call

SMALL = {"type": "integer", "minimum": 1, "maximum": 3}


def arguments(schema: Any, seed: int) -> Any:
    tool = Tool("act", "Act.", {"type": "object", "properties": {"v": schema}})
    call = RandomToolCalls([tool], seed).act(())
    assert isinstance(call, ToolCall)
    assert not check_call(call, {"act": tool}).error
    return call.arguments["v"]


@pytest.mark.parametrize(
    ("schema", "low", "high"),
    [
        ({"type": "integer"}, 0, 9),
        ({"type": "integer", "minimum": 10}, 10, 19),
        ({"type": "integer", "maximum": -5}, -5, -5),
        (SMALL, 1, 3),
        ({"type": "number", "minimum": 0.5, "maximum": 0.9}, 0.5, 0.9),
        ({"type": ["number", "null"], "minimum": 100}, 100, 109),
    ],
)
def test_numbers_are_within_their_bounds(schema: Any, low: float, high: float) -> None:
    found = [arguments(schema, seed) for seed in range(50)]
    assert low <= min(found) <= max(found) <= high
    assert len(set(found)) > 1 or low == high


@pytest.mark.parametrize(
    ("schema", "lengths"),
    [
        ({"type": "array", "items": SMALL}, {1}),
        ({"type": "array", "items": SMALL, "minItems": 2}, {2}),
        ({"type": "array", "items": [SMALL, {"type": "string"}]}, {2}),
        ({"type": "array", "prefixItems": [SMALL], "items": False}, {1}),
        ({"type": "array"}, {1}),
    ],
)
def test_arrays_have_items_that_fit(schema: Any, lengths: set[int]) -> None:
    assert {len(arguments(schema, seed)) for seed in range(9)} == lengths


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"const": 7},
        {"enum": ["a", "b"]},
        {"type": "boolean"},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": "object", "properties": {"x": SMALL}, "required": ["x"]},
    ],
)
def test_every_other_value_fits(schema: Any) -> None:
    for seed in range(9):
        arguments(schema, seed)
