"""Programs that use the vendors' own packages: what they ask, what they get, how they fail."""

from importlib.util import find_spec

import pytest
from agent_programs import Play

from agentrl.envs.contract import Message, Outcome, ToolCall, TurnTerms, is_counting

LOOK = ToolCall("look", {"thing": "mug"})
SEEN = Message("tool", "mug is blue", "look")

CHAT = """
import openai
client = openai.OpenAI()
look = tool("look", "thing")
def refused(field, **more):
    try:
        client.chat.completions.create(model="m", messages=[user("?")], **more)
    except openai.BadRequestError as error:
        assert error.param == field, error
        return error.message
    raise AssertionError(field)
assert "3 is not supported; use 0" in refused("top_logprobs", logprobs=True, top_logprobs=3)
schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
assert "is not supported; known: text" in refused("response_format", response_format=schema)
assert "did you mean top_k" in refused("topk", extra_body={"topk": 3})
try:
    openai.OpenAI(api_key="guess").models.list()
except openai.AuthenticationError as error:
    assert error.status_code == 401
assert [each.id for each in client.models.list()] == ["agentrl"]

messages = [user(item["id"])]
asked = {"model": "m", "messages": messages, "tools": [look], "max_tokens": 7, "stop": ["END"]}
message = client.chat.completions.create(**asked).choices[0].message
messages.append(message)
(call,) = message.tool_calls
thing = json.loads(call.function.arguments)["thing"]
messages.append({"role": "tool", "tool_call_id": call.id, "content": thing + " is blue"})
with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
    whole = stream.get_final_completion()
assert whole.usage.total_tokens == 9, whole
print(whole.choices[0].message.content)
"""
RESPONSES = """
import openai
client = openai.OpenAI()
look = {"type": "function", "name": "look"}
look["parameters"] = tool("x", "thing")["function"]["parameters"]
def refused(field, **more):
    try:
        client.responses.create(**({"model": "m", "input": "?"} | more))
    except openai.BadRequestError as error:
        assert error.param == field, error
        return
    raise AssertionError(field)
refused("text", text={"format": {"type": "json_object"}})
refused("input[0]", input=[{"type": "item_reference", "id": "x"}])
refused("topk", extra_body={"topk": 3})

asked = {"model": "m", "instructions": "act", "tools": [look], "max_output_tokens": 7}
said = [user(item["id"])]
with client.responses.stream(input=said, **asked) as stream:
    kinds = [event.type for event in stream]
    first = stream.get_final_response()
assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
assert first.max_output_tokens == 7 and first.instructions == "act", first
said += first.output
(call,) = first.output
thing = json.loads(call.arguments)["thing"]
said.append({"type": "function_call_output", "call_id": call.call_id, "output": thing + " is blue"})
second = client.responses.create(input=said, **asked)
assert second.usage.total_tokens == 9, second
third = client.responses.create(input="in one word", previous_response_id=second.id, **asked)
assert (third.status, third.incomplete_details.reason) == ("incomplete", "max_output_tokens")
with client.responses.stream(
    input="again", previous_response_id=third.id, **asked
) as stream:
    text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == stream.get_final_response().output_text
print(text)
"""
MESSAGES = """
import anthropic
client = anthropic.Anthropic()
look = {"name": "look", "input_schema": tool("x", "thing")["function"]["parameters"]}
def refused(field, **more):
    try:
        client.messages.create(**({"model": "m", "max_tokens": 7, "messages": [user("?")]} | more))
    except anthropic.BadRequestError as error:
        assert error.type == "invalid_request_error", error
        assert error.body["error"]["message"].startswith(field + ": "), error
        return
    raise AssertionError(field)
refused("thinking", thinking={"type": "enabled", "budget_tokens": 1024})
refused("messages[0]", messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
refused("topk", extra_body={"topk": 3})
try:
    anthropic.Anthropic(api_key="guess").models.list()
except anthropic.AuthenticationError as error:
    assert error.type == "authentication_error", error
assert [each.id for each in client.models.list()] == ["agentrl"]

messages = [user(item["id"])]
asked = {"model": "m", "max_tokens": 7, "system": "act", "tools": [look], "stop_sequences": ["END"]}
with client.messages.stream(messages=messages, **asked) as stream:
    first = stream.get_final_message()
assert first.stop_reason == "tool_use", first
messages.append({"role": "assistant", "content": first.content})
(call,) = first.content
told = {"type": "tool_result", "tool_use_id": call.id, "content": call.input["thing"] + " is blue"}
messages.append({"role": "user", "content": [told]})
second = client.messages.create(messages=messages, **asked)
assert (second.stop_reason, second.stop_sequence) == ("stop_sequence", "END"), second
assert (second.usage.input_tokens, second.usage.output_tokens) == (5, 4), second
messages += [{"role": "assistant", "content": second.content}, user("in one word")]
with client.messages.stream(messages=messages, **asked) as stream:
    text = "".join(stream.text_stream)
    assert stream.get_final_message().stop_reason == "end_turn"
print(second.content[0].text + text)
"""


@pytest.mark.skipif(not find_spec("openai"), reason="the package openai is missing")
def test_a_program_of_openai_s_package_chats(play: Play) -> None:
    environment = play(CHAT)
    terms = TurnTerms(7, ("END",))
    assert environment.start().messages == (Message("user", "one"),)
    assert environment.call([LOOK]) == Outcome((SEEN,), terms=terms)
    assert is_counting(environment)
    environment.sampled(5, 4, "stop", None)
    assert environment.call("blueEND of it").reward == 1.0


@pytest.mark.skipif(not find_spec("openai"), reason="the package openai is missing")
def test_a_program_of_openai_s_package_uses_responses(play: Play) -> None:
    environment = play(RESPONSES)
    first = environment.start()
    assert first.messages == (Message("system", "act"), Message("user", "one"))
    assert first.terms == TurnTerms(7)
    assert environment.call([LOOK]).messages == (SEEN,)
    assert is_counting(environment)
    environment.sampled(5, 4, "stop", None)
    assert environment.call("it is blue").messages == (Message("user", "in one word"),)
    environment.sampled(5, 7, "length", None)
    assert environment.call("blu").messages == (Message("user", "again"),)
    assert environment.call("blue").reward == 1.0


@pytest.mark.skipif(not find_spec("anthropic"), reason="the package anthropic is missing")
def test_a_program_of_anthropic_s_package_is_an_episode(play: Play) -> None:
    environment = play(MESSAGES)
    first = environment.start()
    assert first.messages == (Message("system", "act"), Message("user", "one"))
    assert first.terms == TurnTerms(7, ("END",))
    assert environment.call([LOOK]).messages == (SEEN,)
    assert is_counting(environment)
    environment.sampled(5, 4, "stop", None)
    assert environment.call("blEND").messages == (Message("user", "in one word"),)
    assert environment.call("ue").reward == 1.0
