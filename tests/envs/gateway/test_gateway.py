"""Programs that speak the OpenAI chat API, played by hand: what they ask, what they are told."""

import json
from pathlib import Path

import pytest
from agent_programs import LOOK, Play, reward_of
from running import eventually, processes_of

from agentrl.core.errors import EnvironmentFailure
from agentrl.envs.contract import Message, Outcome, ToolCall, is_counting

LOOKS = """
messages = [{"role": "system", "content": "act"}, user(item["id"])]
tools = [tool("look", "thing")]
while True:
    message = said(ask(messages, tools=tools))
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        seen = json.loads(call["function"]["arguments"])["thing"] + " is blue"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": seen})
print("thinking")
print(message["content"])
"""


def test_a_program_s_requests_become_turns_and_its_end_the_user_s_reward(play: Play) -> None:
    environment = play(LOOKS)
    first = environment.start()
    assert first.messages == (Message("system", "act"), Message("user", "one"))
    assert [tool.name for tool in environment.tools] == ["look"]
    seen = Message("tool", "mug is blue", "look")
    assert environment.call([LOOK, LOOK]) == Outcome((seen, seen))
    assert environment.call("blue") == Outcome((), done=True, reward=1.0, score=0.5)


def test_a_wrong_answer_is_a_reward_of_nothing(play: Play) -> None:
    environment = play(LOOKS)
    assert reward_of(environment, "red") == 0.0


def test_the_reward_is_given_the_conversation_as_openai_has_it(play: Play, tmp_path: Path) -> None:
    environment = play(LOOKS, reward="told")
    environment.start()
    environment.call([LOOK])
    assert environment.call("blue").reward == 2.0
    function = {"name": "look", "arguments": '{"thing": "mug"}'}
    call = {"id": "call_1_0", "type": "function", "function": function}
    assert json.loads((tmp_path / "told.json").read_text()) == [
        {"role": "system", "content": "act"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "mug is blue", "tool_call_id": "call_1_0"},
        {"role": "assistant", "content": "blue"},
    ]


def test_a_call_that_does_not_fit_is_answered_here_and_the_program_never_sees_it(
    play: Play,
) -> None:
    environment = play(LOOKS)
    environment.start()
    bad = ToolCall("look", {}, "look: thing is missing")
    answer = environment.call([bad, LOOK])
    assert [message.content for message in answer.messages] == [
        "look: thing is missing",
        "not run: another call of this turn was ill-formed",
    ]
    assert environment.call("blue").reward == 1.0


def test_where_a_program_wants_one_call_a_turn_the_policy_is_told_so(play: Play) -> None:
    environment = play(LOOKS.replace("tools=tools", "tools=tools, parallel_tool_calls=False"))
    environment.start()
    assert environment.call([LOOK, LOOK]).messages[0].content == "one call a turn: none was run"
    assert environment.call([LOOK]).messages[0].content == "mug is blue"


@pytest.mark.parametrize("choice", ["'required'", "'auto'"])
def test_where_a_program_needs_a_call_the_policy_is_told_so(play: Play, choice: str) -> None:
    environment = play(LOOKS.replace("tools=tools", f"tools=tools, tool_choice={choice}"))
    environment.start()
    outcome = environment.call("blue")
    assert outcome.done == (choice == "'auto'")
    if not outcome.done:
        assert outcome.messages[0].content.startswith("call a tool")
        assert environment.call([LOOK]).messages[0].content == "mug is blue"


JSON = """
answer = said(ask([user("?")], response_format={"type": "json_object"}, stop="END"))
print(json.loads(answer["content"])["colour"])
"""


@pytest.mark.parametrize("text", ["blue", '["blue"]', '{"colour": "blue"} or so'])
def test_where_a_program_needs_a_json_object_the_policy_is_told_so(play: Play, text: str) -> None:
    environment = play(JSON)
    environment.start()
    outcome = environment.call(text)
    assert outcome.messages == (Message("user", "answer with one JSON object and nothing else"),)
    assert environment.call('{"colour": "blue"} END or so').reward == 1.0


def test_a_json_object_that_a_limit_cut_is_shown_as_cut(play: Play) -> None:
    environment = play(
        "status, text = ask([user('?')], response_format={'type': 'json_object'})\n"
        "choice = json.loads(text)['choices'][0]\n"
        "assert choice['message']['content'] == '{\"colour', choice\n"
        "print('blue' if choice['finish_reason'] == 'length' else choice)"
    )
    environment.start()
    assert is_counting(environment)
    environment.sampled(5, 4, "length", None)
    assert environment.call('{"colour').reward == 1.0


STREAMS = """
status, text = ask([user("?")], tools=[tool("look", "thing")], stream=True,
                   stream_options={"include_usage": True})
events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
assert events.pop() == "[DONE]"
chunks = [json.loads(event) for event in events]
assert chunks.pop()["usage"]["total_tokens"] == 9
(first, last) = [chunk["choices"][0] for chunk in chunks]
assert last["finish_reason"] == "tool_calls"
print(json.loads(first["delta"]["tool_calls"][0]["function"]["arguments"])["thing"])
"""


def test_a_streamed_answer_is_events_with_the_same_content(play: Play) -> None:
    environment = play(STREAMS)
    environment.start()
    assert is_counting(environment)
    environment.sampled(5, 4, "stop", None)
    assert environment.call([ToolCall("look", {"thing": "blue"})]).reward == 1.0


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ("logprobs=True, top_logprobs=1", "top_logprobs: 1"),
        ("response_format={'type': 'json_schema'}", "response_format: "),
        ("tool_choice='none', tools=[tool('look')]", "tool_choice: "),
    ],
)
def test_what_cannot_be_had_is_refused_by_name_and_the_program_may_go_on(
    play: Play, asked: str, field: str
) -> None:
    environment = play(
        f"status, text = ask([user('?')], {asked})\n"
        "assert status == 400, status\n"
        f"assert {field!r} in text, text\n"
        "print(said(ask([user('?')], n=1, temperature=0.2, top_p=0.9))['content'])"
    )
    assert reward_of(environment, "blue") == 1.0


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ("[user('?'), answer]", "messages: the last message must be a user's or a tool's"),
        ("[user('?'), answer, {'role': 'system', 'content': 'x'}]", "messages[2]: a system"),
        ("[user('?'), answer, {'role': 'tool', 'content': 'x'}]", "messages[2]: answers no call"),
        ("[answer, user('?')]", "messages[0]: the conversation begins with an assistant's"),
    ],
)
def test_a_conversation_that_no_template_knows_is_refused_and_the_program_may_go_on(
    play: Play, second: str, why: str
) -> None:
    environment = play(
        "answer = said(ask([user('?')]))\n"
        f"status, text = ask({second})\n"
        f"assert status == 400 and {why!r} in text, text\n"
        "print('blue')"
    )
    assert reward_of(environment, "blue") == 1.0


def test_a_program_that_fails_after_a_refusal_names_it(play: Play) -> None:
    environment = play("answer = ask([user('?')])\nask([user('?')], n=0)\nsys.exit('no')")
    environment.start()
    with pytest.raises(EnvironmentFailure, match=r"code 1: no; its last refused request: n: "):
        environment.call("blue")


def test_an_answer_may_come_back_with_fields_that_say_nothing(play: Play) -> None:
    environment = play(
        "answer = said(ask([user('?')], tools=[tool('look', 'thing')]))\n"
        "answer = {'role': 'assistant', 'tool_calls': answer['tool_calls'], 'refusal': None}\n"
        "call = answer['tool_calls'][0]\n"
        "call['function']['arguments'] = '{\"thing\":\"mug\"}'\n"
        "told = {'role': 'tool', 'tool_call_id': call['id'],\n"
        "        'content': [{'type': 'text', 'text': 'se'}, {'type': 'text', 'text': 'en'}]}\n"
        "print(said(ask([user('?'), answer, told], tools=[tool('look', 'thing')]))['content'])"
    )
    environment.start()
    assert environment.call([LOOK]).messages == (Message("tool", "seen", "look"),)
    assert environment.call("blue").reward == 1.0


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("sys.exit('no such luck')", "exited with code 1: no such luck"),
        ("pass", "exited without a request"),
        ("os.kill(os.getpid(), 9)", "exited with code -9"),
    ],
)
def test_a_program_that_fails_or_asks_nothing_is_no_reward(
    play: Play, program: str, why: str
) -> None:
    with pytest.raises(EnvironmentFailure, match=why):
        play(program).start()


def test_a_program_that_crashes_after_an_answer_is_no_reward(play: Play) -> None:
    environment = play("ask([user('?')]); 1 / 0")
    environment.start()
    with pytest.raises(EnvironmentFailure, match="ZeroDivisionError"):
        environment.call("blue")


def test_a_program_that_hangs_is_no_reward(play: Play) -> None:
    with pytest.raises(EnvironmentFailure, match=r"sent no request and did not exit for 0.3 s"):
        play("time.sleep(30)", timeout_s=0.3).start()


def test_a_program_s_environment_is_clean(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the worker")
    monkeypatch.setenv("GIVEN", "blue")
    environment = play(
        "assert json.loads(os.environ['AGENTRL_ITEM']) == item\n"
        "names = {'PATH', 'HOME', 'LANG', 'LC_CTYPE', 'COLOUR',\n"
        "         'AGENTRL_ITEM', 'OPENAI_BASE_URL', 'OPENAI_API_KEY',\n"
        "         'ANTHROPIC_BASE_URL', 'ANTHROPIC_API_KEY'}\n"
        "assert set(os.environ) <= names, set(os.environ) - names\n"
        "ask([user('?')])\n"
        "print(os.environ['COLOUR'])",
        env={"COLOUR": "${GIVEN}"},
    )
    assert reward_of(environment, "") == 1.0


def test_the_models_are_listed_and_a_wrong_key_is_refused(play: Play) -> None:
    environment = play(
        "def models(key):\n"
        "    return urllib.request.urlopen(urllib.request.Request(\n"
        "        os.environ['OPENAI_BASE_URL'] + '/models', headers={'authorization': key}))\n"
        "try:\n"
        "    models('Bearer guess')\n"
        "except urllib.error.HTTPError as error:\n"
        "    assert error.code == 401\n"
        "listed = json.load(models('Bearer ' + os.environ['OPENAI_API_KEY']))\n"
        "assert listed['data'][0]['id'] == 'agentrl'\n"
        "ask([user('?')]); print('blue')"
    )
    assert reward_of(environment, "") == 1.0


def test_closing_ends_the_program_and_may_be_repeated_or_come_before_the_start(
    play: Play, tmp_path: Path
) -> None:
    environment = play(LOOKS)
    environment.close()
    environment.start()
    assert processes_of(tmp_path)
    environment.close()
    environment.close()
    eventually(lambda: not processes_of(tmp_path), within_s=60, text=lambda: "it runs on")
