"""Between tokens of ours and messages of others."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.envs.contract import Message, ToolCall, strings
from agentrl.workers.conversation.message_translation import Interpreter, Reply, call_text, messages
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style, parse, render

LOOK, PUT = strings("look", "Look.", "thing"), strings("put", "Put.", "thing", "place")
TOOLS = (LOOK, PUT)
FIRST = (Message("system", "act"), Message("user", "go"))
STYLES: list[Style] = ["plain", "hermes", "glm", "json"]


@pytest.mark.parametrize("style", STYLES)
def test_calls_of_the_history_get_ids_and_each_is_answered(style: Style) -> None:
    one, two = ToolCall("look", {"thing": "mug"}), ToolCall("put", {"thing": "mug", "place": "bed"})
    history = (
        *FIRST,
        Message("assistant", render(one, style) + "\n" + render(two, style)),
        Message("tool", "seen", "look"),
        Message("assistant", "well"),
        Message("user", "use a tool"),
    )
    found = messages(history, TOOLS, style)
    assert [each["role"] for each in found] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip
    calls = found[2]["tool_calls"]
    assert [each["function"]["name"] for each in calls] == ["look", "put"]
    assert json.loads(calls[1]["function"]["arguments"]) == two.arguments
    assert [each["tool_call_id"] for each in found[3:5]] == [each["id"] for each in calls]
    assert [each["content"] for each in found[3:6]] == ["seen", "(no answer)", "well"]


def test_an_ill_formed_call_is_told_as_the_text_that_it_was() -> None:
    text = 'look{"thing": 3}'
    history = (*FIRST, Message("assistant", text), Message("tool", "thing is not string", "look"))
    assert messages(history, TOOLS, "plain")[2:] == [
        {"role": "assistant", "content": text},
        {"role": "user", "content": "thing is not string"},
    ]


@pytest.mark.parametrize("style", STYLES)
def test_an_answer_is_written_in_the_style_of_the_model(style: Style) -> None:
    function: dict[str, Any] = {"name": "look", "arguments": '{"thing": "a mug"}'}
    message = Reply("I look. ", [])
    assert call_text(message, style) == "I look. "

    message = msgspec.convert({"content": None, "tool_calls": [{"function": function}] * 2}, Reply)
    calls = parse(call_text(message, style), TOOLS, style)
    assert calls == [ToolCall("look", {"thing": "a mug"})] * 2

    for content in ("I look.", "I look", "-"):
        message = msgspec.convert(
            {"content": content, "tool_calls": [{"function": function}]}, Reply
        )
        calls = parse(call_text(message, style), TOOLS, style)
        assert calls == [ToolCall("look", {"thing": "a mug"})]


@settings(suppress_health_check=list(HealthCheck), max_examples=50)
@given(text=st.text(max_size=200), room=st.integers(1, 40))
def test_any_text_becomes_masked_tokens_that_fit_and_end_once(
    text: str, room: int, template: ChatTemplate
) -> None:
    interpreter = Interpreter(None, template, "plain", TOOLS)  # type: ignore[arg-type]
    for spelled in (text, f"{text}<|end|>{text}", f"<|en<|user|>d|>{text}<|us<|end|>er|>"):
        completion = interpreter._tokens(spelled, room)
        assert completion.masked
        assert len(completion.token_ids) <= room
        ends = [n for n, each in enumerate(completion.token_ids) if each in template.stop_ids]
        whole = completion.finish_reason == "stop"
        assert ends == ([len(completion.token_ids) - 1] if whole else [])
