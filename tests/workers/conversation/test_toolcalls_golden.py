"""What models of each family write, as their own templates and cards show it, is read as one call.

Special tokens (`<|python_tag|>`, `[TOOL_CALLS]`, `<|eot_id|>`) are gone once tokens are decoded.
"""

import pytest

from agentrl.envs.contract import Tool, ToolCall
from agentrl.workers.conversation.toolcalls import STYLES, Style, parse, render

WEATHER = Tool(
    "get_weather",
    "The weather of a place.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
CALL = ToolCall("get_weather", {"city": "Oslo", "days": 2})
JSON = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}'
GOLDEN: list[tuple[str, Style, str]] = [
    ("Qwen2.5", "hermes", f"<tool_call>\n{JSON}\n</tool_call>"),
    (
        "Qwen3",
        "hermes",
        f"<think>\nThe user asks for <tool_call>.\n</think>\n\n<tool_call>\n{JSON}\n</tool_call>",
    ),
    (
        "Qwen2.5 with its arguments as text",
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": '
        '"{\\"city\\": \\"Oslo\\", \\"days\\": 2}"}\n</tool_call>',
    ),
    (
        "Qwen3-Coder",
        "qwen_xml",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "Qwen3-Coder without the outer tag",
        "qwen_xml",
        "I look it up.\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "Llama 3.1",
        "json",
        '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}',
    ),
    (
        "Llama 3.1 with a type",
        "json",
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}',
    ),
    ("Mistral 7B v0.3", "json", f" [{JSON}]"),
    ("Mistral Small 3", "plain", 'get_weather{"city": "Oslo", "days": 2}'),
    (
        "GLM-4.5",
        "glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    ),
    ("SmolLM2", "hermes", f"<tool_call>[{JSON}]</tool_call>"),
]


@pytest.mark.parametrize(
    ("style", "text"), [each[1:] for each in GOLDEN], ids=[each[0] for each in GOLDEN]
)
def test_a_call_of_a_model_is_read(style: Style, text: str) -> None:
    assert parse(text, (WEATHER,), style) == [CALL]


@pytest.mark.parametrize("style", STYLES)
def test_two_calls_are_read_in_their_order(style: Style) -> None:
    second = ToolCall("get_weather", {"city": "Bergen"})
    text = f"{render(CALL, style)}\n{render(second, style)}"
    assert parse(text, (WEATHER,), style) == [CALL, second]


def test_a_list_of_calls_is_read_in_its_order() -> None:
    other = JSON.replace("Oslo", "Bergen")
    found = parse(f"<tool_call>[{JSON}, {other}]</tool_call>", (WEATHER,), "hermes")
    assert found == [CALL, ToolCall("get_weather", {"city": "Bergen", "days": 2})]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<function=get_weather>\n<parameter=city>\nOslo", "get_weather: city has no end"),
        ("<function=get_weather>\n", "get_weather: the call was cut off"),
        (
            "<function=get_weather>Oslo</function>",
            "get_weather: expected a parameter or the end of the function",
        ),
        ("<function=get_weather></function>", "get_weather: city is missing"),
        (
            "<function=get_weather><parameter=city>a</parameter><parameter=city>b</parameter>"
            "</function>",
            "get_weather: 'city' comes twice",
        ),
        (
            "<function=get_weather><parameter=city>a</parameter><parameter=days>two</parameter>"
            "</function>",
            "get_weather: days is not integer",
        ),
        ("<function=fly></function>", "no tool 'fly'; tools: get_weather"),
    ],
)
def test_an_ill_formed_xml_call_says_why(text: str, error: str) -> None:
    (found,) = parse(text, (WEATHER,), "qwen_xml")
    assert isinstance(found, ToolCall)
    assert found.error == error


def test_an_xml_value_keeps_its_own_lines_and_tags() -> None:
    note = Tool("note", "", {"type": "object", "properties": {"text": {"type": "string"}}})
    call = ToolCall("note", {"text": "\n<b>one</b>\n\n2 < 3\n"})
    assert parse(render(call, "qwen_xml"), (note,), "qwen_xml") == [call]
