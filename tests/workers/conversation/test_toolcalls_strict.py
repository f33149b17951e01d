"""What a call may not be: cut off, ambiguous, beyond its schema or beyond what JSON carries."""

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.envs.contract import Tool, ToolCall, strings
from agentrl.workers.conversation.strict_json import DEEPEST
from agentrl.workers.conversation.toolcalls import Style, parse, render

STYLES: tuple[Style, ...] = get_args(Style)
ACT = strings("act", "Act.", "action")


def tool(**properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool("set", "Set.", schema | {"additionalProperties": False})


def errors(text: str, tools: tuple[Tool, ...], style: Style = "hermes") -> list[str]:
    calls = parse(text, tools, style)
    assert isinstance(calls, list)
    return [call.error for call in calls]


def hermes(arguments: str, name: str = "set") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


KINDS: dict[str, Any] = {
    "string": "a",
    "integer": 3,
    "number": 0.5,
    "boolean": True,
    "array": [1],
    "object": {"a": 1},
    "null": None,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", KINDS)
def test_each_kind_takes_its_own_values_and_no_other(kind: str, given: str) -> None:
    fits = kind == given or (kind, given) == ("number", "integer")
    found = errors(hermes(json.dumps({"v": KINDS[given]})), (tool(v={"type": kind}),))
    assert found == ["" if fits else f"set: v is not {kind}"]


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        ({"type": ["string", "null"]}, None, ""),
        ({"type": ["string", "null"]}, 1, "v is not string or null"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 4, ""),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "4", "v is none of what it may be"),
        ({"anyOf": [{"type": "integer"}, True]}, "4", ""),
        ({"const": "yes"}, "no", "v is not yes"),
        ({"enum": ["a", "b"]}, "c", "v is none of a, b"),
        ({}, [{"x": 1}], ""),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, [["a"]], ""),
        (
            {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
            [["a"], ["b", 2]],
            "v[1][1] is not string",
        ),
        ({"items": [{"type": "string"}, {"type": "number"}]}, ["a", 1, None], ""),
        ({"items": [{"type": "string"}], "additionalItems": False}, ["a", 1], "v[1] is not"),
        ({"prefixItems": [{"type": "string"}], "items": False}, [1], "v[0] is not string"),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], "v[1] is not allowed"),
        ({"items": True}, ["a", 1], ""),
        (True, [{"x": 1}], ""),
        ({"type": "object", "properties": {"x": {"type": "string"}}}, {"y": 1}, "v.y is not a"),
        ({"type": "object", "properties": {}, "additionalProperties": True}, {"y": 1}, ""),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"y": "1"}, "v.y is not"),
        ({"type": "object", "properties": {"x": {}}, "required": ["x"]}, {}, "v.x is missing"),
    ],
)
def test_a_schema_is_kept_in_its_depths(schema: Any, value: Any, error: str) -> None:
    (found,) = errors(hermes(json.dumps({"v": value})), (tool(v=schema),))
    assert found.removeprefix("set: ").startswith(error)
    assert bool(found) == bool(error)
    in_xml = f"<function=set><parameter=v>{json.dumps(value)}</parameter></function>"
    assert parse(in_xml, (tool(v=schema),), "qwen_xml")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('{"v": 1, "v": 2}', "'v' comes twice"),
        ('{"v": {"a": 1, "a": 1}}', "'a' comes twice"),
        ('{"v": 1e999}', "a number too large"),
        ('{"v": -Infinity}', "-Infinity is no JSON value"),
        ('{"v": 9223372036854775808}', "an integer of more than 64 bits"),
        ('{"v": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ('{"v": "\\udc00"}', "surrogates not allowed"),
        ('{"\\udc00": 1, "\\udc00": 1}', "comes twice"),
    ],
)
def test_what_json_allows_and_nobody_can_carry_is_refused(arguments: str, error: str) -> None:
    (found,) = errors(hermes(arguments), (tool(v={}),))
    assert error in found
    found.encode()


@pytest.mark.parametrize("depth", [DEEPEST - 1, DEEPEST, 980, 985, 990, 995, 1000, 50_000])
@pytest.mark.parametrize("style", STYLES)
def test_lists_in_lists_are_read_to_a_depth_and_never_overflow(style: Style, depth: int) -> None:
    nest = "[" * depth + "]" * depth
    text = {
        "plain": f'set{{"v":{nest}}}',
        "hermes": hermes(f'{{"v":{nest}}}'),
        "qwen_xml": f"<function=set><parameter=v>{nest}</parameter></function>",
        "glm": f"<tool_call>set<arg_key>v</arg_key><arg_value>{nest}</arg_value></tool_call>",
        "json": f'{{"name": "set", "arguments": {{"v":{nest}}}}}',
    }[style]
    found = errors(text, (tool(v={"type": "array"}),), style)
    near = depth in (DEEPEST - 1, DEEPEST)  # the styles count their own wrapping
    assert (found[0] == "") == (depth < DEEPEST - 1) or near


NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
SAID = st.text(max_size=8).filter(lambda text: "<" not in text)  # tags are tested by name
NEST = st.recursive(
    st.none() | st.booleans() | NUMBERS | SAID,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SAID, inner, max_size=3),
    max_leaves=8,
)


@given(NEST, st.sampled_from(["plain", "hermes", "json"]))
def test_any_json_argument_comes_through_as_it_was(value: Any, style: Style) -> None:
    call = ToolCall("set", {"v": value})
    assert parse(f"I do: {render(call, style)} so", (tool(v={}),), style) == [call]


@given(NEST, SAID, st.sampled_from(STYLES), st.data())
@example({"name": "act", "arguments": {"action": "x"}}, "", "json", None)
@example("go to desk 1", "", "glm", None)
def test_a_call_cut_off_anywhere_is_never_another_call(
    value: Any, more: str, style: Style, data: st.DataObject | None
) -> None:
    tools = (tool(v={}, w={"type": "string"}), ACT)
    whole = render(ToolCall("set", {"v": value, "w": more}), style)
    cuts = range(len(whole)) if data is None else [data.draw(st.integers(0, len(whole)))]
    wanted = parse(whole, tools, style)
    for cut in cuts:
        calls = parse(whole[:cut], tools, style)
        assert isinstance(calls, str) or calls == wanted or all(call.error for call in calls)


def test_a_glm_value_of_several_kinds_is_text_where_it_must_be() -> None:
    either = tool(v={"type": ["string", "boolean"]})
    for text, value in (("true", True), ("3", "3"), ("three", "three"), ("[1]", "[1]")):
        call = f"<tool_call>set\n<arg_key>v</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
        assert parse(call, (either,), "glm") == [ToolCall("set", {"v": value})]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("act<arg_key>action</arg_key><arg_value>look</arg_value>", "act: the call was cut off"),
        ("act<arg_key>action</arg_key><arg_value>look</tool_call>", "act: action has no value"),
        ("act<arg_key>action</tool_call>", "act: action has no value"),
        ("act<arg_key>a</arg_key>look</tool_call>", "act: a has no value"),
        (
            "act<arg_key>action</arg_key><arg_value>a</arg_value>"
            "<arg_key>action</arg_key><arg_value>b</arg_value></tool_call>",
            "act: 'action' comes twice",
        ),
        ("</tool_call>", "no tool ''; tools: act"),
    ],
)
def test_a_glm_call_that_is_not_whole_says_so(body: str, error: str) -> None:
    assert errors(f"<tool_call>{body}", (ACT,), "glm") == [error]


def test_a_glm_call_after_one_that_was_cut_off_counts() -> None:
    good = render(ToolCall("act", {"action": "look"}), "glm")
    assert errors(good.removesuffix("</tool_call>") + good, (ACT,), "glm") == [
        "act: the call was cut off",
        "",
    ]


@pytest.mark.parametrize("style", STYLES)
def test_calls_in_thoughts_are_not_made(style: Style) -> None:
    call = ToolCall("act", {"action": "look"})
    said = render(call, style)
    assert parse(f"<think>{said}</think>{said}", (ACT,), style) == [call]
    assert parse(f"{said}</think>\n{said}", (ACT,), style) == [call]  # the prompt began to think
    assert parse(f"{said} <think>{said}</think> {said}", (ACT,), style) == [call, call]
    endless = f"<think>I could {said} and"
    assert parse(endless, (ACT,), style) == ""


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>Answer: 1? No.</think>\n\nAnswer: 2", "Answer: 2"),
        ("Answer: 1? No.</think>\nAnswer: 2", "Answer: 2"),  # the prompt began to think
        ("<think>a</think>Answer: <think>b</think>2", "Answer: 2"),
        ("<think>Answer: 1 if", ""),
        (" Answer: 2\n", " Answer: 2\n"),
    ],
)
def test_an_answer_without_a_call_has_no_thoughts(style: Style, text: str, said: str) -> None:
    assert parse(text, (ACT,), style) == said


@pytest.mark.parametrize("style", STYLES)
def test_the_end_of_a_thought_in_an_argument_is_text(style: Style) -> None:
    call = ToolCall("act", {"action": "say </think> and </think>"})
    said, thought = render(call, style), "Hm.</think>\n"
    for before in ("", "I act: ", thought, f"<think>{thought}"):
        assert parse(before + said * 2, (ACT,), style) == [call, call]
    assert parse(said.replace("act", "fly") + said, (ACT,), style) == [call]  # no call: a thought


@pytest.mark.parametrize("text", ["</tool_call>", "<tool_call>", "<think>", 'x{"a": 1}'])
@pytest.mark.parametrize("style", ["plain", "hermes", "json"])
def test_tags_in_an_argument_are_text(text: str, style: Style) -> None:
    call = ToolCall("act", {"action": f"say {text} twice"})
    assert parse(render(call, style) * 2, (ACT,), style) == [call, call]


@pytest.mark.parametrize("between", ["", "\n", ", "])
def test_a_hermes_call_may_hold_several_objects(between: str) -> None:
    looked, left = (ToolCall("act", {"action": said}) for said in ("look", "leave"))
    objects = render(looked, "json") + between + render(left, "json")
    assert parse(f"<tool_call>{objects}</tool_call>", (ACT,), "hermes") == [looked, left]
    cut = f"<tool_call>{objects[:-3]}"
    assert errors(cut, (ACT,), "hermes")[0].startswith("the call is not JSON")


@pytest.mark.parametrize("style", ["hermes", "json"])
@pytest.mark.parametrize("arguments", [{"action": "look"}, '{"action": "look"}'])
def test_a_call_in_the_shape_of_openais_api_is_read(style: Style, arguments: Any) -> None:
    function = {"name": "act", "arguments": arguments}
    said = json.dumps({"id": "1", "type": "function", "function": function})
    text = f"<tool_call>[{said}]</tool_call>" if style == "hermes" else said
    assert parse(text, (ACT,), style) == [ToolCall("act", {"action": "look"})]


def test_objects_that_are_no_calls_are_passed_over_in_json_style() -> None:
    call = ToolCall("act", {"action": "look"})
    text = f'Like {{"name": "Bob", "age": 3}} or {{"x": [{{"y": 1}}]}}: {render(call, "json")}'
    assert parse(text, (ACT,), "json") == [call]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "act", "arguments": {"action": "lo', "the call is not JSON: Unterminated"),
        ('{"name": "act", "arguments": "look"}', "act: arguments are not JSON: Expecting value"),
        ('{"name": "act", "arguments": "{} {}"}', "act: arguments are not JSON: something follows"),
        ('{"name": "act", "arguments": [1]}', "act: arguments are no JSON object"),
        ('{"name": "act", "parameters": [1]}', "act: arguments are no JSON object"),
        ('{"name": 3, "arguments": {}}', "the call has no name"),
        ('{"name": "fly", "arguments": {}}', "no tool 'fly'; tools: act"),
    ],
)
def test_an_ill_formed_json_call_says_why(text: str, error: str) -> None:
    (found,) = errors(text, (ACT,), "json")
    assert found.startswith(error)


def test_an_error_repeats_little_of_what_the_policy_wrote() -> None:
    for style in STYLES:
        (found,) = errors(render(ToolCall("f" * 50_000, {}), style), (ACT,), style)
        assert len(found) < 200
        long = render(ToolCall("act", {"k" * 50_000: "v", "action": "a"}), style)
        assert len(errors(long, (ACT,), style)[0]) < 200


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        *("<function=act>", "</function>", "<parameter=action>", "</parameter>"),
        *("<think>", "</think>", '{"name": "act", ', '"arguments": ', '{"action": ', "act{"),
        *("action", "\\ud800", *'{}[]":, 1e9', "null", "NaN", "1e999", "9" * 30),
        *("\x00", "\u2028", "🙂", '"a"'),
    ]
)


@given(st.lists(PIECES | st.text(max_size=4), max_size=30).map("".join), st.sampled_from(STYLES))
def test_what_a_policy_writes_can_be_recorded_and_answered(text: str, style: Style) -> None:
    """The worker writes calls down as JSON, and the environment repeats errors as UTF-8."""
    calls = parse(text, (ACT, tool(v={"type": "array"})), style)
    if isinstance(calls, str):
        assert calls == text or ("think>" in text and len(calls) < len(text))
        return
    msgspec.json.encode(calls)
    for call in calls:
        call.error.encode()
        assert call.error or isinstance(
            call.arguments["action" if call.name == "act" else "v"], str | list
        )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "piece",
    [
        *('{"name":', "<tool_call>a<arg_key>", "</arg_key><arg_value>", "<think>", "</think>{"),
        *("<function=a><parameter=b>", "<tool_call>["),
    ],
)
def test_nonsense_of_a_whole_context_is_read_before_the_tests_time_is_over(
    style: Style, piece: str
) -> None:
    said = parse(piece * (12_000 // len(piece)), (ACT,), style)
    assert (said == "") == (piece == "<think>")
