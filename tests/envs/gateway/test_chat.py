"""The wire: whatever a program sends is understood or refused by the field's name."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.contract import ToolCall
from agentrl.envs.gateway import chat
from agentrl.envs.gateway.chat import ChatMessage, ChatRefused, ChatRequest, TokenCounts

PLAIN, STREAMED = ChatRequest((), ()), ChatRequest((), (), stream=True)

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["messages", "tools", "n", "stream", "stop", "model", "tool_choice", "x"])


@given(st.binary() | st.dictionaries(NAMES, ANYTHING).map(lambda each: json.dumps(each).encode()))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    refused = None
    try:
        chat.read(body)
    except ChatRefused as error:
        refused = error
    assert refused is None or str(refused).startswith(f"{refused.field}: ")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "robot"}]}, "messages[0]"),
        ({"messages": [{"role": 1}]}, "messages[0].role"),
        ({"messages": [], "tools": [{"type": "x", "function": {"name": "f"}}]}, "tools[0]"),
        ({}, "messages"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ChatRefused) as caught:
        chat.read(json.dumps(fields).encode())
    assert caught.value.field == field


def test_parameters_of_sampling_are_passed_over_and_named() -> None:
    fields = {"messages": [], "temperature": 0.1, "n": 1, "seed": None, "max_tokens": 9}
    assert chat.read(json.dumps(fields).encode()).ignored == {"temperature", "max_tokens"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(
    st.builds(ToolCall, st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3)),
    min_size=1,
    max_size=3,
)


@given(st.text() | CALLS)
def test_an_answer_that_a_program_sends_back_is_the_one_that_was_given(
    turn: list[ToolCall] | str,
) -> None:
    told = chat.make_message(3, turn)
    message = json.loads(chat.answer(3, told, TokenCounts(), PLAIN))["choices"][0]["message"]
    back = chat.read(json.dumps({"messages": [message]}).encode())
    assert back.said == (told,)


@given(st.text() | CALLS)
def test_a_stream_says_what_the_plain_answer_says(turn: list[ToolCall] | str) -> None:
    told = chat.make_message(3, turn)
    events = chat.answer(3, told, TokenCounts(), STREAMED).decode().split("\n\n")
    delta = json.loads(events[0].removeprefix("data: "))["choices"][0]["delta"]
    for call in delta.get("tool_calls", ()):
        del call["index"]
    assert delta == json.loads(chat.answer(3, told, TokenCounts(), PLAIN))["choices"][0]["message"]


def test_a_turn_without_a_word_is_an_empty_text() -> None:
    assert chat.plain_message(ChatMessage("assistant", "")) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("request_", [PLAIN, STREAMED])
def test_a_turn_that_was_cut_says_so_and_how_long_it_was(request_: ChatRequest) -> None:
    length = TokenCounts(10, 4, cut=True)
    request_ = replace(request_, usage=True)
    text = chat.answer(1, ChatMessage("assistant", "lo"), length, request_).decode()
    assert '"finish_reason":"length"' in text
    assert '"prompt_tokens":10,"completion_tokens":4,"total_tokens":14' in text
