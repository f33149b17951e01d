"""The wire: whatever a program sends is understood or refused by the field's name."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.contract import Message, Tool, ToolCall, TurnTerms
from agentrl.envs.gateway import anthropic, chat, responses
from agentrl.envs.gateway.chat_server import APIS, ModelApi
from agentrl.envs.gateway.dialogue import Dialogue
from agentrl.envs.gateway.messages import (
    DialogueMessage,
    DialogueReply,
    DialogueRequest,
    DialogueTurn,
    RequestRefused,
    TokenCounts,
    policy_turn,
)

PLAIN, STREAMED = DialogueRequest((), ()), DialogueRequest((), (), stream=True, usage=True)
LEAST: dict[ModelApi, dict[str, Any]] = {
    chat: {"messages": []},
    responses: {"input": []},
    anthropic: {"messages": [], "max_tokens": 9},
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["messages", "input", "tools", "n", "stream", "stop", "model", "tool_choice", "system", "x"]
)
BODIES = st.dictionaries(NAMES, ANYTHING).map(lambda each: json.dumps(each).encode())


def read(api: ModelApi, **fields: Any) -> DialogueRequest:
    return api.read(json.dumps(LEAST[api] | fields).encode())


def reply(
    said: DialogueMessage, request: DialogueRequest, counts: TokenCounts | None = None
) -> DialogueReply:
    return DialogueReply(3, (DialogueTurn(said, counts or TokenCounts()),), request)


def refused(api: ModelApi, **fields: Any) -> str:
    with pytest.raises(RequestRefused) as caught:
        read(api, **fields)
    return str(caught.value)


@given(st.sampled_from(APIS), st.binary() | BODIES)
def test_any_body_is_read_or_refused(api: ModelApi, body: bytes) -> None:
    error = None
    try:
        api.read(body)
    except RequestRefused as caught:
        error = caught
    assert error is None or str(error).startswith(f"{error.field}: ")


@pytest.mark.parametrize(
    ("api", "fields", "field"),
    [
        (chat, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0]"),
        (chat, {"messages": [{"role": "robot"}]}, "messages[0]"),
        (chat, {"messages": [{"role": 1}]}, "messages[0].role"),
        (chat, {"tools": [{"type": "x", "function": {"name": "f"}}]}, "tools[0]"),
        (chat, {"messages": None}, "messages"),
        (chat, {"max_tokens": 0}, "max_tokens"),
        (chat, {"n": 65}, "n"),
        (chat, {"stop": [""]}, "stop"),
        (responses, {"input": [{"role": "robot"}]}, "input[0]"),
        (responses, {"input": [{"type": "reasoning"}]}, "input[0]"),
        (responses, {"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0]"),
        (responses, {"previous_response_id": "resp_x"}, "previous_response_id"),
        (anthropic, {"max_tokens": None}, "max_tokens"),
        (anthropic, {"messages": [{"role": "tool", "content": ""}]}, "messages[0]"),
        (
            anthropic,
            {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
            "messages[0]",
        ),
        (anthropic, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        (anthropic, {"stop_sequences": [""]}, "stop_sequences"),
        (
            anthropic,
            {"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "f"}},
            "tool_choice",
        ),
    ],
)
def test_a_refusal_names_the_field(api: ModelApi, fields: dict[str, Any], field: str) -> None:
    assert refused(api, **fields).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (chat, {"top_logprobs": 2}),
        (chat, {"response_format": {"type": "json_schema"}}),
        (chat, {"tool_choice": {"type": "function"}, "tools": [{"function": {"name": "f"}}]}),
        (responses, {"background": True}),
        (responses, {"text": {"format": {"type": "json_schema", "schema": {}}}}),
        (responses, {"conversation": "conv_1"}),
        (anthropic, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (anthropic, {"output_config": {"format": {"type": "json_schema"}}}),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(api: ModelApi, fields: dict[str, Any]) -> None:
    assert refused(api, **fields).startswith(f"{next(iter(fields))}: ")


def test_a_refusal_says_which_value_is_supported() -> None:
    assert refused(chat, best_of=2) == "best_of: 2 is not supported; use 1"
    assert refused(chat, audio={}) == "audio: {} is not supported; leave it out"


@pytest.mark.parametrize("api", APIS)
def test_unknown_parameters_are_one_refusal(api: ModelApi) -> None:
    text = refused(api, temprature=0.1, zzz=1)
    assert text == "temprature: unknown parameter; did you mean temperature? (also unknown: zzz)"


@pytest.mark.parametrize("api", APIS)
def test_parameters_of_sampling_are_passed_over_and_named(api: ModelApi) -> None:
    assert read(api, temperature=0.1, top_p=None, metadata={}).ignored == {"temperature"}


def from_role(role: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "id": "msg_01a2", "role": role, "content": content}


COMMAND = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
CODEX: dict[str, Any] = {  # as @openai/codex 0.169.0 sends it, its texts shortened
    "model": "policy",
    "instructions": "You are Codex.",
    "input": [
        from_role("developer", "<permissions>"),
        from_role("developer", "<multi_agent_mode>"),
        from_role("user", "Which year?"),
    ],
    "tools": [
        {
            "type": "function",
            "name": "exec_command",
            "description": "Runs a command.",
            "strict": False,
            "parameters": COMMAND,
        },
        {"type": "namespace", "name": "multi_agent", "description": "", "tools": []},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a20a7c",
    "text": {"verbosity": "low"},
    "client_metadata": {"session_id": "01a20a7c"},
}


def test_a_request_of_codex_is_read_without_the_tools_that_openai_runs() -> None:
    asked = read(responses, **CODEX)
    assert asked.tools == (Tool("exec_command", "Runs a command.", COMMAND),)
    assert asked.ignored == {"reasoning", "tools of other types than function"}
    assert Dialogue().place(asked).messages == (
        Message("system", "You are Codex.\n<permissions>\n<multi_agent_mode>"),
        Message("user", "Which year?"),
    )


def test_only_tools_that_openai_runs_are_no_tools() -> None:
    asked = read(responses, tools=[{"type": "web_search"}], tool_choice="required")
    assert (asked.tools, asked.must_call) == ((), False)


def test_a_turn_may_be_limited() -> None:
    asked = read(chat, max_tokens=9, max_completion_tokens=5, stop="a")
    assert asked.terms == TurnTerms(5, ("a",))
    assert read(responses, max_output_tokens=5).terms == TurnTerms(5)
    assert read(anthropic, stop_sequences=["a", "b"]).terms == TurnTerms(9, ("a", "b"))


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
SENT_BACK: dict[ModelApi, Callable[[dict[str, Any]], dict[str, Any]]] = {
    chat: lambda answer: {"messages": [answer["choices"][0]["message"]]},
    responses: lambda answer: {"input": answer["output"]},
    anthropic: lambda answer: {"messages": [{"role": "assistant", "content": answer["content"]}]},
}


@given(st.sampled_from(APIS), st.text() | CALLS)
def test_an_answer_that_a_program_sends_back_is_the_one_that_was_given(
    api: ModelApi, turn: list[ToolCall] | str
) -> None:
    given = policy_turn(3, turn)
    answer = json.loads(api.answer(reply(given, PLAIN)))
    assert read(api, **SENT_BACK[api](answer)).messages == (given,)


@given(st.text() | CALLS)
def test_a_chat_stream_says_what_the_plain_answer_says(turn: list[ToolCall] | str) -> None:
    given = policy_turn(3, turn)
    plain, streamed = (chat.answer(reply(given, each)).decode() for each in (PLAIN, STREAMED))
    delta = json.loads(streamed.split("\n\n")[0].removeprefix("data: "))["choices"][0]["delta"]
    for call in delta.get("tool_calls", ()):
        del call["index"]
    assert delta == json.loads(plain)["choices"][0]["message"]


def test_a_turn_without_a_word_is_an_empty_text() -> None:
    said = DialogueMessage("assistant", "")
    assert chat.plain_message(said) == {"role": "assistant", "content": ""}


LENGTHS = {
    chat: '"prompt_tokens":10,"completion_tokens":4,"total_tokens":14',
    responses: '"output_tokens":4',
    anthropic: '{"input_tokens":10,"output_tokens":4}',
}
CUT = {
    chat: '"finish_reason":"length"',
    responses: '"incomplete_details":{"reason":"max_output_tokens"}',
    anthropic: '"stop_reason":"max_tokens"',
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("request_", [PLAIN, STREAMED])
def test_a_turn_that_was_cut_says_so_and_how_long_it_was(
    api: ModelApi, request_: DialogueRequest
) -> None:
    length = TokenCounts(10, 4, cut=True)
    text = api.answer(reply(policy_turn(1, "lo"), request_, length)).decode()
    assert CUT[api] in text
    assert LENGTHS[api] in text
