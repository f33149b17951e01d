import json
import re
from typing import get_args

import pytest
from executed_lines import count_lines, grows_linearly
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.contract import Tool, ToolCall, strings
from agentrl.workers.conversation.toolcalls import Style, parse, render

STYLES: tuple[Style, ...] = get_args(Style)
ACT = strings("take_action", "Act.", "action")
COMMIT = Tool(
    "commit_final_answer",
    "Commit.",
    {
        "type": "object",
        "properties": {"answers": {"type": "array", "items": {"type": "string"}}},
        "required": ["answers"],
        "additionalProperties": False,
    },
)
COUNT = Tool(
    "count",
    "Count.",
    {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "share": {"type": "number"},
            "deep": {"type": "boolean"},
            "unit": {"type": "string", "enum": ["m", "kg"]},
        },
        "required": ["n"],
    },
)
TOOLS = (ACT, COMMIT, COUNT)


def error_of(text: str, style: Style = "plain") -> str:
    calls = parse(text, TOOLS, style)
    assert isinstance(calls, list)
    return calls[0].error


def test_a_plain_call_is_found_amid_text() -> None:
    text = 'I look. take_action{"action":"go to desk 1"} and wait'
    assert parse(text, TOOLS, "plain") == [ToolCall("take_action", {"action": "go to desk 1"})]


def test_a_hermes_call_is_found_behind_a_thought() -> None:
    text = (
        '<think>not <tool_call>{"name": "x"}</tool_call></think>\n'
        '<tool_call>\n{"name": "take_action", "arguments": {"action": "look"}}\n</tool_call>'
    )
    assert parse(text, TOOLS, "hermes") == [ToolCall("take_action", {"action": "look"})]


def test_a_glm_call_reads_strings_bare_and_the_rest_as_json() -> None:
    text = (
        "<tool_call>count\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n"
        "<arg_key>unit</arg_key>\n<arg_value>kg</arg_value>\n</tool_call>"
        "<tool_call>take_action\n<arg_key>action</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
    )
    assert parse(text, TOOLS, "glm") == [
        ToolCall("count", {"n": 3, "unit": "kg"}),
        ToolCall("take_action", {"action": "3"}),
    ]


def test_json_calls_are_found_in_a_fenced_list() -> None:
    call = ToolCall("commit_final_answer", {"answers": ["a{b", "2"]})
    plain = {"name": call.name, "arguments": call.arguments}
    text = f"Here:\n```json\n{json.dumps([plain, plain])}\n```"
    assert parse(text, TOOLS, "json") == [call, call]
    assert parse(json.dumps({"type": "function", "function": plain}), TOOLS, "json") == [call]


@pytest.mark.parametrize("style", STYLES)
def test_the_name_of_an_unknown_tool_is_bounded(style: Style) -> None:
    (call,) = parse(render(ToolCall("f" * 5_000_000, {}), style), TOOLS, style)
    assert isinstance(call, ToolCall)
    assert len(call.name) < 100
    assert call.error.startswith(f"no tool {call.name!r}")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("text", ["", "I am done.", "see {x} and {", "Final Answer: #3"])
def test_text_without_a_call_comes_back_as_it_is(text: str, style: Style) -> None:
    assert parse(text, TOOLS, style) == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('fly{"to":"moon"}', "no tool 'fly'; tools: take_action, commit_final_answer, count"),
        ("take_action{}", "take_action: action is missing"),
        ('take_action{"action":3}', "take_action: action is not string"),
        ('take_action{"action":"a","b":"c"}', "take_action: b is not a parameter"),
        ('commit_final_answer{"answers":["1",2]}', "commit_final_answer: answers[1] is not string"),
        ('count{"n":true}', "count: n is not integer"),
        ('count{"n":1,"unit":"s"}', "count: unit is none of m, kg"),
    ],
)
def test_a_call_outside_its_schema_says_where(text: str, error: str) -> None:
    assert error_of(text) == error


@pytest.mark.parametrize(
    "text",
    [
        'take_action{"action":"go',
        'take_action{"action":NaN}',
        'take_action{"action":"\\ud800"}',
        'take_action{"action":' + "[" * 100_000,
        'count{"n":' + "9" * 10_000 + "}",
    ],
)
def test_a_call_that_is_not_json_is_an_error_not_an_exception(text: str) -> None:
    assert "arguments are not JSON" in error_of(text)


def test_several_calls_keep_their_order_and_their_own_errors() -> None:
    text = 'take_action{"action":"a"}take_action{"action":1}take_action{"action":"c"}'
    calls = parse(text, TOOLS, "plain")
    assert isinstance(calls, list)
    assert [bool(call.error) for call in calls] == [False, True, False]


def test_a_call_whose_end_was_cut_off_counts_where_its_json_is_whole() -> None:
    text = '<tool_call>{"name": "take_action", "arguments": {"action": "a"}}'
    assert parse(text, TOOLS, "hermes") == [ToolCall("take_action", {"action": "a"})]
    assert error_of(text[:-4], "hermes").startswith("the call is not JSON")


INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)


# Nothing tells a tag in an argument from one of the call, or of a thought that the prompt began.
SAID = st.text().filter(lambda text: not re.search("</?[a-z]", text))


@given(st.lists(SAID, max_size=3), INTEGERS, st.sampled_from(STYLES))
def test_parse_reads_back_what_render_writes(answers: list[str], n: int, style: Style) -> None:
    calls = [
        ToolCall("commit_final_answer", {"answers": answers}),
        ToolCall("count", {"n": n, "deep": n > 0, "unit": "m"}),
    ]
    text = " then ".join(render(call, style) for call in calls)
    assert parse(text, TOOLS, style) == calls


TAGS = "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>"
PIECES = st.sampled_from([*TAGS.split(), *'{}[]":,1n', "take_action", "name", "arguments", "\\u"])


@given(st.lists(PIECES | st.text(max_size=3)).map("".join), st.sampled_from(STYLES))
def test_whatever_a_policy_writes_gives_calls_or_the_text(text: str, style: Style) -> None:
    calls = parse(text, TOOLS, style)
    assert calls == text if isinstance(calls, str) else len(calls) > 0


@pytest.mark.parametrize("unit", ['{"a":', 'solve{"a":', '<tool_call>{"a":', "<tool_call>"])
@pytest.mark.parametrize("style", ["plain", "hermes", "json"])
def test_ill_formed_calls_without_end_are_given_up(unit: str, style: Style) -> None:
    """Each is read as far as it goes, and its error counts the lines before it."""
    assert count_lines(lambda: parse(unit * 20_000, TOOLS, style)) < 100_000


def test_of_many_thoughts_each_is_read_once() -> None:
    def read(size: int) -> object:
        return parse("<think></think>" * size + "{", TOOLS, "json")

    assert grows_linearly(read, 500)


def test_a_call_behind_a_hundred_ill_formed_ones_is_found() -> None:
    call = render(ToolCall("solve", {"answers": ["4"], "n": 1}), "json")
    calls = parse("\\frac{a}{b} and code { x } " * 50 + call, TOOLS, "json")
    assert not isinstance(calls, str)


def test_long_nonsense_is_parsed_before_the_tests_time_is_over() -> None:
    for style in STYLES:
        for unit in ("a", "<tool_call>", "a{", "<function="):
            text = unit * (1 << 17)
            assert parse(text, TOOLS, style)
